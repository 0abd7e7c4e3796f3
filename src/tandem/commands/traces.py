"""`tandem traces`: the traces that come with Tandem, where those are that others recorded, and one
drawn anew."""

from pathlib import Path

from rich.console import Console

from tandem.bench.traces.drawn import MixDraw, draw_mix, write_trace
from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import terminal
from tandem.commands.workloads import read_workload
from tandem.config.traces import RECORDED, bundled_traces
from tandem.report.documents import require_folder

_BY_DEFAULT = MixDraw()


@flags
class DrawOptions:
    """A trace that is drawn: chats and agents, from a seed."""

    draw: Path | None = flag("Writes one, our own JSON lines; .gz or not.", default=None)
    seed: int = flag("Same seed, same trace.", default=_BY_DEFAULT.seed, min=0)
    seconds: float = flag(
        "No session begins later.", default=_BY_DEFAULT.seconds, min=0.001, max=1e6
    )
    chats_per_minute: float = flag(
        "New chats of people.", default=_BY_DEFAULT.chats_per_minute, min=0.0, max=1e5
    )
    agents_per_minute: float = flag(
        "New sessions of agents.", default=_BY_DEFAULT.agents_per_minute, min=0.0, max=1e5
    )
    context_tokens: int = flag(
        "Longest prompt with its answer.", default=_BY_DEFAULT.context_tokens, min=1
    )

    @property
    def mix(self) -> MixDraw:
        return MixDraw(
            self.seed,
            self.seconds,
            self.chats_per_minute,
            self.agents_per_minute,
            self.context_tokens,
        )


@with_options
def traces_command(options: DrawOptions) -> None:
    """List the traces that can be played, or draw one.

    Bundled ones are named as they are in `--trace` of `tandem bench` and `tandem simulate` and in
    `tandem hits`; recorded ones are published by others, under their own licences.
    """
    console = terminal()
    if options.draw is None:
        _list(console)
        return
    require_folder(options.draw, "--draw")
    rows = draw_mix(options.mix)
    write_trace(rows, options.draw, "--draw")
    console.print(f"{len(rows):,} requests; tandem hits {options.draw}", soft_wrap=True)


def _list(console: Console) -> None:
    console.print("[bold]Bundled[/bold]")
    for name in bundled_traces():
        rows = read_workload(Path(name))
        sessions = len({row.session for row in rows})
        longest_tokens = max(row.prompt_tokens for row in rows)
        console.print(
            f"  {name}: {len(rows):,} requests of {sessions} sessions in "
            f"{rows[-1].arrival_s:,.0f} s, prompts of up to {longest_tokens:,} tokens",
            soft_wrap=True,
        )
    console.print("\n[bold]Recorded by others[/bold]")
    for each in RECORDED:
        console.print(f"  {each.what}; {each.licence}\n    curl -LO {each.url}", soft_wrap=True)
