"""Service level objectives of a report: how a command line spells them, and up to which load of
several they are kept."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import TypeVar

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo

# The share of requests within the SLO at which a load counts as carried, as in DistServe.
ENOUGH_ATTAINMENT = 0.9

_TERM = re.compile(r"(ttft|tpot|e2el|e2e)[=:](\d+(?:\.\d+)?)(ms|s|)")
_Load = TypeVar("_Load")


def parse_slo(texts: Sequence[str]) -> Slo:
    """Reads `ttft=500ms,tpot=50ms`; also `ttft:500 tpot:50`, milliseconds, as vLLM writes it.

    Raises `InvalidConfiguration`."""
    bounds: dict[str, float] = {}
    for term in re.split(r"[,\s]+", ",".join(texts)):
        if not term:
            continue
        match = _TERM.fullmatch(term)
        if not match or float(match[2]) == 0:
            raise InvalidConfiguration(
                f"--slo must look like ttft=500ms,tpot=50ms,e2e=10s, got {term!r}"
            )
        name = "e2e" if match[1] == "e2el" else match[1]
        bounds[name] = float(match[2]) * (1.0 if match[3] == "s" else 1e-3)
    return Slo(bounds.get("ttft"), bounds.get("tpot"), bounds.get("e2e"))


def highest_carried(rising: Iterable[_Load], carried: Callable[[_Load], bool]) -> _Load | None:
    """The knee: of loads in rising order, the last before the first that is not carried, however
    lucky a later one may be; None if not even the lowest is carried."""
    highest = None
    for load in takewhile(carried, rising):
        highest = load
    return highest
