"""Runs an assembled server until it is told to stop."""

import asyncio
import signal
import socket

from rich.console import Console

from tandem.commands.assembly import Server, assemble, http_server, running
from tandem.commands.front_door import PATIENCE_S, HttpServer
from tandem.commands.greeting import Greeting
from tandem.commands.listening import listen, url_of
from tandem.config.options import ServeOptions
from tandem.live.event_loop import loop_runner


def serve(model: str | None, options: ServeOptions, console: Console) -> None:
    """Load, listen, greet and serve. Raises `InvalidConfiguration`."""
    # The address is taken before the model is loaded: a taken port is said at once.
    with listen(options.host, options.port) as listener:
        server = assemble(model, options)
        with loop_runner() as runner:
            runner.run(_serve(server, listener, options.log_level, console))


async def _serve(server: Server, listener: socket.socket, log_level: str, console: Console) -> None:
    http = http_server(server, log_level)
    _heed_signals(server, http)
    url = url_of(listener)
    async with running(server):
        for note in server.notes:
            console.print(f"  [dim]{note}[/dim]", soft_wrap=True)
        name = server.worker.card.names[0]
        greeting = Greeting(name, url, server.api.has_keys)
        console.print(str(greeting), soft_wrap=True)
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
