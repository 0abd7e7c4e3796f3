"""The page of all metrics of a server: families of several sources as one text, under the prefix
that the operator chose, in the Prometheus text format or in OpenMetrics, as who scrapes accepts."""

import math
from collections.abc import Iterable
from itertools import chain

from prometheus_client import Metric, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tandem.facts.serving import MetricFamily

_TEXT, _OPENMETRICS = "text/plain", "application/openmetrics-text"
PAGE_TYPES = (_TEXT, _OPENMETRICS)
_TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ANYTHING = ("*/*", "text/*")
# Reads this process's figures when it is asked; registered nowhere.
_PROCESS = ProcessCollector(registry=None)


class _Families(Collector):
    """Families as the writers of `prometheus_client` want them: `own` ones get the prefix. Where
    several of these have one name they are one family with the samples of all."""

    def __init__(self, own: Iterable[MetricFamily], prefix: str, others: Iterable[Metric]) -> None:
        self._own: dict[str, Metric] = {}
        self._others = others
        for each in own:
            name = f"{prefix}:{each.name}"
            joined = self._own.setdefault(name, Metric(name, each.documentation, each.type))
            joined.samples += [s._replace(name=f"{prefix}:{s.name}") for s in each.samples]

    def collect(self) -> Iterable[Metric]:
        return chain(self._own.values(), self._others)


def metrics_page(
    own: Iterable[MetricFamily],
    *,
    prefix: str,
    accept: str = "",
    others: Iterable[Metric] = (),
) -> tuple[bytes, str]:
    """The page with its content type, for who sent that `Accept`. The `others`, and the figures of
    this process, have names that are the same everywhere, without the prefix."""
    collector = _Families(own, prefix, chain(others, _PROCESS.collect()))
    if prefers_openmetrics(accept):
        # No name of ours needs escaping; where it is on, samples lose the colon in their names.
        text: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            collector, openmetrics.ALLOWUTF8
        )
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(collector), _TEXT_TYPE


def prefers_openmetrics(accept: str) -> bool:
    """Whether this `Accept` names OpenMetrics, and the plain text format not before it."""
    best = {_TEXT: 0.0, _OPENMETRICS: 0.0}
    for entry in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        name = _TEXT if kind in _ANYTHING else kind
        if name in best:
            best[name] = max(best[name], _quality(parameters))
    return best[_OPENMETRICS] > 0 and best[_OPENMETRICS] >= best[_TEXT]


def _quality(parameters: Iterable[str]) -> float:
    """The `q` among the parameters of an accepted type; 0 for one that means nothing."""
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if math.isfinite(quality) else 0.0
    return 1.0
