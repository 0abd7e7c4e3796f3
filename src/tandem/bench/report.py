"""A benchmark's tables for the terminal: one run in full, or one row for each point of a sweep."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tandem.bench.metrics import Distribution, Summary
from tandem.bench.sweep import ENOUGH_ATTAINMENT, SLOWDOWN_AT_KNEE, SweepPoint, knee
from tandem.facts.slo import Slo

_LATENCIES = (
    ("ttft", "TTFT (first token)"),
    ("tpot", "TPOT (each later token)"),
    ("itl", "ITL (gap between tokens)"),
    ("e2e", "E2E (whole answer)"),
)


def run_tables(summary: Summary, slo: Slo) -> list[Table]:
    """The totals, then the latencies in milliseconds, then the failures if there are any."""
    totals = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    totals.add_column(style="bold")
    totals.add_column(justify="right")
    totals.add_column(style="dim")
    for row in _totals(summary, slo):
        totals.add_row(*row)
    latencies = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    latencies.add_column("milliseconds", style="bold")
    for name in ("mean", "p50", "p90", "p99", "p99.9"):
        latencies.add_column(name, justify="right")
    for field, title in _LATENCIES:
        found: Distribution | None = getattr(summary.latencies, field)
        if found is not None:
            values = (found.mean_s, found.p50_s, found.p90_s, found.p99_s, found.p999_s)
            latencies.add_row(title, *(f"{value * 1e3:,.2f}" for value in values))
    tables = [totals, latencies]
    if summary.failures:
        tables.append(_failure_table(summary))
    return tables


def sweep_table(points: Sequence[SweepPoint], best: SweepPoint | None) -> Table:
    """One row a load; the knee's row is bold."""
    with_goodput = any(point.summary.goodput_rps is not None for point in points)
    names = ["load", "req/s", "tok/s", "TTFT p50/p99", "TPOT p50/p99", "E2E p99"]
    names += [*(["goodput", "in SLO"] if with_goodput else []), "failed"]
    caption = "tok/s counts output tokens; latencies in ms"
    table = Table(box=None, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name == "load" else "right")
    for point in points:
        summary = point.summary
        row = [
            str(point.load),
            f"{summary.request_throughput_rps:.2f}",
            f"{summary.output_throughput_tps:,.0f}",
            "/".join(_pair(summary.latencies.ttft)),
            "/".join(_pair(summary.latencies.tpot)),
            _pair(summary.latencies.e2e)[1],
        ]
        if with_goodput:
            row += [f"{summary.goodput_rps or 0:.2f}", f"{summary.attainment or 0:.1%}"]
        row.append(str(summary.requests - summary.succeeded))
        table.add_row(*row, style="bold" if point is best else None)
    return table


def knee_sentence(points: Sequence[SweepPoint], slo: Slo) -> str:
    """What the sweep found, in words."""
    rule = (
        f"the median TTFT stays within {SLOWDOWN_AT_KNEE:g} times that of the lowest load"
        if slo.empty
        else f"{ENOUGH_ATTAINMENT:.0%} of the requests keep {slo}"
    )
    best = knee(points)
    if best is None:
        return f"At none of these loads it holds that {rule}."
    if best.load.value == max(point.load.value for point in points):
        return f"No knee up to {best.load}: still {rule}. Try higher loads."
    return f"Knee: {best.load}, the highest load at which {rule}."


def _totals(summary: Summary, slo: Slo) -> list[tuple[str, str, str]]:
    rows = [
        ("requests", f"{summary.succeeded}", f"of {summary.requests} succeeded"),
        ("duration", f"{summary.duration_s:.2f}", "s"),
        ("request throughput", f"{summary.request_throughput_rps:.2f}", "requests/s"),
        ("output throughput", f"{summary.output_throughput_tps:,.1f}", "tokens/s"),
        ("total throughput", f"{summary.total_throughput_tps:,.1f}", "tokens/s, prompts included"),
        ("prompt tokens", f"{summary.prompt_tokens:,}", ""),
        ("output tokens", f"{summary.output_tokens:,}", ""),
    ]
    if summary.cached_share is not None:
        rows.append(("from prefix cache", f"{summary.cached_share:.1%}", "of the prompt tokens"))
    if summary.goodput_rps is not None and summary.attainment is not None:
        rows.append(("goodput", f"{summary.goodput_rps:.2f}", "requests/s within the SLO"))
        rows.append(("within the SLO", f"{summary.attainment:.1%}", str(slo)))
    return rows


def _failure_table(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("failed", style="bold red", justify="right")
    table.add_column("because", overflow="fold")
    for reason, count in summary.failures.items():
        table.add_row(str(count), Text(reason))
    return table


def _pair(found: Distribution | None) -> tuple[str, str]:
    if found is None:
        return ("-", "-")
    return (f"{found.p50_s * 1e3:,.1f}", f"{found.p99_s * 1e3:,.1f}")
