"""Runs an assembled server until it is told to stop."""

import socket

from rich.console import Console

from tandem.commands.cluster_screen import Greeting
from tandem.config.options import ServeOptions
from tandem.live.http_server import listen, url_of
from tandem.live.processes.lifecycle import loop_runner
from tandem.live.processes.server import Server, assemble, http_server, running


def serve(model: str | None, options: ServeOptions, console: Console) -> None:
    """Load, listen, greet and serve. Raises `InvalidConfiguration`."""
    # The address is taken before the model is loaded: a taken port is said at once.
    with listen(options.host, options.port) as listener:
        server = assemble(model, options)
        with loop_runner() as runner:
            runner.run(_serve(server, listener, options.log_level, console))


async def _serve(server: Server, listener: socket.socket, log_level: str, console: Console) -> None:
    http = http_server(server, log_level)
    http.end_on_signals(server.worker.close)
    url = url_of(listener)
    async with running(server):
        for note in server.notes:
            console.print(f"  [dim]{note}[/dim]", soft_wrap=True)
        name = server.worker.card.names[0]
        greeting = Greeting(name, url, server.api.has_keys)
        console.print(str(greeting), soft_wrap=True)
        await http.serve(sockets=[listener])
