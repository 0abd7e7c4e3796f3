"""The report of `tandem bench`: its tables, notes, chart, and the settings that a file keeps."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from tandem.bench.client import Endpoint
from tandem.bench.responses import ServedModel
from tandem.bench.workload import Conversation
from tandem.commands.bench_options import BenchOptions, ReportOptions
from tandem.facts.slo import Slo
from tandem.report.measured import LoadPoint, SweepPoint, knee
from tandem.report.plots.chart import Chart
from tandem.report.plots.measured import measured_chart, sweep_chart
from tandem.report.tables import knee_sentence, measured_tables, sweep_table

# Above this, a workload that shares nothing was surely asked before.
_SURPRISING_CACHED_SHARE = 0.05
_WORRYING_LATE_S = 0.05


@dataclass(frozen=True)
class Bench:
    """One benchmark, resolved: everything the runs need, nothing that changes."""

    options: BenchOptions
    report: ReportOptions
    endpoint: Endpoint
    points: list[LoadPoint]
    planned: list[Conversation]
    slo: Slo
    console: Console


def print_results(
    console: Console, bench: Bench, model: ServedModel, runs: list[SweepPoint]
) -> None:
    # A model's name or an IPv6 address may hold brackets: nothing of theirs is markup.
    console.print(_title(bench, model), style="bold", markup=False, highlight=False)
    console.print(_subtitle(bench) + "\n", style="dim", markup=False, highlight=False)
    if len(runs) == 1:
        for table in measured_tables(runs[0].summary, bench.slo):
            console.print(table)
            console.print()
    else:
        console.print(sweep_table(runs, knee(runs)))
        console.print(knee_sentence(runs, bench.slo), highlight=False)
        for reason, count in _all_failures(runs).items():
            console.print(f"{count} failed: {reason}", style="red", markup=False)
    for note in _notes(bench, runs):
        console.print(f"[yellow]note[/yellow] {note}", highlight=False)


def _notes(bench: Bench, runs: list[SweepPoint]) -> list[str]:
    notes = []
    prompts = bench.options.prompts
    shares_nothing = (
        bench.options.trace.trace is None
        and not prompts.shared_prefix_tokens
        and prompts.turns == 1
    )
    cached = max((run.summary.cached_share or 0.0) for run in runs)
    if shares_nothing and cached > _SURPRISING_CACHED_SHARE:
        notes.append(
            f"{cached:.0%} of the prompt tokens came from the prefix cache although the workload "
            "shares nothing: it was asked before. Use another --seed."
        )
    # A bound on concurrency holds requests back on purpose.
    unbound_s = [run.summary.late_p99_s for run in runs if run.load.concurrency is None]
    late_s = max(unbound_s, default=0.0)
    if late_s > _WORRYING_LATE_S:
        notes.append(f"this client ran up to {late_s * 1e3:.0f} ms (p99) behind its plan.")
    return notes


def _all_failures(runs: list[SweepPoint]) -> dict[str, int]:
    total: dict[str, int] = {}
    for run in runs:
        for reason, count in run.summary.failures.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _title(bench: Bench, model: ServedModel) -> str:
    return f"{model.id} at {bench.endpoint.root_url}"


def _subtitle(bench: Bench) -> str:
    options = bench.options
    prompts = options.prompts
    count = sum(len(conversation.turns) for conversation in bench.planned)
    parts = [f"{count} requests"]
    if options.trace.trace is not None:
        parts.append(f"trace {options.trace.trace.name}")
        parts.append(f"speed {options.trace.speed:g}, lengths x {options.trace.scale_lengths:g}")
    elif prompts.lengths_file is not None:
        parts.append(f"lengths {prompts.lengths_file.name}")
    else:
        parts.append(f"input {prompts.input_tokens}, output {prompts.output_tokens} tokens")
    if prompts.shared_prefix_tokens:
        parts.append(f"{prompts.prefix_groups} x {prompts.shared_prefix_tokens} prefix tokens")
    if prompts.turns > 1:
        parts.append(f"{prompts.turns} turns")
    if len(bench.points) == 1:
        parts.append(str(bench.points[0]))
    if bench.points[0].rate_rps is not None:
        parts.append(f"{options.load.arrivals(1.0).process} arrivals")
    return ", ".join([*parts, f"seed {options.load.seed}"])


def chart_of(bench: Bench, model: ServedModel, runs: list[SweepPoint]) -> Chart:
    title, subtitle = _title(bench, model), _subtitle(bench)
    if len(runs) == 1:
        return measured_chart(title, subtitle, runs[0].requests, bench.slo)
    return sweep_chart(title, subtitle, runs, bench.slo)


def settings_of(bench: Bench) -> dict[str, Any]:
    return asdict(bench.options) | {"slo": asdict(bench.slo)}


def server_of(bench: Bench, model: ServedModel) -> dict[str, Any]:
    return {
        "url": bench.endpoint.root_url,
        "model": model.id,
        "context_tokens": model.context,
        "vocabulary_tokens": model.vocabulary,
    }
