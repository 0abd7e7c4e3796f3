"""Metrics on their way to the page that Prometheus reads. Names have no prefix yet: whoever writes
the page puts it before them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["gauge", "counter"]


class ClientFamily(Protocol):
    """A metric with its samples, which are named tuples, as `prometheus_client` counts it."""

    name: str
    documentation: str
    type: str
    samples: list[Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """What others count, as it is at this moment: a figure for each combination of values of the
    `labels`. Of a counter the name is without `_total`."""

    type: Kind
    name: str
    documentation: str
    labels: tuple[str, ...]
    figures: Sequence[tuple[tuple[str, ...], float]]


MetricFamily = ClientFamily | Figures
