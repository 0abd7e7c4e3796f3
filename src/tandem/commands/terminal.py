"""What verbs write on a terminal: console, plain tables, bars of progress, amounts for people."""

import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

UNSQUEEZED = 140
_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi")


def terminal() -> Console:
    """Where a command prints. Tables that go to a file or a pipe are not squeezed."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=UNSQUEEZED)


def own_command() -> str:
    """How this program is called here: by its name where the shell finds it under that, else as it
    was called."""
    called = Path(sys.argv[0])
    if called.name != "tandem":
        return "python -m tandem"
    found = shutil.which("tandem")
    return "tandem" if found and called.exists() and called.samefile(found) else str(called)


def print_title(console: Console, title: str, detail: str = "") -> None:
    """Above results. Names of models and files, and IPv6 addresses, may hold brackets: nothing of
    theirs is markup."""
    print_plain(console, title if detail else title + "\n", "bold")
    if detail:
        print_plain(console, detail + "\n", "dim")


def print_plain(console: Console, text: str, style: str, end: str = "\n") -> None:
    """Text as it is, in one style."""
    console.print(text, style=style, end=end, markup=False, highlight=False)


def print_warning(console: Console, text: str) -> None:
    """Nothing for an empty one."""
    if text:
        console.print(f"[yellow]{text}[/yellow]", soft_wrap=True)


def print_detail(console: Console, text: str) -> None:
    """One step or property of what starts."""
    console.print(f"  [dim]{text}[/dim]", soft_wrap=True)


def progress_bars(shown: bool, counted: ProgressColumn) -> Progress:
    """Bars on a terminal's error output while they are needed; `counted` says how far each is."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        counted,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )


def plain_table(
    *columns: str, right: Collection[str] = (), header_style: str = "table.header"
) -> Table:
    """A table without lines; the columns of `right` are numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=header_style)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def write_now(text: str) -> None:
    """A part of an answer, as it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def bytes_text(count: float) -> str:
    """`1.5 MiB`."""
    for prefix in _PREFIXES[:-1]:
        if count < 1024:
            return f"{count:.0f} B" if not prefix else f"{count:.1f} {prefix}B"
        count /= 1024
    return f"{count:.1f} {_PREFIXES[-1]}B"


def seconds_text(seconds: float) -> str:
    """`40 s`, `12 min` or `3 h`."""
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if hours < 2 else f"{hours:.0f} h"
