"""The laws that a workload is drawn from: when requests arrive, how long prompts and answers are.

Lengths may also be drawn from a file of recorded pairs.
"""

import csv
import gzip
import io
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.facts.errors import InvalidConfiguration

Tokens = NDArray[np.int64]
Seconds = NDArray[np.float64]

_NUMBER = r"(\d+(?:\.\d+)?)"
_LAWS = {
    "fixed": re.compile(rf"(?:fixed:)?{_NUMBER}()"),
    "uniform": re.compile(rf"uniform:{_NUMBER}[-,]{_NUMBER}"),
    "normal": re.compile(rf"normal:{_NUMBER},{_NUMBER}"),
    "lognormal": re.compile(rf"lognormal:{_NUMBER},{_NUMBER}"),
}


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


@dataclass(frozen=True)
class LengthLaw:
    """A law of token counts: fixed (first), uniform (first to second, both included), or normal and
    lognormal (mean and standard deviation of the token count itself). A count is at least 1."""

    law: str
    first: float
    second: float = 0.0

    def draw(self, count: int, rng: np.random.Generator) -> Tokens:
        if self.law == "uniform":
            return rng.integers(int(self.first), int(self.second) + 1, size=count)
        if self.law == "normal":
            drawn = rng.normal(self.first, self.second, size=count)
        elif self.law == "lognormal":
            variance = np.log1p((self.second / self.first) ** 2)
            centre = np.log(self.first) - variance / 2
            drawn = rng.lognormal(centre, np.sqrt(variance), size=count)
        else:
            drawn = np.full(count, self.first)
        return np.maximum(np.rint(drawn), 1).astype(np.int64)


def parse_length_law(text: str, flag: str) -> LengthLaw:
    """The law written as `256`, `uniform:100-500`, `normal:256,64` or `lognormal:256,200`."""
    for law, pattern in _LAWS.items():
        match = pattern.fullmatch(text.strip())
        if match:
            parsed = LengthLaw(law, float(match[1]), float(match[2] or 0))
            if parsed.first < 1 or (law == "uniform" and parsed.second < parsed.first):
                break
            return parsed
    raise InvalidConfiguration(
        f"{flag} must be a token count of at least 1, uniform:LOW-HIGH, normal:MEAN,DEVIATION "
        f"or lognormal:MEAN,DEVIATION, got {text!r}"
    )


def open_text(path: Path, flag: str) -> io.TextIOBase:
    """A text file, gzipped or not; a missing one is the caller's mistake with `flag`."""
    try:
        if path.suffix == ".gz":
            return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8")
        return path.open(encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot read {path}: {error.strerror}") from error


def read_length_pairs(path: Path) -> Tokens:
    """Prompt and answer lengths [pairs, 2] from a CSV whose first two columns hold them."""
    pairs = []
    with open_text(path, "--lengths-file") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if number == 1 and row and not row[0].strip().isdigit():
                continue
            try:
                pairs.append((max(1, int(row[0])), max(1, int(row[1]))))
            except (ValueError, IndexError) as error:
                raise InvalidConfiguration(
                    f"--lengths-file {path}, line {number}: two token counts are needed, "
                    f"got {','.join(row)!r}"
                ) from error
    if not pairs:
        raise InvalidConfiguration(f"--lengths-file {path} holds no rows")
    return np.array(pairs, dtype=np.int64)


def draw_pairs(pairs: Tokens, count: int, rng: np.random.Generator) -> Tokens:
    """`count` rows of `pairs`, drawn with replacement; a prompt keeps its own answer's length."""
    return pairs[rng.integers(0, len(pairs), size=count)]
