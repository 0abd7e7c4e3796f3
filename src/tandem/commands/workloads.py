"""Recorded workloads as verbs take them: a file of requests or of rates, or a gateway's journal;
and the flags that say which part of it is played, and how."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.bench.laws import read_length_pairs
from tandem.bench.traces.rates import WINDOW_S, RateDraw
from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import (
    announce_pauses,
    announce_pauses_note,
    merge,
    merge_note,
    spread,
    spread_note,
    window,
    window_note,
)
from tandem.commands.options import flag, flags, positive_numbers
from tandem.commands.recorded_history import read_history
from tandem.config.traces import bundled_traces, find_trace
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.observe.journal.files import is_journal
from tandem.observe.journal.history import trace_rows


def read_workload(
    path: Path, draw: RateDraw | None = None, *, flag: str = "--trace"
) -> list[TraceRow]:
    """All rows by arrival, the first at 0, of a file, a journal or a bundled trace. `draw` says
    which requests are drawn from a file of rates. Raises `InvalidConfiguration` naming the flag
    that gave the file."""
    path = find_trace(path, flag)
    if not is_journal(path):
        return read_trace(path, draw, flag=flag)
    with TemporaryDirectory(prefix="tandem-journal-") as folder:
        rows = trace_rows(read_history(path, Path(folder)).history)
    if not rows:
        raise InvalidConfiguration(f"{flag} {path}: no request was recorded")
    return rows


@flags
class TraceOptions:
    """A recorded workload instead of drawn lengths (and arrivals, unless --rate is given)."""

    trace: Path | None = flag(
        "A file (Mooncake JSON lines, Azure CSV or own JSON lines; .gz or not), or a bundled trace "
        f"({', '.join(bundled_traces())}).",
        default=None,
    )
    speed: float = flag("2 plays twice as fast.", default=1.0, min=1e-6)
    scale_lengths: float = flag(
        "Factor on prompt, answer and block lengths (512-token blocks of a trace).",
        default=1.0,
        min=1e-6,
    )
    spread_s: float = flag("Spreads coarse timestamps over so many seconds.", default=0.0, min=0.0)


@flags
class WorkloadOptions:
    """What is asked."""

    trace: list[Path] = flag(
        "A file of requests, a journal, or a bundled trace "
        f"({', '.join(bundled_traces())}); several play at once."
    )
    speed: str = flag("Times the recorded rate; 0.5,1,2 compares loads.", default="1")
    first: int | None = flag("Only the first so many requests.", default=None, min=1)
    seconds: float | None = flag("Only arrivals before this.", default=None, min=0.001)
    spread: bool | None = flag(
        "Arrivals of a coarse clock at random places within its ticks. "
        "(default: when the trace has such a clock)",
        "--spread/--no-spread",
        default=None,
    )
    announce_pauses: float | None = flag(
        "Sessions announce their pauses, so many times as long as they are.", default=None, min=1e-3
    )
    workload: str | None = flag(
        "Which of a file of ServeGen rates, if it holds several.", default=None
    )
    lengths_file: Path | None = flag(
        "CSV(.gz) of prompt and answer lengths, for rates that come without.", default=None
    )
    seed: int | None = flag(
        "Of all chance: same seed, same run. (default: the cluster's)", default=None, min=0
    )

    def speeds(self) -> list[float]:
        """Every speed once, slowest first."""
        speeds = sorted(set(positive_numbers(self.speed, "--speed", "0.5,1,2")))
        if speeds[-1] == float("inf"):
            raise InvalidConfiguration(f"--speed must be finite, got {self.speed!r}")
        return speeds

    def rows(self) -> tuple[list[TraceRow], list[str]]:
        """The requests at recorded speed, and a line about everything that was done to them."""
        seed = self.seed or 0
        notes = [f"trace {' + '.join(path.name for path in self.trace)}"]
        draw = RateDraw(
            workload=self.workload or "",
            seconds=self.seconds or WINDOW_S,
            seed=seed,
            length_pairs=None
            if self.lengths_file is None
            else read_length_pairs(self.lengths_file),
        )
        traces = []
        for path in self.trace:
            recorded = read_workload(path, draw)
            # A journal has no coarse clock.
            if self.spread or (self.spread is None and not is_journal(find_trace(path, "--trace"))):
                notes.append(spread_note(recorded))
                recorded = spread(recorded, seed)
            else:
                notes.append("arrivals as recorded")
            traces.append(recorded)
        rows = merge(traces)
        if len(traces) > 1:
            notes.append(merge_note(traces))
        kept = window(rows, first=self.first, seconds=self.seconds)
        if not kept:
            raise InvalidConfiguration("no request is left; give more --seconds")
        if len(kept) < len(rows):
            notes.append(window_note(kept, rows))
        if self.announce_pauses is not None:
            kept = announce_pauses(kept, self.announce_pauses)
            notes.append(announce_pauses_note(self.announce_pauses))
        return kept, list(dict.fromkeys(notes))


def overlong_notes(rows: Sequence[TraceRow], contexts: Sequence[int]) -> Iterator[str]:
    """How many requests do not fit into the context of a run, for each of the contexts."""
    for context_tokens in dict.fromkeys(contexts):
        count = sum(row.prompt_tokens + row.output_tokens > context_tokens for row in rows)
        if count:
            yield (
                f"{count:,} of {len(rows):,} requests want more than the {context_tokens:,} tokens "
                "of a sequence (max_model_len): longer prompts are refused, longer answers cut"
            )
