"""How the summary of one run is told: as canonical JSON, and as tables for a terminal."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from tandem.facts.fleet import Tier
from tandem.twin.distribution import Distribution
from tandem.twin.summary import Summary, Terms

FORMAT_VERSION = 1
# Figures beyond this are noise of binary fractions, not knowledge.
_DIGITS = 9
_LATENCIES = (
    ("ttft", "TTFT (first token)"),
    ("tpot", "TPOT (each later token)"),
    ("itl", "ITL (gap between tokens)"),
    ("e2e", "E2E (whole answer)"),
)


def canonical_json(document: object) -> bytes:
    """One line with sorted keys and floats of nine significant digits: equal values, equal bytes.
    Instants and durations in nanoseconds become seconds, in name and value."""
    text = json.dumps(_plain(document), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        value = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, Mapping):
        return dict(_entry(str(key), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _entry(key: str, value: Any) -> tuple[str, Any]:
    if key.endswith("_ns") and isinstance(value, int | float):
        # -1 stands for an instant that never came.
        return f"{key.removesuffix('_ns')}_s", None if value < 0 else _plain(value / 1e9)
    return key, _plain(value)


def run_tables(summary: Summary, terms: Terms) -> list[Table]:
    """One run in full: what was kept, latencies, classes, workers, transfers, reasons."""
    tables = [_totals_table(summary, terms), _latency_table(summary)]
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


def short_seconds(duration_ns: float | None) -> str:
    """A duration with three digits and the unit that suits it."""
    if duration_ns is None:
        return "-"
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if duration_ns >= unit_ns:
            amount = duration_ns / unit_ns
            return f"{amount:,.0f} {unit}" if amount >= 1000 else f"{amount:.3g} {unit}"
    return f"{duration_ns:.0f} ns"


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """All numbers to the right, but a last column of words."""
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if "reason" in name or not place else "right")
    return table


def _totals_table(summary: Summary, terms: Terms) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in (*_served_rows(summary, terms), *_work_rows(summary), *_bill_rows(summary)):
        table.add_row(*row)
    return table


def _served_rows(summary: Summary, terms: Terms) -> list[tuple[str, str, str]]:
    slo = str(terms.slo) or "no SLO: all that finished"
    endings = ", ".join(f"{count:,} {name}" for name, count in summary.endings.items())
    return [
        ("requests", f"{summary.requests:,}", endings),
        ("duration", f"{summary.duration_s:,.1f}", "s, first arrival to last end"),
        ("goodput", f"{summary.goodput_rps:.3f}", f"requests/s within the SLO ({slo})"),
        ("", f"{summary.goodput_rps_per_device:.5f}", "requests/s per device"),
        ("attainment", f"{summary.attainment:.1%}", "of all requests within the SLO"),
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
    if summary.preemptions or summary.resumptions:
        told = f"and {summary.resumptions:,} times another worker took over"
        rows.append(("preemptions", f"{summary.preemptions:,}", told))
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
    for name, title in _LATENCIES:
        found: Distribution | None = getattr(summary.latencies, name)
        if found is not None:
            ranks = (found.p50_ns, found.p90_ns, found.p99_ns, found.p999_ns, found.max_ns)
            table.add_row(title, *(short_seconds(value) for value in (found.mean_ns, *ranks)))
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
    columns = ("workers on devices", "busy", "prefilling", "prompt tok", "output tok")
    table = _table("", (*columns, *rare))
    for pool in summary.pools:
        table.add_row(
            f"{pool.workers} {pool.role} on {pool.devices} {pool.device}",
            f"{pool.busy:.1%}",
            f"{pool.prefill_busy:.1%}",
            f"{pool.prompt_tokens:,}",
            f"{pool.decoded_tokens:,}",
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
