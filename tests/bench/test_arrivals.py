"""Arrival processes: sorted, reproducible, at the rate they name, with the spread of their law."""

import numpy as np
import pytest

from tandem.bench.arrivals import Arrivals, Process, draw_arrivals
from tandem.facts.errors import InvalidConfiguration

COUNT = 4000


def draw(arrivals: Arrivals, seed: int = 0, count: int = COUNT) -> np.ndarray:
    return draw_arrivals(arrivals, count, np.random.default_rng(seed))


@pytest.mark.parametrize("process", list(Process))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sorted_from_zero_and_at_the_rate(process: Process, seed: int) -> None:
    instants_s = draw(Arrivals(20.0, process, 0.5), seed)
    assert instants_s[0] == 0.0
    assert (np.diff(instants_s) >= 0).all()
    assert (COUNT - 1) / instants_s[-1] == pytest.approx(20.0, rel=0.005)


@pytest.mark.parametrize(
    ("arrivals", "variation"),
    [
        (Arrivals(5.0, Process.POISSON), 1.0),
        (Arrivals(5.0, Process.CONSTANT), 0.0),
        (Arrivals(5.0, Process.BURST, 0.25), 2.0),
        (Arrivals(5.0, Process.BURST, 4.0), 0.5),
    ],
)
def test_gaps_vary_as_the_law_says(arrivals: Arrivals, variation: float) -> None:
    gaps_s = np.diff(draw(arrivals))
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(variation, abs=0.1)


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(draw(Arrivals(10.0)))
    for quantile in (0.1, 0.5, 0.9):
        expected_s = -np.log(1 - quantile) / 10.0
        assert np.quantile(gaps_s, quantile) == pytest.approx(expected_s, rel=0.1)


def test_same_seed_same_arrivals_and_rates_differ_by_scale_only() -> None:
    assert (draw(Arrivals(3.0), 7) == draw(Arrivals(3.0), 7)).all()
    assert not (draw(Arrivals(3.0), 7) == draw(Arrivals(3.0), 8)).all()
    assert draw(Arrivals(1.0), 7) == pytest.approx(draw(Arrivals(4.0), 7) * 4)


def test_infinite_rate_sends_all_at_once() -> None:
    assert (draw(Arrivals(float("inf"))) == 0).all()
    assert draw(Arrivals(1.0), count=1).tolist() == [0.0]
    assert draw(Arrivals(1.0), count=0).tolist() == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_bad_rates_are_named(rate: float) -> None:
    with pytest.raises(InvalidConfiguration, match="--rate"):
        Arrivals(rate)
    with pytest.raises(InvalidConfiguration, match="--burstiness"):
        Arrivals(1.0, Process.BURST, 0.0)
