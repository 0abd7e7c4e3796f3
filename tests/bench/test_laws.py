"""Arrival processes: sorted, reproducible, at the rate they name, with the spread of their law.
Length laws: read from text, drawn with the moments they name, never below one token."""

from pathlib import Path

import numpy as np
import pytest

from tandem.bench.laws import (
    Arrivals,
    Process,
    draw_arrivals,
    draw_pairs,
    parse_length_law,
    read_length_pairs,
)
from tandem.facts.errors import InvalidConfiguration

DATA = Path(__file__).parent / "data"


COUNT = 4000


def arrivals_of(arrivals: Arrivals, seed: int = 0, count: int = COUNT) -> np.ndarray:
    return draw_arrivals(arrivals, count, np.random.default_rng(seed))


def lengths_of(text: str, count: int = 20_000) -> np.ndarray:
    return parse_length_law(text, "--input-tokens").draw(count, np.random.default_rng(0))


@pytest.mark.parametrize("process", list(Process))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sorted_from_zero_and_at_the_rate(process: Process, seed: int) -> None:
    instants_s = arrivals_of(Arrivals(20.0, process, 0.5), seed)
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
def test_gaps_vary_by_the_law(arrivals: Arrivals, variation: float) -> None:
    gaps_s = np.diff(arrivals_of(arrivals))
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(variation, abs=0.1)


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(arrivals_of(Arrivals(10.0)))
    for quantile in (0.1, 0.5, 0.9):
        expected_s = -np.log(1 - quantile) / 10.0
        assert np.quantile(gaps_s, quantile) == pytest.approx(expected_s, rel=0.1)


def test_same_seed_same_arrivals_and_rates_differ_by_scale_only() -> None:
    assert (arrivals_of(Arrivals(3.0), 7) == arrivals_of(Arrivals(3.0), 7)).all()
    assert not (arrivals_of(Arrivals(3.0), 7) == arrivals_of(Arrivals(3.0), 8)).all()
    assert arrivals_of(Arrivals(1.0), 7) == pytest.approx(arrivals_of(Arrivals(4.0), 7) * 4)


def test_infinite_rate_sends_all_at_once() -> None:
    assert (arrivals_of(Arrivals(float("inf"))) == 0).all()
    assert arrivals_of(Arrivals(1.0), count=1).tolist() == [0.0]
    assert arrivals_of(Arrivals(1.0), count=0).tolist() == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_bad_rates_are_named(rate: float) -> None:
    with pytest.raises(InvalidConfiguration, match="--rate"):
        Arrivals(rate)
    with pytest.raises(InvalidConfiguration, match="--burstiness"):
        Arrivals(1.0, Process.BURST, 0.0)


@pytest.mark.parametrize("text", ["256", "fixed:256", " 256 "])
def test_fixed(text: str) -> None:
    assert set(lengths_of(text, 10).tolist()) == {256}


def test_uniform_reaches_both_ends() -> None:
    drawn = lengths_of("uniform:3-7")
    assert sorted(set(drawn.tolist())) == [3, 4, 5, 6, 7]
    assert drawn.mean() == pytest.approx(5, abs=0.05)


@pytest.mark.parametrize("text", ["normal:300,40", "lognormal:300,40"])
def test_mean_and_deviation_are_those_of_the_lengths(text: str) -> None:
    drawn = lengths_of(text)
    assert drawn.mean() == pytest.approx(300, rel=0.01)
    assert drawn.std() == pytest.approx(40, rel=0.03)


def test_never_below_one() -> None:
    assert lengths_of("normal:2,50").min() == 1


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "ten", "uniform:9-3", "uniform:5", "normal:5", "gamma:1,2", "1e3"]
)
def test_bad_laws_are_named(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--input-tokens"):
        parse_length_law(text, "--input-tokens")


def test_pairs_stay_together() -> None:
    pairs = read_length_pairs(DATA / "lengths_sharegpt_200.csv")
    assert pairs.shape == (200, 2)
    assert pairs[0].tolist() == [74, 918]
    drawn = draw_pairs(pairs, 500, np.random.default_rng(1))
    assert {tuple(pair) for pair in drawn.tolist()} <= {tuple(pair) for pair in pairs.tolist()}


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot read"):
        read_length_pairs(tmp_path / "missing.csv")
    bad = tmp_path / "bad.csv"
    bad.write_text("in,out\n5,6\n7\n")
    with pytest.raises(InvalidConfiguration, match="line 3"):
        read_length_pairs(bad)
    bad.write_text("in,out\n")
    with pytest.raises(InvalidConfiguration, match="no rows"):
        read_length_pairs(bad)
