"""Makes Prometheus metrics of one model, all with the same prefix and label."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
TOKENS = tuple(float(1 << power) for power in range(18))


@dataclass(frozen=True)
class _Total(Collector):
    name: str
    text: str
    model_name: str
    read: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self.name, self.text, labels=["model_name"])
        family.add_metric([self.model_name], self.read())
        yield family


class ModelRegistry:
    """Metrics named `tandem:…` and labelled with the model's name."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read when somebody asks."""
        gauge = Gauge(f"tandem:{name}", text, ["model_name"], registry=self._registry)
        gauge.labels(self._model_name).set_function(read)

    def counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"tandem:{name}", text, ["model_name"], registry=self._registry)
        return counter.labels(self._model_name)

    def total(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A counter that somebody else counts; it is read when somebody asks."""
        self._registry.register(_Total(f"tandem:{name}", text, self._model_name, read))

    def add(self, collector: Collector) -> None:
        """Metrics that somebody else makes when somebody asks."""
        self._registry.register(collector)

    def counters(self, name: str, text: str, label: str, values: list[str]) -> dict[str, Counter]:
        """One counter for each value of a label, all of them there from the start."""
        names = ["model_name", label]
        counter = Counter(f"tandem:{name}", text, names, registry=self._registry)
        return {value: counter.labels(self._model_name, value) for value in values}

    def histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        full_name = f"tandem:{name}"
        histogram = Histogram(
            full_name, text, ["model_name"], buckets=buckets, registry=self._registry
        )
        return histogram.labels(self._model_name)

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)
