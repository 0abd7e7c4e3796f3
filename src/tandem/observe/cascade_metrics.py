"""Prometheus metrics of a model cascade."""

from collections.abc import Iterable
from enum import StrEnum

from tandem.facts.metrics import MetricFamily
from tandem.observe.registry import ModelRegistry


class Escalation(StrEnum):
    """Why the large model answered: the small one was not sure enough, had no room, cannot run the
    request (it does not fit its context or vocabulary), or failed at it."""

    CONFIDENCE = "confidence"
    OVERLOAD = "overload"
    UNFIT = "unfit"
    FAILED = "failed"

    @property
    def repeatable(self) -> bool:
        """Whether the same request would be passed on again."""
        return self in (Escalation.CONFIDENCE, Escalation.UNFIT)


class CascadeMetrics:
    """Requests by the model that answered them, under the name that the cascade is served as."""

    def __init__(self, model_name: str) -> None:
        self._registry = ModelRegistry(model_name)
        self._small, self._large = self._registry.counters(
            "cascade_requests", "Requests by the model that answered", "outcome", ("small", "large")
        )
        counters = self._registry.counters(
            "cascade_escalations",
            "Requests that the large model answered, by reason",
            "reason",
            Escalation,
        )
        self._escalations = dict(zip(Escalation, counters, strict=True))

    def answered(self, escalation: Escalation | None) -> None:
        """By the small model (None), or by the large one for that reason."""
        if escalation is None:
            self._small.inc()
            return
        self._large.inc()
        self._escalations[escalation].inc()

    def families(self) -> Iterable[MetricFamily]:
        """All metrics as they are at this moment."""
        return self._registry.families()
