"""Which forecaster a name means. Those that need a library are loaded when they are asked for, so
that nobody waits for, or must install, what is not used."""

import importlib
from typing import Any

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.forecasting import FORECASTERS, Forecaster

_STATISTICAL = {"arima": "Arima", "seasonal": "Seasonal"}
NAMES = (*FORECASTERS, *_STATISTICAL)


def forecaster(name: str, **options: Any) -> Forecaster:
    """The named forecaster with its options. Raises `InvalidConfiguration` for an unknown name or
    option, and where its library is not installed."""
    if name not in NAMES:
        raise InvalidConfiguration(f"forecast is {name!r}; choose one of {', '.join(NAMES)}")
    make: Any = FORECASTERS.get(name) or getattr(_statistical(name), _STATISTICAL[name])
    try:
        made: Forecaster = make(**options)
    except TypeError as error:
        raise InvalidConfiguration(f"forecast {name!r}: {error}; correct its options") from error
    return made


def _statistical(name: str) -> Any:
    try:
        return importlib.import_module("tandem.forecast.statistical")
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"forecast {name!r} needs {error.name}: pip install tandem[forecast]"
        ) from error
