"""What a test with LoadGen found, as `tandem bench` shows it: LoadGen's figures beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.bench.loadgen.logs import LoadgenSummary
from tandem.bench.loadgen.settings import LoadgenSettings, Mode, Scenario
from tandem.bench.responses import ServedModel
from tandem.bench.tasks.evaluation import SuiteScore
from tandem.commands.bench_notes import cache_note, late_note
from tandem.commands.evaluate import score_table
from tandem.commands.terminal import plain_table, print_title
from tandem.report.measured import LoadPoint, MeasuredSummary, SweepPoint

_PERCENTILES = {"p50": "50.00", "p90": "90.00", "p99": "99.00"}
# By scenario, LoadGen calls the same by several names.
_RATES = {
    "queries": (
        "Completed samples per second",
        "Samples per second",
        "QPS w/ loadgen overhead",
    ),
    "output tokens": (
        "Completed tokens per second",
        "Tokens per second",
        "TPS w/ loadgen overhead",
    ),
}


@dataclass(frozen=True)
class Accuracy:
    """What stands in LoadGen's accuracy log: of how many samples there is an answer, and the scores
    of those that are tasks."""

    samples: int
    logged: int
    scores: Sequence[SuiteScore] = ()


@dataclass(frozen=True)
class LoadgenResult:
    """What LoadGen and we found. `accuracy` is None in performance mode."""

    model: ServedModel
    settings: LoadgenSettings
    loadgen: LoadgenSummary
    point: SweepPoint
    accuracy: Accuracy | None = None

    @property
    def answered(self) -> bool:
        """Whether there were requests, and each has its answer, in the accuracy log as well."""
        summary, accuracy = self.point.summary, self.accuracy
        logged = accuracy is None or accuracy.logged == accuracy.samples
        return logged and summary.succeeded == summary.requests > 0

    @property
    def good(self) -> bool:
        """Whether LoadGen found nothing wrong and every request was answered."""
        return self.answered and not self.loadgen.errors and self.loadgen.valid is not False

    def document(self) -> dict[str, Any]:
        """For the file of results."""
        document = asdict(self.loadgen) | {"benchmark": self.settings.benchmark}
        if self.accuracy is not None:
            shares = {score.suite.name: score.share for score in self.accuracy.scores}
            document["accuracy"] = {"answers": self.accuracy.logged, "scores": shares}
        return document


def print_result(console: Console, url: str, result: LoadgenResult) -> None:
    """Figures beside ours, the score of tasks, and the verdict."""
    settings, summary, accuracy = result.settings, result.point.summary, result.accuracy
    parts = [f"MLPerf LoadGen, {settings.scenario}, {settings.mode}"]
    if result.point.load != LoadPoint():
        parts.append(str(result.point.load))
    detail = ", ".join([*parts, f"seed {settings.seed}"])
    print_title(console, f"{result.model.id} at {url}", detail)
    if settings.mode is Mode.PERFORMANCE:
        console.print(_table(settings.scenario, result.loadgen, summary))
        console.print()
    elif accuracy is not None and accuracy.scores:
        console.print(score_table(accuracy.scores))
        console.print()
    _say(console, f"{summary.succeeded:,} of {summary.requests:,} queries answered")
    for reason, count in summary.failures.items():
        _say(console, f"{count:,} failed: {reason}", "red")
    if accuracy is not None:
        style = "red" if accuracy.logged < accuracy.samples else ""
        said = f"{accuracy.logged:,} of {accuracy.samples:,} answers in LoadGen's accuracy log"
        _say(console, said, style)
    _print_verdict(console, result)
    for note in _notes(result):
        console.print(f"[yellow]note[/yellow] {note}", highlight=False, soft_wrap=True)
    _say(console, f"LoadGen's logs: {settings.logs}")


def _print_verdict(console: Console, result: LoadgenResult) -> None:
    """LoadGen judges the latency of a query that failed like any other."""
    loadgen = result.loadgen
    if loadgen.valid is not None:
        verdict = "VALID" if loadgen.valid else "INVALID"
        _say(console, f"LoadGen's verdict: {verdict}", "green" if result.good else "red")
    for reason in loadgen.reasons:
        _say(console, f"  {reason}")
    if loadgen.errors:
        _say(console, f"  errors in LoadGen's log: {loadgen.errors:,}", "red")
    if not result.answered:
        _say(console, "Queries without an answer: this is no result, whatever LoadGen says", "red")


def _notes(result: LoadgenResult) -> list[str]:
    settings, runs = result.settings, [result.point]
    if settings.mode is not Mode.PERFORMANCE:
        return []
    why = "as LoadGen asks samples again. A larger --num-prompts has more samples."
    return [
        *cache_note(runs, why),
        *(late_note(runs) if settings.scenario is Scenario.SERVER else []),
    ]


def _say(console: Console, text: str, style: str = "") -> None:
    """A line as it is, however narrow the terminal."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _table(scenario: Scenario, loadgen: LoadgenSummary, ours: MeasuredSummary) -> Table:
    """LoadGen counts from when it issued a query, we from when the request was sent: offline that
    is a wait in the client, so that no latencies are compared."""
    table = plain_table("", "LoadGen", "tandem", "", right=("LoadGen", "tandem"))
    found = loadgen.figures
    for title, own in (
        ("queries", ours.request_throughput_rps),
        ("output tokens", ours.output_throughput_tps),
    ):
        value = next((found[name] for name in _RATES[title] if name in found), None)
        table.add_row(title, _number(value), _number(own), "a second")
    if scenario is not Scenario.OFFLINE:
        _add_latencies(table, found, ours)
    return table


def _add_latencies(table: Table, found: Mapping[str, float], ours: MeasuredSummary) -> None:
    for title, name, own_ns in (
        ("TTFT", "{} percentile first token latency (ns)", ours.latencies.ttft),
        ("TPOT", "{} percentile time to output token (ns)", ours.latencies.tpot),
        ("E2E", "{} percentile latency (ns)", ours.latencies.e2e),
    ):
        for percentile, spelt in _PERCENTILES.items():
            value_ns = found.get(name.format(spelt))
            if value_ns is not None and own_ns is not None:
                own_ms = getattr(own_ns, f"{percentile}_ns") / 1e6
                row = (f"{title} {percentile}", _number(value_ns / 1e6), _number(own_ms), "ms")
                table.add_row(*row)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
