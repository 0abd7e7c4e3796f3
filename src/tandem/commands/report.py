"""`tandem report`: what a benchmark measured, or a gateway's journal recorded, as one HTML file."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tandem.commands.options import flag, flags, with_options
from tandem.commands.recorded_history import read_history
from tandem.commands.recorded_runs import recorded_run, recorded_shape
from tandem.commands.terminal import plain_table, terminal
from tandem.facts.errors import InvalidConfiguration
from tandem.report.documents import require_folder, write_file
from tandem.report.html import HtmlReport
from tandem.report.measured import knee
from tandem.report.measured_file import ReadResults, read_results
from tandem.report.plots.measured import measured_chart, sweep_chart
from tandem.report.plots.simulated import timeline
from tandem.report.record import RequestRecord
from tandem.report.tables import (
    cluster_tables,
    knee_sentence,
    measured_tables,
    short_seconds,
    sweep_table,
)

SLOWEST = 20


@flags
class ReportOptions:
    """Of what, and where it is written."""

    output: Path = flag("The file to write.", "--output", "-o", default=Path("report.html"))
    last: float | None = flag(
        "Of a journal: only requests of the last so many seconds. (default: all)",
        default=None,
        metavar="SECONDS",
        min=0.001,
        show_default=False,
    )


@with_options
def report_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="JOURNAL|BENCH",
            help="A gateway's journal (a folder or a file of it), or what `tandem bench --output` "
            "wrote.",
        ),
    ],
    options: ReportOptions,
) -> None:
    """Write a report of a recorded or measured load: one HTML file that opens without a network,
    with pictures over time, latencies, classes, workers, why requests were not served, and the
    slowest of them."""
    require_folder(options.output, "--output")
    if source.suffix == ".json" and source.is_file():
        if options.last is not None:
            raise InvalidConfiguration("--last: a benchmark is reported as a whole; leave it out")
        report = _of_results(read_results(source))
    else:
        report = _of_journal(source, options.last)
    write_file(options.output, report.html().encode(), "--output")
    terminal().print(f"{options.output}: {report.title}", markup=False, soft_wrap=True)


def _of_results(read: ReadResults) -> HtmlReport:
    title = f"{read.model} at {read.url}"
    notes = [f"measured {read.started_utc}", read.settings]
    if len(read.runs) == 1:
        (run,) = read.runs
        chart = measured_chart(title, "", run.requests, read.slo)
        return HtmlReport(title, notes, [chart], measured_tables(run.summary, read.slo))
    notes.append(knee_sentence(read.runs, read.slo))
    chart = sweep_chart(title, "", read.runs, read.slo)
    return HtmlReport(title, notes, [chart], [sweep_table(read.runs, knee(read.runs))])


def _of_journal(source: Path, last_s: float | None) -> HtmlReport:
    with TemporaryDirectory(prefix="tandem-report-") as folder:
        read = read_history(source, Path(folder))
        cluster, history, names = read.cluster, read.history, ", ".join(read.names)
        if last_s is not None:
            history.keep_last(last_s)
        if not history.requests:
            when = "" if last_s is None else f" in the last {last_s:g} s"
            raise InvalidConfiguration(f"{names}: no request was recorded{when}")
        recorded = recorded_run(recorded_shape(cluster, cluster, history), cluster.slo, history)
    title = f"{names}: {len(history.requests):,} requests in {history.seconds:,.1f} s"
    chart = timeline(recorded.record, recorded.summary, recorded.terms.slo, "")
    tables = [
        *cluster_tables(recorded.summary, recorded.terms),
        _slowest(recorded.record.requests),
    ]
    return HtmlReport(title, [], [chart], tables)


def _slowest(requests: list[RequestRecord]) -> Table:
    """By their first token."""
    figures = ("came at", "prompt", "cached", "answer", "TTFT", "TPOT")
    table = plain_table("request", "class", "prefill", "decode", *figures, right=figures)
    table.title = "the slowest first tokens"
    begun = [each for each in requests if each.ttft_s is not None]
    for each in sorted(begun, key=lambda request: -(request.ttft_s or 0.0))[:SLOWEST]:
        table.add_row(
            Text(each.request_id),
            Text(each.service_class),
            Text(each.prefill_worker),
            Text(each.decode_worker),
            f"{each.arrival_ns / 1e9:,.1f} s",
            f"{each.prompt_tokens:,}",
            f"{sum(each.reused_tokens.values()):,}",
            f"{each.emitted_tokens:,}",
            _duration(each.ttft_s),
            _duration(each.tpot_s),
        )
    return table


def _duration(seconds: float | None) -> str:
    return short_seconds(None if seconds is None else seconds * 1e9)
