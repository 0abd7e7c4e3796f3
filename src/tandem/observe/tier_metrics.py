"""What the slower tiers of workers and the processes of the shared pool did, as Prometheus metrics;
`owner` is the worker or process, `tier` where it keeps the blocks."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tandem.facts.kv_tiers import TierFigures
from tandem.messages.gateway import ClusterStatus

Read = Callable[[TierFigures], float]

_GAUGES: tuple[tuple[str, str, Read], ...] = (
    ("kv_tier_blocks", "KV blocks in the tier", lambda t: t.blocks),
    ("kv_tier_capacity_blocks", "KV blocks that it has room for", lambda t: t.capacity_blocks),
    ("kv_tier_on", "1 while the tier is used, 0 while it loses or fails", lambda t: t.on),
    (
        "kv_tier_fetch_seconds_per_token",
        "Measured when fetching from the tier",
        lambda t: t.fetch_s_per_token,
    ),
    (
        "kv_tier_compute_seconds_per_token",
        "Measured when computing the same",
        lambda t: t.compute_s_per_token,
    ),
)
_TOTALS: tuple[tuple[str, str, Read], ...] = (
    ("kv_tier_stored_blocks", "KV blocks written to the tier", lambda t: t.stored_blocks),
    ("kv_tier_fetched_blocks", "KV blocks fetched from it", lambda t: t.fetched_blocks),
    ("kv_tier_missed_blocks", "KV blocks that were not there", lambda t: t.missed_blocks),
    ("kv_tier_spoilt_blocks", "KV blocks that failed their check", lambda t: t.corrupt_blocks),
    ("kv_tier_failures", "Reads and writes that had a problem", lambda t: t.failures),
)


def tier_metrics(status: ClusterStatus, model_name: str) -> Iterator[Metric]:
    """All tiers of all that this gateway knows."""
    owned = [(worker.worker, each) for worker in status.workers for each in worker.tiers]
    owned += [(node.node, each) for node in status.pool_nodes for each in node.tiers]
    if not owned:
        return
    labels = ["model_name", "owner", "tier"]
    for name, text, read in _GAUGES:
        gauge = GaugeMetricFamily(f"tandem:{name}", text, labels=labels)
        for owner, figures in owned:
            gauge.add_metric([model_name, owner, figures.tier.value], read(figures))
        yield gauge
    for name, text, read in _TOTALS:
        counter = CounterMetricFamily(f"tandem:{name}", text, labels=labels)
        for owner, figures in owned:
            counter.add_metric([model_name, owner, figures.tier.value], read(figures))
        yield counter
