"""Metrics of generating calls: what they ask for that no single sequence of theirs shows."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram, Metric

CHOICES = (1, 2, 5, 10, 20, 50)


class CallMetrics:
    """Of the calls to the model of that name."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._choices = Histogram(
            "request_params_n",
            "Answers asked for to a prompt",
            ("model_name",),
            buckets=CHOICES,
            registry=self._registry,
        ).labels(model_name)

    def call_began(self, prompts: int, choices: int) -> None:
        """One call, of so many prompts with so many answers each."""
        for _ in range(prompts):
            self._choices.observe(choices)

    def families(self) -> Iterable[Metric]:
        """All of them at this moment."""
        return self._registry.collect()
