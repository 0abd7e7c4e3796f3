"""How slower tiers look in a terminal: what they hold, what came out of them, which are off."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from tandem.facts.kv_tiers import TierFigures
from tandem.messages.gateway import ClusterStatus, PoolNodeStatus, WorkerStatus

_NUMBERS = ("blocks", "of", "stored", "fetched", "missed", "spoilt", "us a token")


def tiers_table(workers: Sequence[WorkerStatus], nodes: Sequence[PoolNodeStatus]) -> Table | None:
    """A row for each tier of each worker and process of the shared pool; None where there are
    none."""
    rows = list(_rows(workers, nodes))
    if not rows:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("KV kept by", "in", "state"):
        table.add_column(name, no_wrap=name != "state")
    for name in _NUMBERS:
        table.add_column(name, justify="right")
    for name, place, figures in rows:
        state = "on" if figures.on else f"[yellow]off: {figures.reason}[/yellow]"
        if figures.failures:
            state += f" [red]({figures.failures:,} failed)[/red]"
        table.add_row(name, place, state, *_numbers(figures))
    return table


def pool_nodes_of(told: Sequence[ClusterStatus]) -> list[PoolNodeStatus]:
    """Every process of the shared pool once, by name."""
    by_name = {node.node: node for status in told for node in status.pool_nodes}
    return [by_name[name] for name in sorted(by_name)]


def _rows(
    workers: Sequence[WorkerStatus], nodes: Sequence[PoolNodeStatus]
) -> Iterator[tuple[str, str, TierFigures]]:
    for worker in workers:
        for figures in worker.tiers:
            yield worker.worker, _PLACES[figures.tier.value], figures
    for node in nodes:
        for figures in node.tiers:
            yield node.node, _PLACES_OF_A_NODE.get(figures.tier.value, "shared"), figures


# What a process of the pool keeps behind its memory may be a disk or a server.
_PLACES = {"device": "device", "host": "memory", "disk": "disk", "remote": "shared pool"}
_PLACES_OF_A_NODE = {"host": "memory", "disk": "disk or Redis"}


def _numbers(figures: TierFigures) -> tuple[str, ...]:
    room = f"{figures.capacity_blocks:,}" if figures.capacity_blocks else ""
    pace = f"{figures.fetch_s_per_token * 1e6:,.1f}" if figures.fetch_s_per_token else "-"
    return (
        f"{figures.blocks:,}" if room else "",
        room,
        f"{figures.stored_blocks:,}",
        f"{figures.fetched_blocks:,}",
        f"{figures.missed_blocks:,}",
        f"{figures.spoilt_blocks:,}",
        pace,
    )
