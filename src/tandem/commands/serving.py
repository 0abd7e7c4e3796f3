"""Runs an assembled server until it is told to stop."""

import asyncio
import signal
import socket

from rich.console import Console

from tandem.commands.assembly import Server, assemble, http_server, listen, running
from tandem.config.options import ServeOptions


def serve(model: str | None, options: ServeOptions, console: Console) -> None:
    """Load, listen, greet and serve. Raises `InvalidConfiguration`."""
    # The address is taken before the model is loaded: a taken port is said at once.
    with listen(options.host, options.port) as listener:
        server = assemble(model, options)
        asyncio.run(_serve(server, listener, options.log_level, console))


async def _serve(server: Server, listener: socket.socket, log_level: str, console: Console) -> None:
    host, port = listener.getsockname()[:2]
    shown_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    http = http_server(server, log_level)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Answers under way get some seconds to end; a second signal does not wait for them.
        loop.add_signal_handler(number, http.handle_exit, number, None)
    async with running(server):
        for note in server.notes:
            console.print(f"  [dim]{note}[/dim]", soft_wrap=True)
        console.print(_how_to_try(server, f"http://{shown_host}:{port}"), soft_wrap=True)
        await http.serve(sockets=[listener])


def _how_to_try(server: Server, url: str) -> str:
    name = server.worker.card.names[0]
    header = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if server.api.api_keys else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    local = "" if url.endswith(":8000") else f" --url {url}"
    return (
        f"\n[bold green]Ready.[/bold green] {name} is served on [bold]{url}/v1[/bold] "
        f"(docs: {url}/docs, metrics: {url}/metrics)\n\n"
        f"  .venv/bin/tandem chat{local}\n"
        f"  curl {url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\\n"
        f"    -d '{body}'\n\n"
        f"Ctrl-C stops the server.\n"
    )
