"""When requests arrive: seconds from the start, drawn once, sorted, never negative."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tandem.facts.errors import InvalidConfiguration

Seconds = NDArray[np.float64]


class Process(StrEnum):
    """The law of the gaps between arrivals. BURST is a gamma law whose shape is `burstiness`."""

    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"


@dataclass(frozen=True)
class Arrivals:
    """`rate_rps` requests a second on average; infinity sends everything at once.

    As in vLLM's benchmark, `burstiness` is the gamma shape: 1 is Poisson, below 1 the requests come
    in bunches, above 1 they come more evenly.
    """

    rate_rps: float
    process: Process = Process.POISSON
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate_rps > 0:
            raise InvalidConfiguration(f"--rate must be greater than 0, got {self.rate_rps:g}")
        if not 0 < self.burstiness < np.inf:
            raise InvalidConfiguration(
                f"--burstiness must be greater than 0, got {self.burstiness:g}"
            )


def draw_arrivals(arrivals: Arrivals, count: int, rng: np.random.Generator) -> Seconds:
    """`count` instants, the first at 0.

    As in vLLM's benchmark the gaps are scaled so that their mean is exactly 1 / rate: a short run
    then offers the load that it names. For one state of `rng` the gaps of two rates are the same
    numbers at another scale, so the points of a sweep differ by the rate alone.
    """
    if np.isinf(arrivals.rate_rps) or count == 0:
        return np.zeros(count)
    if arrivals.process is Process.CONSTANT:
        unit_gaps = np.ones(count)
    else:
        shape = arrivals.burstiness if arrivals.process is Process.BURST else 1.0
        unit_gaps = rng.gamma(shape, 1.0 / shape, size=count)
    instants = np.cumsum(unit_gaps / unit_gaps.mean()) / arrivals.rate_rps
    return np.asarray(instants - instants[0])
