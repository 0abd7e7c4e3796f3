"""Service level objectives of a report: how a command line spells them, and up to which load of
several they are kept."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.facts.units import SECONDS

# The share of requests within the SLO at which a load counts as carried, as in DistServe.
ENOUGH_ATTAINMENT = 0.9

_Load = TypeVar("_Load")
_TERM = re.compile(r"(ttft|tpot|e2el|e2e)[=:](.+)")
# A minute is no bound on an answer, and an `m` here is a mistyped `ms`.
_BOUND = replace(SECONDS, factors={unit: SECONDS.factors[unit] for unit in ("ms", "s")}, bare="ms")


def parse_slo(texts: Sequence[str]) -> Slo:
    """Reads `ttft=500ms,tpot=50ms`; also `ttft:500 tpot:50`, milliseconds, as vLLM writes it.

    Raises `InvalidConfiguration`."""
    bounds: dict[str, float] = {}
    for term in re.split(r"[,\s]+", ",".join(texts)):
        if not term:
            continue
        match = _TERM.fullmatch(term)
        bound_s = _seconds(match[2]) if match else 0.0
        if not match or not bound_s:
            raise InvalidConfiguration(
                f"--slo must look like ttft=500ms,tpot=50ms,e2e=10s, got {term!r}"
            )
        name = "e2e" if match[1] == "e2el" else match[1]
        bounds[name] = bound_s
    return Slo(bounds.get("ttft"), bounds.get("tpot"), bounds.get("e2e"))


def highest_carried(rising: Iterable[_Load], carried: Callable[[_Load], bool]) -> _Load | None:
    """The knee: of loads in rising order, the last before the first that is not carried, however
    lucky a later one may be; None if not even the lowest is carried."""
    highest = None
    for load in takewhile(carried, rising):
        highest = load
    return highest


def _seconds(text: str) -> float:
    """0 for what is no bound, as for a bound of 0."""
    try:
        return _BOUND.read(text)
    except ValueError:
        return 0.0
