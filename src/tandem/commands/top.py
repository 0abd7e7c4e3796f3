"""`tandem top`: what a server or a cluster does at this moment, in a terminal of 80 columns."""

import asyncio
from contextlib import suppress

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tandem.api.page.observed import OverviewAnswer
from tandem.bench.client import Client, Endpoint, RequestFailed
from tandem.commands.options import ServerOptions, flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.top_screen import top_screen
from tandem.facts.overview import Overview

_decode = msgspec.json.Decoder(OverviewAnswer).decode


@flags
class TopOptions:
    """How it is shown."""

    every: float = flag("Look so often.", default=1.0, metavar="SECONDS", min=0.1)
    once: bool = flag("Show it once, and end.", "--once", default=False)
    json: bool = flag("Every figure once, for programs.", "--json", default=False)


@with_options
def top_command(server: ServerOptions, options: TopOptions) -> None:
    """Watch a running server or cluster: workers with their load, requests and latencies of the
    last minutes, queues, rejections, the planner, news. Ctrl-C ends.

    Goodput is requests a second that kept their SLO; hits are the prompt tokens whose KV was
    cached. A server with API keys wants one; with an operator's, queues have names.
    """
    endpoint = Endpoint(server.url, server.api_key, server.timeout_s)
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(endpoint, options, terminal()))


async def _watch(endpoint: Endpoint, options: TopOptions, console: Console) -> None:
    """Until it is cancelled. Raises `RequestFailed` where the server does not answer at first."""
    async with Client(endpoint) as client:
        before: Overview | None = None
        seen = await client.get("/tandem/overview")
        if options.json:
            typer.echo(msgspec.json.format(seen).decode())
            return
        if options.once:
            console.print(top_screen(_decode(seen).overview, before))
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                overview = _decode(seen).overview
                live.update(top_screen(overview, before), refresh=True)
                before = overview
                await asyncio.sleep(options.every)
                try:
                    seen = await client.get("/tandem/overview")
                except RequestFailed as failure:
                    # It may come back: a gateway that is started anew, say.
                    live.update(Text(f"{endpoint.root_url}: {failure}", "red"), refresh=True)
