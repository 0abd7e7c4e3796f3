"""Length laws: read from text, drawn with the moments they name, never below one token."""

from pathlib import Path

import numpy as np
import pytest

from tandem.bench.lengths import draw_pairs, parse_length_law, read_length_pairs
from tandem.facts.errors import InvalidConfiguration

DATA = Path(__file__).parent / "data"


def draw(text: str, count: int = 20_000) -> np.ndarray:
    return parse_length_law(text, "--input-tokens").draw(count, np.random.default_rng(0))


@pytest.mark.parametrize("text", ["256", "fixed:256", " 256 "])
def test_fixed(text: str) -> None:
    assert set(draw(text, 10).tolist()) == {256}


def test_uniform_reaches_both_ends() -> None:
    drawn = draw("uniform:3-7")
    assert sorted(set(drawn.tolist())) == [3, 4, 5, 6, 7]
    assert drawn.mean() == pytest.approx(5, abs=0.05)


@pytest.mark.parametrize("text", ["normal:300,40", "lognormal:300,40"])
def test_mean_and_deviation_are_those_of_the_lengths(text: str) -> None:
    drawn = draw(text)
    assert drawn.mean() == pytest.approx(300, rel=0.01)
    assert drawn.std() == pytest.approx(40, rel=0.03)


def test_never_below_one() -> None:
    assert draw("normal:2,50").min() == 1


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
