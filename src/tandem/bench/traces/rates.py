"""Requests drawn from recorded rates: how often clients asked in each window, and how irregularly.

The gaps of a window are of the law that the recording fitted (gamma or Weibull), with the window's
rate. A gap that a window does not use up goes on in the next one at that one's rate, so every
window gets its recorded number of requests on average, and slow clients are not lost.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.bench.laws import Tokens, draw_pairs
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow

WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class RateDraw:
    """Which requests are drawn from a file of rates: of `workload` (when the file holds several),
    the `seconds` from `first_s` on, at `scale` times the rate. `length_pairs` [pairs, 2] gives
    prompt and answer lengths where the file holds none. The same seed draws the same requests."""

    workload: str = ""
    first_s: float = 0.0
    seconds: float = WINDOW_S
    scale: float = 1.0
    seed: int = 0
    length_pairs: Tokens | None = None

    @property
    def end_s(self) -> float:
        return self.first_s + self.seconds


@dataclass(frozen=True, slots=True)
class RateWindow:
    """`rate_rps` from `start_s` on for `WINDOW_S`. `family` is "Gamma", "Weibull" or "" for
    exponential gaps; `shape` is the law's own, below 1 where requests come in bunches."""

    workload: str
    start_s: float
    rate_rps: float
    family: str = ""
    shape: float = 1.0


def parse_rate(line: str) -> RateWindow:
    """Raises `ValueError`."""
    workload, start_s, rate_rps = line.split(",")[:3]
    return RateWindow(workload, float(start_s), float(rate_rps))


def draw_windows(windows: Sequence[RateWindow], draw: RateDraw) -> list[TraceRow]:
    """The requests of one workload's total rate; raises `InvalidConfiguration` where workload or
    lengths are open."""
    workload = choose_workload(sorted({window.workload for window in windows}), draw)
    if draw.length_pairs is None:
        raise lengths_missing(workload)
    rng = np.random.default_rng(draw.seed)
    instants_s = list(draw_instants([w for w in windows if w.workload == workload], draw, rng))
    pairs = draw_pairs(draw.length_pairs, len(instants_s), rng).tolist()
    return [
        TraceRow(instant_s, prompt_tokens, output_tokens)
        for instant_s, (prompt_tokens, output_tokens) in zip(instants_s, pairs, strict=True)
    ]


def draw_instants(
    windows: Sequence[RateWindow], draw: RateDraw, rng: np.random.Generator
) -> Iterator[float]:
    """The instants, in seconds on the recording's clock, of the windows that `draw` covers."""
    # Operational time, in which requests come at one a unit: a window is seconds times rate long.
    next_unit: float | None = None
    for window in sorted(windows, key=lambda window: window.start_s):
        begin_s = max(window.start_s, draw.first_s)
        rate_rps = window.rate_rps * draw.scale
        units = (min(window.start_s + WINDOW_S, draw.end_s) - begin_s) * rate_rps
        if units <= 0:
            continue
        law = GapLaw(window.family, window.shape)
        if next_unit is None:
            next_unit = law.rest(rng)
        while next_unit < units:
            yield begin_s + next_unit / rate_rps
            next_unit += law.gap(rng)
        next_unit -= units


@dataclass(frozen=True, slots=True)
class GapLaw:
    """Gaps of mean 1, made from uniform numbers alone so that they do not depend on how a library's
    version draws a law. Family and shape are those of a `RateWindow`."""

    family: str
    shape: float

    def gap(self, rng: np.random.Generator) -> float:
        """The time from one request to the next."""
        if self.family == "Gamma":
            return draw_gamma(self.shape, rng) / self.shape
        if self.family == "Weibull":
            return math.pow(_exponential(rng), 1.0 / self.shape) / self._weibull_mean
        return _exponential(rng)

    def rest(self, rng: np.random.Generator) -> float:
        """The time from any instant to the next request. Instants fall into long gaps more often:
        it is a uniform part of a gap drawn in proportion to its length."""
        if self.family == "Gamma":
            return rng.random() * draw_gamma(self.shape + 1.0, rng) / self.shape
        if self.family == "Weibull":
            power = draw_gamma(1.0 + 1.0 / self.shape, rng)
            return rng.random() * math.pow(power, 1.0 / self.shape) / self._weibull_mean
        return _exponential(rng)

    @property
    def _weibull_mean(self) -> float:
        return math.gamma(1.0 + 1.0 / self.shape)


def choose_workload(found: Sequence[str], draw: RateDraw) -> str:
    """The one that `draw` names, or the only one there is."""
    if draw.workload in found:
        return draw.workload
    if draw.workload or len(found) != 1:
        raise InvalidConfiguration(
            f"a file of rates needs --workload, one of {', '.join(found)}; got {draw.workload!r}"
        )
    return found[0]


def lengths_missing(workload: str) -> InvalidConfiguration:
    """The error for rates that come without lengths."""
    return InvalidConfiguration(
        f"trace of {workload} holds rates without lengths: give a --lengths-file as well"
    )


def _exponential(rng: np.random.Generator) -> float:
    return -math.log1p(-rng.random())


def draw_gamma(shape: float, rng: np.random.Generator) -> float:
    """Scale 1. Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26,
    2000."""
    if shape < 1.0:
        return draw_gamma(shape + 1.0, rng) * math.pow(1.0 - rng.random(), 1.0 / shape)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        normal = math.sqrt(2.0 * _exponential(rng)) * math.cos(2.0 * math.pi * rng.random())
        v = (1.0 + c * normal) ** 3
        if v > 0 and -_exponential(rng) < 0.5 * normal * normal + d - d * v + d * math.log(v):
            return d * v
