"""The registry of one model's Prometheus metrics, all of them labelled with the model's name."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from tandem.facts.metrics import Figures, Kind

Labelled = TypeVar("Labelled", Counter, Gauge, Histogram)
MODEL_LABEL = "model_name"
SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKENS = tuple(float(1 << power) for power in range(18))
GAUGE: Kind = "gauge"
COUNTER: Kind = "counter"


class ModelRegistry:
    """Metrics of one model."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self._registry = CollectorRegistry()

    def counter(self, name: str, text: str) -> Counter:
        counter = Counter(name, text, (MODEL_LABEL,), registry=self._registry)
        return counter.labels(self.model_name)

    def counters(self, name: str, text: str, label: str, values: Iterable[str]) -> list[Counter]:
        """One counter for each value of a label, all of them there from the start."""
        counter = Counter(name, text, (MODEL_LABEL, label), registry=self._registry)
        return [counter.labels(self.model_name, value) for value in values]

    def histogram(self, name: str, text: str, buckets: Sequence[float] = SECONDS) -> Histogram:
        histogram = Histogram(name, text, (MODEL_LABEL,), buckets=buckets, registry=self._registry)
        return histogram.labels(self.model_name)

    def family_of(
        self, kind: type[Labelled], name: str, text: str, labels: Sequence[str], **more: Any
    ) -> Labelled:
        """Counters, gauges or histograms, one for each combination of values of these labels."""
        return kind(name, text, labels, registry=self._registry, **more)

    def figure(self, kind: Kind, name: str, text: str, value: float) -> Figures:
        """A metric of the model as it is at this moment."""
        return Figures(kind, name, text, (MODEL_LABEL,), [((self.model_name,), value)])

    def families(self) -> Iterable[Metric]:
        """All metrics that are counted here, as they are at this moment."""
        return self._registry.collect()
