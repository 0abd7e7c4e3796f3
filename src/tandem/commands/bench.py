"""`tandem bench`: drives any OpenAI-compatible server with a workload and reports how it did."""

import asyncio
from datetime import UTC, datetime

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tandem.bench.asking import COMPLETION_PATH, Asker, Asking
from tandem.bench.client import Client, Endpoint, RequestFailed
from tandem.bench.load import Pacing, run_load
from tandem.bench.responses import ServedModel
from tandem.bench.workload import Content, ContentSource, Segment, plan_warmup
from tandem.commands.bench_options import BenchOptions, ReportOptions
from tandem.commands.bench_report import Bench, chart_of, print_results, server_of, settings_of
from tandem.commands.options import ServerOptions, with_options
from tandem.facts.errors import InvalidConfiguration
from tandem.report.documents import MeasuredResults, require_folder, write_measured_records
from tandem.report.measured import LoadPoint, SweepPoint, summarise_measured
from tandem.report.plots.libraries import load_plotter, save_chart
from tandem.report.record import MeasuredRequest
from tandem.report.slo import parse_slo

# Enough different words that some of their ids lie high in any vocabulary.
_VOCABULARY_SAMPLE_WORDS = 2000


@with_options
def bench(
    server: ServerOptions,
    options: BenchOptions,
    report: ReportOptions,
) -> None:
    """Measure a server: latency, throughput and goodput under a workload.

    Works with any OpenAI-compatible URL. Requests come at a rate, in a closed loop, or as recorded
    in a trace; a list of rates sweeps and shows where the server stops keeping up.
    """
    draw = None if report.plot is None else load_plotter(report.plot)
    require_folder(report.output, "--output")
    require_folder(report.records, "--records")
    resolved = Bench(
        options,
        report,
        Endpoint(server.url, server.api_key, server.timeout_s),
        options.points(),
        options.plan(),
        parse_slo(report.slo or ()),
        Console(stderr=True),
    )
    started_utc = datetime.now(UTC).isoformat(timespec="seconds")
    model, runs = asyncio.run(_measure(resolved, server.model))
    print_results(Console(), resolved, model, runs)
    if report.output is not None:
        server_facts = server_of(resolved, model)
        MeasuredResults(settings_of(resolved), server_facts, started_utc, runs).write(report.output)
    if report.records is not None:
        write_measured_records(report.records, runs)
    if draw is not None and report.plot is not None:
        save_chart(draw, chart_of(resolved, model, runs), report.plot)
    if not any(run.summary.succeeded for run in runs):
        raise typer.Exit(1)


async def _measure(bench: Bench, name: str | None) -> tuple[ServedModel, list[SweepPoint]]:
    async with Client(bench.endpoint) as client:
        model = await client.choose_model(name)
        prompts = bench.options.prompts
        vocabulary_tokens = None
        if not prompts.text and prompts.endpoint == COMPLETION_PATH:
            vocabulary_tokens = prompts.vocabulary or await _ask_vocabulary(client, model)
        asking = Asking(
            model.id,
            prompts.endpoint,
            vocabulary_tokens,
            prompts.ignore_eos,
            prompts.temperature,
        )
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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=bench.console,
        transient=True,
        disable=not (bench.report.progress and bench.console.is_terminal),
    ) as progress:
        total = sum(len(conversation.turns) for conversation in conversations)
        bar = progress.add_task(str(point), total=total)
        return await run_load(conversations, pacing, asker.send, lambda _: progress.advance(bar))


async def _ask_vocabulary(client: Client, model: ServedModel) -> int:
    """The vocabulary size if the server tells it, else one above the highest id that a sample of
    words gets: too small at worst, and every id below it is valid."""
    if model.vocabulary:
        return model.vocabulary
    sample = (Segment((Content.WARMUP, 0), _VOCABULARY_SAMPLE_WORDS),)
    words = ContentSource(0).text(sample)
    try:
        ids = await client.token_ids(model.id, words)
    except RequestFailed as failure:
        raise InvalidConfiguration(
            f"the server does not tell its vocabulary ({failure}); give --vocabulary or --text"
        ) from failure
    return max(ids, default=1) + 1
