"""Guesses out of what was said before: both faces, and the plain meaning."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError
from tandem.kernels.prompt_lookup import KnownTokens, NgramSizes
from tandem.kernels.sampling import NO_TOKEN


def known(*said: list[int]) -> KnownTokens:
    """Sequences in slots in backward order, with others' tokens behind them."""
    width = max(map(len, said)) + 3
    tokens = torch.full((len(said), width), 1, dtype=torch.int32)
    for slot, row in enumerate(reversed(said)):
        tokens[slot, : len(row)] = torch.tensor(row)
    slots = torch.arange(len(said) - 1, -1, -1, dtype=torch.int32)
    return KnownTokens(tokens, slots, torch.tensor([len(row) for row in said], dtype=torch.int32))


def looked_up(face: Kernels, said: list[int], places: int, sizes: NgramSizes) -> list[int]:
    guesses = torch.full((1, places), NO_TOKEN)
    wanted = torch.ones(1, places, dtype=torch.bool)
    face.look_up_prompt(known(said), sizes, guesses, wanted)
    found: list[int] = guesses[0].tolist()
    return found


@pytest.mark.parametrize("face", ["native", "reference"])
@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2]),
        # The longest end decides, not the newest place.
        ([7, 1, 2, 3, 8, 1, 2, 5, 7, 1, 2], [3, 8, 1]),
        # What reaches the end goes on as a repetition.
        ([4, 4, 4], [4, 4, 4]),
        ([1, 2, 1, 2, 1, 2], [1, 2, 1]),
        ([1, 2, 3, 4], [NO_TOKEN] * 3),
        ([1, 5, 2, 5], [NO_TOKEN] * 3),
        ([1], [NO_TOKEN] * 3),
    ],
)
def test_what_followed_is_proposed(
    face: str, said: list[int], found: list[int], request: pytest.FixtureRequest
) -> None:
    assert looked_up(request.getfixturevalue(face), said, 3, NgramSizes(2, 3)) == found


def naive(said: list[int], sizes: NgramSizes, guesses: list[int], wanted: list[bool]) -> list[int]:
    """By comparing slices; one place after the other."""
    said, follows, found = list(said), 0, []
    for guess, looks in zip(guesses, wanted, strict=True):
        if looks and follows:
            follows += 1
        elif looks:
            ends = [
                (size, first + size)
                for size in range(sizes.least, sizes.most + 1)
                for first in range(len(said) - size)
                if said[first : first + size] == said[len(said) - size :]
            ]
            follows = max(ends, default=(0, 0))[1]
        else:
            follows = 0
        token = said[follows] if follows else guess
        if token == NO_TOKEN:
            break
        found.append(token)
        said.append(token)
    return found + [NO_TOKEN] * (len(guesses) - len(found))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_both_faces_mix_with_the_guesses_of_others(
    native: Kernels, reference: Kernels, data: st.DataObject
) -> None:
    token, rows = st.integers(0, 2), data.draw(st.integers(1, 3))
    said = [data.draw(st.lists(token, min_size=1, max_size=30)) for _ in range(rows)]
    sizes = data.draw(st.sampled_from([NgramSizes(1, 1), NgramSizes(1, 4), NgramSizes(2, 3)]))
    places = data.draw(st.integers(0, 6))
    drawn = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    guesses = torch.from_numpy(drawn.integers(NO_TOKEN, 3, (rows, places)))
    wanted = torch.from_numpy(drawn.integers(0, 2, (rows, places)).astype(np.bool_))
    expected = [
        naive(each, sizes, guesses[row].tolist(), wanted[row].tolist())
        for row, each in enumerate(said)
    ]
    for face in (native, reference):
        found = guesses.clone()
        face.look_up_prompt(known(*said), sizes, found, wanted)
        assert found.tolist() == expected


def test_wrong_arguments_are_refused(native: Kernels, reference: Kernels) -> None:
    some = known([1, 2], [3])
    guesses, wanted = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
    for face in (native, reference):
        with pytest.raises(KernelArgumentError, match="guesses_DH"):
            face.look_up_prompt(some, NgramSizes(), guesses[:1], wanted[:1])
        with pytest.raises(KernelArgumentError, match="wanted_DH"):
            face.look_up_prompt(some, NgramSizes(), guesses, wanted[:1])
        with pytest.raises(KernelArgumentError, match="sizes"):
            face.look_up_prompt(some, NgramSizes(3, 2), guesses, wanted)
    with pytest.raises(KernelArgumentError, match="tokens"):
        wide = KnownTokens(some.tokens.long(), some.slots, some.ends)
        native.look_up_prompt(wide, NgramSizes(), guesses, wanted)
