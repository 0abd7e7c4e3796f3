"""Runs an assembled server until it is told to stop."""

import asyncio
import signal
import socket

import uvloop
from rich.console import Console

from tandem.commands.assembly import (
    PATIENCE_S,
    HttpServer,
    Server,
    assemble,
    http_server,
    listen,
    running,
)
from tandem.commands.options import DEFAULT_URL
from tandem.config.options import ServeOptions


def serve(model: str | None, options: ServeOptions, console: Console) -> None:
    """Load, listen, greet and serve. Raises `InvalidConfiguration`."""
    # The address is taken before the model is loaded: a taken port is said at once.
    with listen(options.host, options.port) as listener:
        server = assemble(model, options)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(server, listener, options.log_level, console))


async def _serve(server: Server, listener: socket.socket, log_level: str, console: Console) -> None:
    http = http_server(server, log_level)
    _heed_signals(server, http)
    url = _url(*listener.getsockname()[:2])
    async with running(server):
        for note in server.notes:
            console.print(f"  [dim]{note}[/dim]", soft_wrap=True)
        console.print(_how_to_try(server, url), soft_wrap=True)
        await http.serve(sockets=[listener])


def _heed_signals(server: Server, http: HttpServer) -> None:
    """The first signal lets answers under way end for some seconds, then ends them with an error
    that their clients get; a second one does so at once."""
    loop = asyncio.get_running_loop()

    def shut_down() -> None:
        if http.should_exit:
            server.worker.close()
        http.should_exit = True
        loop.call_later(PATIENCE_S, server.worker.close)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, shut_down)


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _how_to_try(server: Server, url: str) -> str:
    name = server.worker.card.names[0]
    header = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if server.api.api_keys else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    keys = " --api-key $TANDEM_API_KEY" if server.api.api_keys else ""
    local = keys + ("" if url == DEFAULT_URL else f" --url {url}")
    return (
        f"\n[bold green]Ready.[/bold green] {name} is served on [bold]{url}/v1[/bold] "
        f"(docs: {url}/docs, metrics: {url}/metrics)\n\n"
        f"  .venv/bin/tandem chat{local}\n"
        f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\\n"
        f"    -d '{body}'\n\n"
        f"Ctrl-C stops the server.\n"
    )
