"""What comes next in a series of counts or rates: the port, and the two forecasts that need no
library. ARIMA and seasonal forecasts stand behind the same port in the room `forecast`."""

from collections.abc import Sequence
from typing import Protocol


class Forecaster(Protocol):
    """`history` is oldest first, at even spacing; gives `steps` values, never negative. An empty
    history forecasts zero."""

    def forecast(self, history: Sequence[float], steps: int) -> list[float]: ...
