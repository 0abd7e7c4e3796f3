"""Forecasts made by statsmodels: ARIMA, and Holt-Winters with a season.

The one module that imports the library. Its fits are numerical optimisations, so their last bits
depend on the machine: where runs must be equal everywhere, use the forecasts of `policy`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from statsmodels.tsa.arima.model import ARIMA
from statsmodels.tsa.holtwinters import ExponentialSmoothing as HoltWinters

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.forecasting import ExponentialSmoothing, LastValue


@dataclass(frozen=True, slots=True)
class Arima:
    """ARIMA(p, d, q) of the last `memory` values (Box and Jenkins), fitted anew each time. Until
    there are ten, and where the fit fails, it says the last value."""

    order: tuple[int, int, int] = (1, 1, 1)
    memory: int = 200

    def __post_init__(self) -> None:
        if len(self.order) != 3 or min(self.order) < 0:
            raise InvalidConfiguration(
                f"order of the ARIMA forecast is {self.order}; give three numbers p, d, q >= 0"
            )

    def forecast(self, history: Sequence[float], steps: int) -> list[float]:
        recent = list(history[-self.memory :])
        if len(recent) < 10:
            return LastValue().forecast(recent, steps)
        with warnings.catch_warnings():
            # A fit that has not converged is still a forecast; nobody can act on the warning.
            warnings.simplefilter("ignore")
            try:
                values = (
                    ARIMA(np.asarray(recent, dtype=float), order=self.order).fit().forecast(steps)
                )
            except np.linalg.LinAlgError:
                return LastValue().forecast(recent, steps)
        return _never_negative(values)


@dataclass(frozen=True, slots=True)
class Seasonal:
    """Level, damped trend and a season of `period` steps, all additive (Winters, 1960). Until two
    periods were seen it forecasts without a season. `memory_periods` bounds what it looks back."""

    period: int
    memory_periods: int = 7

    def __post_init__(self) -> None:
        if self.period < 2 or self.memory_periods < 2:
            raise InvalidConfiguration(
                f"period {self.period} and memory_periods {self.memory_periods} of the seasonal "
                "forecast must be at least 2"
            )

    def forecast(self, history: Sequence[float], steps: int) -> list[float]:
        recent = list(history[-self.period * self.memory_periods :])
        if len(recent) < 2 * self.period or len(recent) < 10:
            return ExponentialSmoothing().forecast(recent, steps)
        model = HoltWinters(
            np.asarray(recent, dtype=float),
            trend="add",
            damped_trend=True,
            seasonal="add",
            seasonal_periods=self.period,
            initialization_method="heuristic",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = model.fit().forecast(steps)
        return _never_negative(values)


def _never_negative(values: Sequence[float]) -> list[float]:
    return [max(0.0, float(value)) for value in values]
