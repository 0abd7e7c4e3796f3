"""Tables for a terminal: a cluster's run, a server that clients measured, and a sweep of its loads.

Runs side by side are the comparison's; what is written to files the documents'.
"""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tandem.facts.fleet import Tier
from tandem.facts.slo import Slo
from tandem.report.measured import (
    ENOUGH_ATTAINMENT,
    SLOWDOWN_AT_KNEE,
    MeasuredSummary,
    SweepPoint,
    knee,
)
from tandem.report.statistics import Distribution, Latencies
from tandem.report.summary import Summary, Terms

_LATENCIES = (
    ("ttft", "TTFT (first token)"),
    ("tpot", "TPOT (each later token)"),
    ("itl", "ITL (gap between tokens)"),
    ("e2e", "E2E (whole answer)"),
)


def cluster_tables(summary: Summary, terms: Terms) -> list[Table]:
    """A cluster's run: totals, latencies, service classes, workers, transfers, why not served."""
    tables = [_cluster_totals(summary, terms), _latency_table(summary)]
    if summary.classes:
        tables.append(_class_table(summary))
    tables.append(_pool_table(summary))
    if any(entry.transfers for entry in summary.transfers):
        tables.append(_transfer_table(summary))
    if summary.reasons:
        table = _table("not served because", ("requests", "reason (# stands for numbers)"))
        for reason, count in summary.reasons.items():
            table.add_row(f"{count:,}", Text(reason))
        tables.append(table)
    return tables


def measured_tables(summary: MeasuredSummary, slo: Slo) -> list[Table]:
    """One load of a measured server: totals, latencies in milliseconds, and failures if any."""
    latencies = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    latencies.add_column("milliseconds", style="bold")
    for name in ("mean", "p50", "p90", "p99", "p99.9"):
        latencies.add_column(name, justify="right")
    for title, found in _measured(summary.latencies):
        values_ns = _mean_and_percentiles_ns(found)
        latencies.add_row(title, *(f"{value_ns / 1e6:,.2f}" for value_ns in values_ns))
    tables = [_named_figures(_measured_rows(summary, slo)), latencies]
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
            "/".join(_median_and_p99_ms(summary.latencies.ttft)),
            "/".join(_median_and_p99_ms(summary.latencies.tpot)),
            _median_and_p99_ms(summary.latencies.e2e)[1],
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


def short_seconds(duration_ns: float | None) -> str:
    """A duration with three digits and the unit that suits it."""
    if duration_ns is None:
        return "-"
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if duration_ns >= unit_ns:
            amount = duration_ns / unit_ns
            return f"{amount:,.0f} {unit}" if amount >= 1000 else f"{amount:.3g} {unit}"
    return f"{duration_ns:.0f} ns"


def _named_figures(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Each row a name, its figure, and the unit or what it is of."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _measured(latencies: Latencies) -> list[tuple[str, Distribution]]:
    """The latencies of which there are values, with their titles."""
    found = [(title, getattr(latencies, name)) for name, title in _LATENCIES]
    return [(title, values) for title, values in found if values is not None]


def _mean_and_percentiles_ns(found: Distribution) -> tuple[float, ...]:
    return (found.mean_ns, found.p50_ns, found.p90_ns, found.p99_ns, found.p999_ns)


def _median_and_p99_ms(found: Distribution | None) -> tuple[str, str]:
    if found is None:
        return ("-", "-")
    return (f"{found.p50_ns / 1e6:,.1f}", f"{found.p99_ns / 1e6:,.1f}")


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """All numbers to the right, but a last column of words."""
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if "reason" in name or not place else "right")
    return table


def _cluster_totals(summary: Summary, terms: Terms) -> Table:
    rows = (*_served_rows(summary, terms), *_work_rows(summary), *_bill_rows(summary))
    return _named_figures(rows)


def _served_rows(summary: Summary, terms: Terms) -> list[tuple[str, str, str]]:
    slo = str(terms.slo) or "none given: all that finished"
    both = summary.predictions.both
    predicted = []
    if both.predicted_to_keep:
        share = f"{both.kept / both.predicted_to_keep:.1%}"
        predicted.append(("calibration", share, f"as predicted: {summary.predictions.text}"))
    endings = ", ".join(f"{count:,} {name}" for name, count in summary.endings.items())
    return [
        ("requests", f"{summary.requests:,}", endings),
        ("duration", f"{summary.duration_s:,.1f}", "s, first arrival to last end"),
        ("goodput", f"{summary.goodput_rps:.3f}", f"requests/s within the SLO ({slo})"),
        ("", f"{summary.goodput_rps_per_device:.5f}", "requests/s per device"),
        ("attainment", f"{summary.attainment:.1%}", "of all requests within the SLO"),
        *predicted,
        ("output", f"{summary.output_tokens_per_s:,.0f}", "tokens/s"),
    ]


def _work_rows(summary: Summary) -> list[tuple[str, str, str]]:
    reuse = summary.reuse
    tiers = ", ".join(f"{tier} {reuse.hits[tier]:.1%}" for tier in Tier if reuse.hits[tier])
    rows = [
        (
            "prefix hits",
            f"{reuse.hit_ratio:.1%}",
            f"of the prompt tokens let in; {tiers or 'none'}",
        ),
        ("computed", f"{reuse.computed_tokens:,}", "prompt tokens"),
        ("wasted", f"{reuse.wasted_tokens:,}", "prompt tokens computed twice or for nothing"),
    ]
    if reuse.moved_tokens:
        share = f"{reuse.transfer_share_of_ttft:.1%}"
        rows.append(("KV transfer", share, "of the TTFT of requests whose KV moved"))
    if drafts := summary.drafts:
        share = f"tokens a draft; {drafts.kept:.0%} of {drafts.draft_tokens:,} draft tokens kept"
        if drafts.left_out:
            share += f"; {drafts.left_out:.0%} of all steps without"
        rows.append(("speculation", f"{drafts.tokens_a_draft:.2f}", share))
    if summary.preemptions or summary.resumptions:
        resumed = f"and {summary.resumptions:,} times another worker took over"
        rows.append(("preemptions", f"{summary.preemptions:,}", resumed))
    return rows


def _bill_rows(summary: Summary) -> list[tuple[str, str, str]]:
    bill = summary.bill
    rows = [("device hours", f"{bill.device_hours:,.2f}", "")]
    if bill.usd_per_million_output_tokens is not None and bill.usd:
        each = f"$, {bill.usd_per_million_output_tokens:,.2f} $ per million output tokens"
        rows.append(("cost", f"{bill.usd:,.2f}", each))
    if bill.joules_per_output_token is not None and bill.kilowatt_hours:
        each = f"kWh, {bill.joules_per_output_token:,.1f} J per output token"
        rows.append(("energy", f"{bill.kilowatt_hours:,.2f}", each))
    return rows


def _latency_table(summary: Summary) -> Table:
    table = _table("", ("latency", "mean", "p50", "p90", "p99", "p99.9", "max"))
    for title, found in _measured(summary.latencies):
        values_ns = (*_mean_and_percentiles_ns(found), found.max_ns)
        table.add_row(title, *(short_seconds(value_ns) for value_ns in values_ns))
    return table


def _class_table(summary: Summary) -> Table:
    columns = ("class", "requests", "within SLO", "rejected", "TTFT p99", "TPOT p99")
    table = _table("", columns)
    for name, entry in summary.classes.items():
        table.add_row(
            name,
            f"{entry.requests:,}",
            f"{entry.kept / entry.requests:.1%}",
            f"{entry.rejected:,}",
            short_seconds(None if entry.ttft is None else entry.ttft.p99_ns),
            short_seconds(None if entry.tpot is None else entry.tpot.p99_ns),
        )
    return table


def _pool_table(summary: Summary) -> Table:
    # What never happened needs no column.
    rare = [
        name
        for name in ("preemptions", "flips", "crashes")
        if any(getattr(pool, name) for pool in summary.pools)
    ]
    columns = ["workers on devices", "busy", "prefilling", "prompt tok", "output tok"]
    # What a class pays for workers of its own.
    priced = any(pool.classes and pool.usd for pool in summary.pools)
    if priced:
        columns.append("$/1M output tok")
    table = _table("", (*columns, *rare))
    for pool in summary.pools:
        whose = f" for {pool.classes}" if pool.classes else ""
        price = pool.usd / pool.decoded_tokens * 1e6 if pool.decoded_tokens else None
        table.add_row(
            f"{pool.workers} {pool.role} on {pool.devices} {pool.device}{whose}",
            f"{pool.busy:.1%}",
            f"{pool.prefill_busy:.1%}",
            f"{pool.prompt_tokens:,}",
            f"{pool.decoded_tokens:,}",
            *(["" if price is None else f"{price:,.2f}"] if priced else []),
            *(f"{getattr(pool, name):,}" for name in rare),
        )
    return table


def _transfer_table(summary: Summary) -> Table:
    table = _table("", ("transfers", "count", "not arrived", "GB", "GB/s each"))
    for entry in summary.transfers:
        table.add_row(
            entry.kind,
            f"{entry.transfers:,}",
            f"{entry.lost:,}",
            f"{entry.moved_bytes / 1e9:,.1f}",
            f"{entry.bytes_per_s / 1e9:,.2f}",
        )
    return table


def _measured_rows(summary: MeasuredSummary, slo: Slo) -> list[tuple[str, str, str]]:
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


def _failure_table(summary: MeasuredSummary) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("failed", style="bold red", justify="right")
    table.add_column("because", overflow="fold")
    for reason, count in summary.failures.items():
        table.add_row(str(count), Text(reason))
    return table
