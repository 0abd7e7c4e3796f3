"""`tandem bench`: drives any OpenAI-compatible server with a workload and reports how it did."""

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn

from tandem.bench.client import Client, Endpoint
from tandem.bench.load import Asker, Pacing, run_load
from tandem.bench.responses import ServedModel
from tandem.bench.workload import ContentSource, Conversation, plan_warmup
from tandem.commands.bench_asking import choose_asking
from tandem.commands.bench_loadgen import bench_with_loadgen
from tandem.commands.bench_notes import cache_note, late_note
from tandem.commands.bench_options import BenchOptions, ReportOptions
from tandem.commands.loadgen_options import LoadgenBench, LoadgenOptions
from tandem.commands.options import ServerOptions, with_options
from tandem.commands.terminal import print_title, progress_bars
from tandem.facts.slo import Slo
from tandem.report.documents import (
    MeasuredResults,
    load_plotter,
    require_folder,
    save_chart,
    write_measured_records,
)
from tandem.report.measured import LoadPoint, SweepPoint, knee, parse_slo, summarise_measured
from tandem.report.plots.chart import Chart
from tandem.report.plots.measured import measured_chart, sweep_chart
from tandem.report.record import MeasuredRequest
from tandem.report.tables import knee_sentence, measured_tables, sweep_table


@dataclass(frozen=True)
class Bench:
    """One benchmark, resolved: everything the runs need, nothing that changes."""

    options: BenchOptions
    report: ReportOptions
    endpoint: Endpoint
    points: list[LoadPoint]
    planned: list[Conversation]
    slo: Slo


@with_options
def bench(
    server: ServerOptions,
    options: BenchOptions,
    report: ReportOptions,
    loadgen: LoadgenOptions,
) -> None:
    """Measure a server: latency, throughput and goodput under a workload.

    Works with any OpenAI-compatible URL. Requests come at a rate, in a closed loop, or as recorded
    in a trace; a list of rates sweeps and shows where the server stops keeping up. --loadgen lets
    MLPerf's LoadGen set the pace.
    """
    if report.plot is not None:
        load_plotter(report.plot)
    require_folder(report.output, "--output")
    require_folder(report.records, "--records")
    resolved = Bench(
        options,
        report,
        Endpoint(server.url, server.api_key, server.timeout_s),
        options.points(),
        options.plan(),
        parse_slo(report.slo or ()),
    )
    started_utc = datetime.now(UTC).isoformat(timespec="seconds")
    settings = asdict(options) | {"slo": asdict(resolved.slo)}
    if loadgen.loadgen is None:
        loadgen.refuse_alone()
        model, runs = asyncio.run(_measure(resolved, server.model))
        _print_results(Console(), resolved, model, runs)
        good = any(run.summary.succeeded for run in runs)
    else:
        test = LoadgenBench(
            options, loadgen, report, resolved.endpoint, resolved.planned, resolved.slo
        )
        result = bench_with_loadgen(test, server.model)
        model, runs, good = result.model, [result.point], result.good
        settings |= {"loadgen": result.document()}
    if report.output is not None:
        server_facts = _server_facts(resolved, model)
        MeasuredResults(settings, server_facts, started_utc, runs).write(report.output)
    if report.records is not None:
        write_measured_records(report.records, runs)
    if report.plot is not None:
        save_chart(_chart(resolved, model, runs), report.plot)
    if not good:
        raise typer.Exit(1)


async def _measure(bench: Bench, name: str | None) -> tuple[ServedModel, list[SweepPoint]]:
    async with Client(bench.endpoint) as client:
        model = await client.choose_model(name)
        asking = await choose_asking(client, model, bench.options.prompts)
        warmup = plan_warmup(bench.options.load.warmup, bench.planned)
        runs = []
        for number, point in enumerate(bench.points):
            asker = Asker(client, asking, ContentSource(bench.options.load.seed, number))
            if number == 0 and warmup:
                await run_load(warmup, Pacing(False, len(warmup)), asker.send)
            records = await _run_point(bench, point, asker)
            runs.append(SweepPoint(point, summarise_measured(records, bench.slo), records))
        return model, runs


async def _run_point(bench: Bench, point: LoadPoint, asker: Asker) -> list[MeasuredRequest]:
    conversations = bench.options.at(point, bench.planned)
    # Without a rate, a trace brings its own instants unless a concurrency asks for a closed loop.
    open_loop = point.rate_rps is not None or point.concurrency is None
    pacing = Pacing(open_loop, point.concurrency)
    with progress_bars(bench.report.progress, MofNCompleteColumn()) as progress:
        total = sum(len(conversation.turns) for conversation in conversations)
        bar = progress.add_task(str(point), total=total)
        return await run_load(conversations, pacing, asker.send, lambda _: progress.advance(bar))


def _print_results(
    console: Console, bench: Bench, model: ServedModel, runs: list[SweepPoint]
) -> None:
    print_title(console, _title(bench, model), _subtitle(bench))
    if len(runs) == 1:
        for table in measured_tables(runs[0].summary, bench.slo):
            console.print(table)
            console.print()
    else:
        console.print(sweep_table(runs, knee(runs)))
        console.print(knee_sentence(runs, bench.slo), highlight=False)
        failures = sum((Counter(run.summary.failures) for run in runs), Counter())
        for reason, count in failures.items():
            console.print(f"{count} failed: {reason}", style="red", markup=False)
    for note in _notes(bench, runs):
        console.print(f"[yellow]note[/yellow] {note}", highlight=False)


def _notes(bench: Bench, runs: list[SweepPoint]) -> list[str]:
    prompts = bench.options.prompts
    shares_nothing = (
        bench.options.trace.trace is None
        and not prompts.shared_prefix_tokens
        and prompts.turns == 1
    )
    why = "although the workload shares nothing: it was asked before. Use another --seed."
    return [*(cache_note(runs, why) if shares_nothing else []), *late_note(runs)]


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


def _chart(bench: Bench, model: ServedModel, runs: list[SweepPoint]) -> Chart:
    title, subtitle = _title(bench, model), _subtitle(bench)
    if len(runs) == 1:
        return measured_chart(title, subtitle, runs[0].requests, bench.slo)
    return sweep_chart(title, subtitle, runs, bench.slo)


def _server_facts(bench: Bench, model: ServedModel) -> dict[str, Any]:
    return {
        "url": bench.endpoint.root_url,
        "model": model.id,
        "context_tokens": model.context,
        "vocabulary_tokens": model.vocabulary,
    }
