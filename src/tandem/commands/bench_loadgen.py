"""`tandem bench --loadgen`: MLPerf's LoadGen sets the pace and judges; the requests are ours."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from tandem.bench.client import Client, RequestFailed
from tandem.bench.load import Asker, Pacing, Question, ask_and_record, run_load, start_clock
from tandem.bench.loadgen.logs import read_answers, read_summary
from tandem.bench.loadgen.queries import Queries, TaskQueries, WorkloadQueries
from tandem.bench.loadgen.settings import Mode
from tandem.bench.loadgen.system import SystemUnderTest
from tandem.bench.responses import ServedModel
from tandem.bench.tasks.chat import HttpChat
from tandem.bench.tasks.evaluation import Suite, calibrate, make_tasks
from tandem.bench.workload import ContentSource, plan_warmup
from tandem.commands.bench_asking import choose_asking
from tandem.commands.bench_options import LoadOptions
from tandem.commands.late_imports import part
from tandem.commands.loadgen_options import LoadgenBench
from tandem.commands.loadgen_result import Accuracy, LoadgenResult, print_result
from tandem.commands.terminal import progress_bars
from tandem.facts.errors import InvalidConfiguration
from tandem.kv.threads import SupervisedThread
from tandem.report.measured import SweepPoint, summarise_measured
from tandem.report.record import MeasuredRequest

_INTERRUPTED = 130


def bench_with_loadgen(bench: LoadgenBench, name: str | None) -> LoadgenResult:
    """Runs the test and prints what came of it. Ctrl-C ends the process as it ends other verbs:
    LoadGen's logs then hold no result."""
    bench.check()
    try:
        library = part("LoadGen")
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            "--loadgen needs MLPerf's LoadGen: pip install tandem[loadgen]"
        ) from error
    logs = bench.settings("").logs
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfiguration(f"--loadgen-logs: {logs}: {error.strerror}") from error
    try:
        result = asyncio.run(_measure(bench, name, library))
    except KeyboardInterrupt as interrupt:
        typer.echo(f"tandem: interrupted, without a result; LoadGen's logs: {logs}", err=True)
        raise typer.Exit(_INTERRUPTED) from interrupt
    print_result(Console(), bench.endpoint.root_url, result)
    return result


async def _measure(bench: LoadgenBench, name: str | None, library: Any) -> LoadgenResult:
    async with Client(bench.endpoint) as client:
        model = await client.choose_model(name)
        settings, load = bench.settings(model.id), bench.load()
        native = library.make_settings(settings)
        queries = await _choose_queries(bench, client, model)
        if settings.mode is Mode.ACCURACY:
            await _require_token_ids(client, queries)
        with progress_bars(bench.report.progress, MofNCompleteColumn()) as progress:
            system = SystemUnderTest(
                client,
                queries,
                library.LoadgenReports(),
                start_clock(),
                load.concurrency,
                _Watch(progress, settings.scenario),
            )
            test = partial(library.run_test, native, settings.logs, len(queries))
            await system.run(test, _start_thread)
        records = sorted(system.records, key=lambda record: record.serial)
        point = SweepPoint(load, summarise_measured(records, bench.slo), records)
        accuracy = None
        if settings.mode is Mode.ACCURACY:
            accuracy = await _check_answers(client, model, queries, settings.logs)
        return LoadgenResult(model, settings, read_summary(settings.logs), point, accuracy)


def _start_thread(work: Callable[[], None], failed: Callable[[Exception], None]) -> None:
    SupervisedThread("LoadGen", work, failed).start()


class _Watch:
    """Shows how many queries ended, and tells of the first that failed: a test may be long, and
    LoadGen does not end it for that."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._bar = progress.add_task(title, total=None)
        self._failed = False

    def __call__(self, record: MeasuredRequest) -> None:
        self._progress.advance(self._bar)
        if not record.finished and not self._failed:
            self._failed = True
            typer.echo(f"tandem: a query failed, the test goes on: {record.reason}", err=True)


async def _choose_queries(bench: LoadgenBench, client: Client, model: ServedModel) -> Queries:
    """The workload, after its warm-up, or tasks."""
    load, accuracy = bench.options.load, bench.loadgen.loadgen_mode is Mode.ACCURACY
    if suites := bench.suites():
        return await _make_tasks(suites, load, client, model)
    asking = await choose_asking(client, model, bench.options.prompts, token_ids=accuracy)
    asker = Asker(client, asking, ContentSource(load.seed))
    if warmup := plan_warmup(load.warmup, bench.planned):
        await run_load(warmup, Pacing(False, len(warmup)), asker.send)
    requests = [turn for conversation in bench.planned for turn in conversation.turns]
    return WorkloadQueries(asker, asking.path, requests)


async def _make_tasks(
    suites: Sequence[Suite], load: LoadOptions, client: Client, model: ServedModel
) -> TaskQueries:
    count_tokens = await calibrate(HttpChat(client, model.id))
    tasks = [
        (suite, make_tasks(suite, load.num_prompts or suite.samples, load.seed, count_tokens))
        for suite in suites
    ]
    return TaskQueries(model.id, load.seed, tasks)


async def _require_token_ids(client: Client, queries: Queries) -> None:
    """Raises `RequestFailed` where the server answers in text alone: the accuracy log has ids."""
    ids: list[int] = []
    record = MeasuredRequest("probe", 0, -1, *queries.lengths(0))
    question = Question(queries.path, {**queries.body(0), "max_tokens": 1})
    await ask_and_record(client, question, record, start_clock(), ids.extend)
    if not ids:
        raise RequestFailed(
            "the server sends no token ids (return_token_ids), which LoadGen's accuracy log holds"
        )


async def _check_answers(
    client: Client, model: ServedModel, queries: Queries, logs: Path
) -> Accuracy:
    """By nothing but LoadGen's accuracy log, and the server's tokenizer."""
    answers = read_answers(logs)
    logged = sum(1 for index in range(len(queries)) if answers.get(index))
    if not isinstance(queries, TaskQueries):
        return Accuracy(len(queries), logged)
    special = await client.special_ids()
    texts: list[str | None] = []
    for index in range(len(queries)):
        ids = [each for each in answers.get(index, ()) if each not in special]
        texts.append(await client.text_of(model.id, ids) if ids else None)
    return Accuracy(len(queries), logged, queries.judge(texts))
