"""Forecasting of counts or rates: the port, and forecasts that need no library. ARIMA and seasonal
forecasts stand behind the same port in the room `forecast`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.facts.errors import InvalidConfiguration


class Forecaster(Protocol):
    """`history` is oldest first, at even spacing; gives `steps` values, never negative. An empty
    history forecasts zero."""

    def forecast(self, history: Sequence[float], steps: int) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class LastValue:
    """Tomorrow is as today: hard to beat on a random walk, and what every other forecast must."""

    def forecast(self, history: Sequence[float], steps: int) -> list[float]:
        return [max(0.0, float(history[-1])) if history else 0.0] * steps


@dataclass(frozen=True, slots=True)
class ExponentialSmoothing:
    """Level `alpha`, trend `beta`, damped by `damping` a step (Gardner and McKenzie, 1985).

    `beta` 0 is simple smoothing, `damping` 1 is Holt's straight line. A damped trend is the default
    because a straight one overshoots after every step of the load.
    """

    alpha: float = 0.5
    beta: float = 0.2
    damping: float = 0.8

    def __post_init__(self) -> None:
        for name, least in (("alpha", 0.01), ("beta", 0.0), ("damping", 0.0)):
            value = getattr(self, name)
            if not least <= value <= 1:
                raise InvalidConfiguration(
                    f"{name} of exponential smoothing is {value:g}; choose {least:g} to 1"
                )

    def forecast(self, history: Sequence[float], steps: int) -> list[float]:
        if not history:
            return [0.0] * steps
        level, trend = float(history[0]), 0.0
        for value in history[1:]:
            expected = level + self.damping * trend
            error = value - expected
            level = expected + self.alpha * error
            trend = self.damping * trend + self.alpha * self.beta * error
        values = []
        for _ in range(steps):
            trend *= self.damping
            level += trend
            values.append(max(0.0, level))
        return values


FORECASTERS: dict[str, Callable[..., Forecaster]] = {
    "last_value": LastValue,
    "smooth": lambda alpha=0.3: ExponentialSmoothing(alpha, beta=0.0),
    "trend": ExponentialSmoothing,
}
