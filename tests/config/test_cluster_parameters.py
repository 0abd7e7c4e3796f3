"""Parameters of policies as a cluster file writes them."""

from collections.abc import Callable, Sequence

import pytest

from tandem.config.cluster_build import Choice
from tandem.config.cluster_parameters import parameters
from tandem.facts.errors import InvalidConfiguration


def make(
    workers: Sequence[str],
    share: float = 0.5,
    tokens: int | None = None,
    period_s: float = 1.0,
    score: Callable[[], float] = float,
) -> object:
    return workers, share, tokens, period_s, score


def read(**written: object) -> dict[str, object]:
    return parameters("kind", Choice("name", written), make)


def test_numbers_may_carry_units():
    assert read(workers=["a"], share="85%", tokens="20k", period_s="2m") == {
        "workers": ["a"],
        "share": 0.85,
        "tokens": 20_000,
        "period_s": 120.0,
    }
    assert read(workers=[], share=1, tokens=None) == {"workers": [], "share": 1.0, "tokens": None}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({}, "kind name needs workers, as {name: name, workers: ...}"),
        ({"worker": []}, "kind name has no parameter worker; did you mean workers?"),
        ({"workers": "a"}, "kind name: workers: Expected `array`, got `str`"),
        ({"workers": [], "tokens": "1.5"}, "kind name: tokens: Expected `int | null`"),
        ({"workers": [], "share": True}, "kind name: share: Expected `float`, got `bool`"),
        ({"workers": [], "period_s": "soon"}, "kind name: period_s: expected a time such as 2s"),
        ({"workers": [], "score": "x"}, "kind name has no parameter score"),
    ],
)
def test_what_does_not_fit_is_named(written, told):
    with pytest.raises(InvalidConfiguration) as caught:
        read(**written)
    assert told in str(caught.value)


def test_a_policy_without_parameters_says_so():
    with pytest.raises(InvalidConfiguration, match="kind name has no parameter x; it takes none"):
        parameters("kind", Choice("name", {"x": 1}), object)
