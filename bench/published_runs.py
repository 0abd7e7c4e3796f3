"""What the studies of published results share: traces, simulated runs, and a report that sets ours
beside theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import spread, window
from tandem.commands.simulated_runs import Run, Trial, run_trials
from tandem.facts.trace import TraceRow
from tandem.report.statistics import Distribution

CONVERSATION = "mooncake_fast25_conversation_trace.jsonl.gz"
SYNTHETIC = "mooncake_fast25_synthetic_trace.jsonl.gz"
# A stand-in for the tool&agent trace, built from public parts; not a recording of anybody.
SURROGATE = "mooncake_toolagent_SURROGATE.jsonl.gz"
AZURE_CODE = "AzureLLMInferenceTrace_code_2023.csv.gz"
SHAREGPT_LENGTHS = "lengths_sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"


@dataclass(frozen=True)
class Bench:
    """Where traces lie, how many runs at a time, and how much of a trace is played (None: all)."""

    traces: Path
    processes: int
    first: int | None

    def rows(self, name: str, at_most: int | None = None) -> list[TraceRow]:
        """A trace with the arrivals of a coarse clock spread, cut to what was asked for."""
        counts = [count for count in (self.first, at_most) if count is not None]
        rows = spread(read_trace(self.traces / name))
        return window(rows, first=min(counts, default=None))

    def play(self, trials: Sequence[Trial], rows: Sequence[TraceRow]) -> list[Run]:
        records = run_trials(trials, rows, self.processes, lambda _: None)
        return [Run(trial, record) for trial, record in zip(trials, records, strict=True)]


@dataclass(frozen=True)
class Finding:
    """Something that was published, whether our run shows it too, and our figures for it."""

    claim: str
    agrees: bool
    ours: str


@dataclass(frozen=True)
class Report:
    """`apart` says what we set up otherwise than they did: where differences come from."""

    title: str
    setup: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    findings: Sequence[Finding]
    apart: Sequence[str]

    def show(self) -> None:
        console = Console(width=110)
        console.print(f"{self.title}", style="bold")
        console.print(self.setup + "\n", highlight=False)
        table = Table()
        for place, column in enumerate(self.columns):
            table.add_column(column, justify="left" if place == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for finding in self.findings:
            verdict = "agrees" if finding.agrees else "DIFFERS"
            console.print(f"{verdict:<8} {finding.claim}: {finding.ours}", highlight=False)
        for difference in self.apart:
            console.print(f"apart    {difference}", style="dim", highlight=False)


def mean_s(found: Distribution | None) -> float:
    """Of durations; 0 of none."""
    return found.mean_ns / 1e9 if found else 0.0


def mean_ttft_s(run: Run) -> float:
    return mean_s(run.summary.latencies.ttft)


def falling(values: Sequence[float]) -> bool:
    """Whether each is smaller than the one before it."""
    return all(later < earlier for earlier, later in pairwise(values))
