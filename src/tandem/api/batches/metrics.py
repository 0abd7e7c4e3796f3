"""Prometheus metrics of files and batches: what the store holds, and how far its batches are."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from tandem.api.batches.runner import BatchRunner
from tandem.policy.batches import BatchStatus


def batch_families(runner: BatchRunner, model_name: str) -> Iterator[Metric]:
    """At this moment. Requests are those of batches that are open."""
    store, active = runner.store, list(runner.active)
    statuses = Counter(each.status for each in store.batches.values())
    yield _gauge(
        "batches",
        "Batches that the store holds, by status",
        model_name,
        {status.value: statuses[status] for status in BatchStatus},
        "status",
    )
    counts = [each.counts for each in active]
    yield _gauge(
        "batch_requests",
        "Requests of batches that have begun and not ended, by state",
        model_name,
        {
            "waiting": sum(len(each.waiting) for each in active),
            "running": sum(len(each.running) for each in active),
            "completed": sum(each.completed for each in counts),
            "failed": sum(each.failed for each in counts),
        },
        "state",
    )
    held = {"": len(store.files)}
    yield _gauge("batch_files", "Files that the store of batches holds", model_name, held)
    held = {"": store.held_bytes}
    yield _gauge("batch_file_bytes", "Bytes of the files of batches", model_name, held)


def _gauge(
    name: str, text: str, model_name: str, values: dict[str, int], label: str = ""
) -> Metric:
    names = ("model_name", label) if label else ("model_name",)
    metric = GaugeMetricFamily(name, text, labels=names)
    for each, value in values.items():
        metric.add_metric((model_name, each) if label else (model_name,), value)
    return metric
