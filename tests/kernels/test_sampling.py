"""Sampling: the noise's known answers, the filters' meaning, and both faces drawing alike."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError
from tandem.kernels.sampling import (
    COIN_STREAM,
    NO_TOKEN,
    LateFilters,
    SamplingRows,
    coin,
    gumbel,
    philox,
)

# Random123's published vectors for philox4x32-10: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip
FACES = ["native", "reference"]


def rows_of(count: int, **parameters: float) -> SamplingRows:
    def filled(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count,), parameters.get(name, default), dtype=dtype)

    late = LateFilters(
        typical_p=filled("typical_p", 1.0, torch.float32),
        xtc_threshold=filled("xtc_threshold", 0.1, torch.float32),
        xtc_probability=filled("xtc_probability", 0.0, torch.float32),
    )
    return SamplingRows(
        temperature=filled("temperature", 1.0, torch.float32),
        top_k=filled("top_k", 0, torch.int32),
        top_p=filled("top_p", 1.0, torch.float32),
        min_p=filled("min_p", 0.0, torch.float32),
        seed=torch.arange(count) * 7919 - 5,
        position=torch.arange(count) + (1 << 33),
        late=late if set(parameters) & set(vars(late)) else None,
    )


def row_of(rows: SamplingRows, place: int) -> SamplingRows:
    one = slice(place, place + 1)
    columns = {name: value[one] for name, value in vars(rows).items() if name != "late"}
    late = rows.late and LateFilters(*(value[one] for value in vars(rows.late).values()))
    return SamplingRows(**columns, late=late)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, output: str) -> None:
    def words(text: str) -> list[torch.Tensor]:
        return [torch.tensor(int(word, 16)) for word in text.split()]

    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    assert [int(word) for word in philox((c0, c1, c2, c3), (k0, k1))] == [
        int(word) for word in words(output)
    ]


def test_noise_is_bounded_gumbel() -> None:
    noise = gumbel(torch.tensor([3, -1]), torch.tensor([0, 1 << 40]), 100_001)
    assert noise.shape == (2, 100_001)
    assert -2.86 < noise.min() < -2.0
    assert 8.0 < noise.max() < 17.33
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - torch.pi**2 / 6) < 0.02


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_both_faces_draw_the_same_tokens(
    native: Kernels, reference: Kernels, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    rows, vocabulary = 24, data.draw(st.integers(1, 2000))
    logits = torch.randn(rows, vocabulary, generator=generator) * data.draw(
        st.sampled_from([0.0, 0.1, 1.0, 4.0, 30.0])
    )
    if data.draw(st.booleans()):
        logits = logits.round()
    if data.draw(st.booleans()):
        logits[:, 1::3] = -torch.inf

    def mixed(share_off: float, off: float, scale: float) -> torch.Tensor:
        value, switch = torch.rand(2, rows, generator=generator)
        return torch.where(switch < share_off, off, value * scale)

    parameters = SamplingRows(
        temperature=mixed(0.1, 0.0, 2.0),
        top_k=mixed(0.4, 0.0, 50.0).int(),
        top_p=mixed(0.4, 1.0, 1.0),
        min_p=mixed(0.5, 0.0, 0.4),
        seed=torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
        position=torch.randint(0, 2**40, (rows,), generator=generator),
        late=LateFilters(
            typical_p=mixed(0.4, 1.0, 1.0),
            xtc_threshold=mixed(0.2, 0.0, 0.6),
            xtc_probability=mixed(0.3, 0.0, 2.0),
        )
        if data.draw(st.booleans())
        else None,
    )
    assert torch.equal(native.sample(logits, parameters), reference.sample(logits, parameters))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    "filtered", [{}, {"top_k": 5}, {"top_p": 0.7}, {"typical_p": 0.8}], ids=str
)
def test_candidates_are_what_is_drawn_without_those_before(
    native: Kernels, reference: Kernels, temperature: float, filtered: dict[str, float]
) -> None:
    logits = torch.randn(9, 40, generator=torch.Generator().manual_seed(3)).round(decimals=1)
    logits[0, 3:] = -torch.inf
    logits[1, 7] = torch.nan
    rows = rows_of(9, temperature=temperature, **filtered)
    left, expected = logits.clone(), []
    for _ in range(4):
        expected.append(reference.sample(left, rows))
        found = expected[-1] != NO_TOKEN
        left[found, expected[-1][found]] = -torch.inf
    assert expected[3][0] == expected[0][1] == NO_TOKEN
    answers = [face.sample_candidates(logits.clone(), rows, 4) for face in (native, reference)]
    for each in answers:
        assert each.tokens.tolist() == torch.stack(expected, dim=1).tolist()
    torch.testing.assert_close(answers[0].scores, answers[1].scores, atol=1e-6, rtol=0)
    drawn = answers[1].tokens >= 0
    assert not torch.isfinite(answers[1].scores[~drawn]).any()
    if not filtered:
        assert (answers[1].scores.diff(dim=1)[2:] <= 0).all()
    if not temperature:
        scores = answers[1].scores[2:].float()
        assert torch.equal(scores, logits[2:].gather(1, answers[1].tokens[2:]))


def test_both_faces_draw_alike_from_a_real_vocabulary(native: Kernels, reference: Kernels) -> None:
    logits = torch.randn(4, 50_003) * torch.tensor([0.2, 1.0, 3.0, 6.0])[:, None]
    for parameters in (
        {},
        {"top_p": 0.95},
        {"top_k": 3000},
        {"top_k": 40, "top_p": 0.5},
        {"typical_p": 0.9},
        {"typical_p": 0.3, "top_p": 0.95},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 1e-4},
        {"typical_p": 0.8, "xtc_probability": 1.0, "xtc_threshold": 0.001},
    ):
        rows = rows_of(4, **parameters)
        assert torch.equal(native.sample(logits, rows), reference.sample(logits, rows))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({}, 8),
        ({"temperature": 0.5}, 8),
        ({"top_k": 3}, 3),
        ({"top_p": 0.8}, 3),
        ({"min_p": 0.3}, 2),
        ({"top_k": 4, "top_p": 0.8}, 2),
    ],
)
def test_frequencies_follow_the_filtered_distribution(
    face: str, parameters: dict[str, float], kept: int, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    draws = 20_000
    logits_V = -0.7 * torch.arange(8.0)
    weights_V = torch.softmax(logits_V / parameters.get("temperature", 1.0), dim=0)
    weights_V[kept:] = 0
    order_V = torch.tensor([3, 0, 6, 1, 7, 2, 5, 4])
    rows = rows_of(draws, **parameters)
    tokens = kernels.sample(logits_V[order_V].expand(draws, 8).contiguous(), rows)
    counts_V = torch.bincount(order_V[tokens], minlength=8)
    assert counts_V[kept:].sum() == 0
    expected_V = (weights_V / weights_V.sum() * draws)[:kept]
    chi_square = ((counts_V[:kept] - expected_V) ** 2 / expected_V).sum()
    # The 1 - 1e-6 quantile with seven degrees of freedom is 40.
    assert chi_square < 40


def naively_typical(weights: list[float], typical_p: float) -> set[int]:
    """As the paper says it: the entropy, and the least set of its neighbours with enough mass."""
    total = sum(weights)
    surprises = [-math.log(weight / total) for weight in weights]
    entropy = sum(w / total * s for w, s in zip(weights, surprises, strict=True))
    nearest = sorted(range(len(weights)), key=lambda i: abs(surprises[i] - entropy))
    kept: set[int] = set()
    while sum(weights[i] for i in kept) < typical_p * total:
        kept.add(nearest[len(kept)])
    return kept


def naively_excluded(weights: dict[int, float], threshold: float) -> set[int]:
    """As llama.cpp: what stays of these tokens."""
    total = sum(weights.values())
    likely = sorted((i for i in weights if weights[i] >= threshold * total), key=weights.get)
    return set(weights) - set(likely[1:])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("seed", range(12))
def test_late_filters_keep_what_their_definitions_say(
    face: str, seed: int, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    draws, vocabulary = 3000, 12
    generator = torch.Generator().manual_seed(seed)
    logits_V = 1.2 * torch.randn(vocabulary, generator=generator)
    weights = torch.exp(logits_V.double()).tolist()
    typical_p, threshold = (0.2, 0.5, 0.9, 1.0)[seed % 4], (0.05, 0.1, 0.3)[seed % 3]
    typical = naively_typical(weights, typical_p)
    left = naively_excluded({i: weights[i] for i in typical}, threshold)
    logits = logits_V.expand(draws, vocabulary).contiguous()

    only_typical = kernels.sample(logits, rows_of(draws, typical_p=typical_p))
    parameters = {"typical_p": typical_p, "xtc_threshold": threshold}
    always = kernels.sample(logits, rows_of(draws, xtc_probability=1.0, **parameters))
    assert set(only_typical.tolist()) <= typical
    assert set(always.tolist()) <= left
    # Whatever is likely enough to be drawn at all is drawn.
    for drawn, kept in ((only_typical, typical), (always, left)):
        share = {i: weights[i] / sum(weights[k] for k in kept) for i in kept}
        assert {i for i in kept if share[i] > 0.01} <= set(drawn.tolist())
    # Half of the rows throw the coin, the same ones whatever else they draw.
    half = kernels.sample(logits, rows_of(draws, xtc_probability=0.5, **parameters))
    rows = rows_of(draws)
    fallen = coin(rows.seed, rows.position) < 0.5
    assert torch.equal(half, torch.where(fallen, always, only_typical))
    assert abs(fallen.double().mean() - 0.5) < 0.05


def test_the_coin_is_of_no_counter_that_noise_uses() -> None:
    seed, position = torch.tensor([7]), torch.tensor([(3 << 32) + 5])
    word = philox(
        (torch.tensor(0), torch.tensor(5), torch.tensor(3), torch.tensor(COIN_STREAM)),
        (seed, torch.tensor(0)),
    )[0]
    assert coin(seed, position) == ((word >> 8).double() + 0.5) / 2**24
    noise = gumbel(seed, position, 4096)
    assert not (noise == -torch.log(-torch.log(coin(seed, position)))).any()


@pytest.mark.parametrize("face", FACES)
def test_one_likely_token_is_never_excluded(face: str, request: pytest.FixtureRequest) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    logits = torch.tensor([[9.0, 0.0, 0.0], [1.0, 1.0, 1.0], [5.0, 5.0, -torch.inf]])
    parameters = {"xtc_probability": 1.0, "xtc_threshold": 0.3, "top_k": 2}
    assert kernels.sample(logits, rows_of(3, **parameters)).tolist() == [0, 1, 1]


@pytest.mark.parametrize("face", FACES)
def test_greedy_and_ties_take_the_lowest_id(face: str, request: pytest.FixtureRequest) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    logits = torch.tensor([[1.0, 5.0, 5.0], [2.0, 2.0, 2.0]])
    assert kernels.sample(logits, rows_of(2, temperature=0.0)).tolist() == [1, 0]
    assert kernels.sample(logits, rows_of(2, top_k=1)).tolist() == [1, 0]
    assert kernels.sample(logits, rows_of(2, top_p=0.0)).tolist() == [1, 0]
    assert kernels.sample(logits, rows_of(2, min_p=1.5)).tolist() == [1, 0]
    greedy = {"temperature": 0.0, "typical_p": 0.1, "xtc_probability": 1.0, "xtc_threshold": 0.0}
    assert kernels.sample(logits, rows_of(2, **greedy)).tolist() == [1, 0]


@pytest.mark.parametrize("top_p", [0.001, 0.05, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("parameters", [{}, {"min_p": 0.01}, {"temperature": 0.3}], ids=str)
def test_a_nucleus_of_any_size_draws_what_the_reference_draws(
    native: Kernels, reference: Kernels, top_p: float, parameters: dict[str, float]
) -> None:
    """Flat rows and peaked ones, and some in which many tokens are equally likely."""
    generator = torch.Generator().manual_seed(int(1000 * top_p))
    spreads = torch.tensor([0.02, 0.5, 2.0, 6.0]).repeat(20)[:, None]
    logits = torch.randn(80, 3001, generator=generator) * spreads
    logits[40:] = (logits[40:] * 4).round() / 4
    rows = rows_of(80, top_p=top_p, **parameters)
    assert torch.equal(native.sample(logits, rows), reference.sample(logits, rows))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0},
        {},
        {"temperature": 1e-38},
        {"top_k": 7},
        {"top_p": 0.5},
        {"min_p": 0.3},
        {"min_p": 2.0},
        {"top_k": 3000, "top_p": 0.9},
        {"typical_p": 0.5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"typical_p": 0.5, "xtc_probability": 1.0, "temperature": 1e-38},
    ],
)
@pytest.mark.parametrize("vocabulary", [1, 61, 5003])
def test_a_row_without_numbers_draws_no_token_and_changes_no_other(
    face: str, parameters: dict[str, float], vocabulary: int, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    sound = torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits, places = sound.clone(), torch.tensor([0, vocabulary // 2, vocabulary - 1])
    broken = torch.tensor([1, 3, 5, 7, 9, 11])
    logits[broken[:3], places] = torch.nan
    logits[broken[3]] = -torch.inf
    logits[broken[4], places[1]] = torch.inf
    logits[broken[5]] = torch.nan
    rows = rows_of(12, **parameters)
    expected = kernels.sample(sound, rows)
    expected[broken] = NO_TOKEN
    found = kernels.sample(logits, rows)
    assert torch.equal(found, expected)

    top_n = min(5, vocabulary)
    scored = kernels.token_logprobs(logits, found, top_n)
    assert scored.logprob[broken].isnan().all()
    assert scored.rank[broken].tolist() == [0] * 6
    assert not scored.top_ids[broken].any()
    assert scored.top_logprobs[broken].isnan().all()
    kept = found != NO_TOKEN
    alone = kernels.token_logprobs(sound[kept], found[kept], top_n)
    for name, value in vars(alone).items():
        assert torch.equal(getattr(scored, name)[kept], value)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [*range(0, 200, 7), 199])
def test_one_nan_anywhere_is_found_and_other_extremes_are_none(
    native: Kernels, reference: Kernels, place: int, temperature: float
) -> None:
    huge = torch.finfo(torch.float32).max
    logits = torch.full((6, 200), -1.0)
    logits[:5, place] = torch.tensor([torch.nan, -torch.nan, -torch.inf, huge, -huge])
    # A sum of these is infinite, and NaN where minus infinity comes to it.
    logits[3] = huge
    logits[3, place] = -torch.inf
    logits[5], logits[5, place] = -huge, torch.nan
    rows = rows_of(6, temperature=temperature)
    found = native.sample(logits, rows)
    assert (found == NO_TOKEN).tolist() == [True, True, False, False, False, True]
    assert torch.equal(found, reference.sample(logits, rows))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("vocabulary", [1, 63, 64, 65, 700])
def test_greedy_takes_the_first_of_the_largest_wherever_they_are(
    face: str, vocabulary: int, request: pytest.FixtureRequest
) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    logits = torch.arange(vocabulary).remainder(3).float().expand(vocabulary, -1).clone()
    for first in range(vocabulary):
        logits[first, first::5] = 7.0
    found = kernels.sample(logits, rows_of(vocabulary, temperature=0.0))
    assert found.tolist() == list(range(vocabulary))


@pytest.mark.parametrize("face", FACES)
def test_a_row_never_depends_on_its_company(face: str, request: pytest.FixtureRequest) -> None:
    kernels: Kernels = request.getfixturevalue(face)
    logits = torch.randn(30, 500)
    rows = rows_of(30, top_p=0.9, typical_p=0.9, xtc_probability=0.5, xtc_threshold=0.02)
    together = kernels.sample(logits, rows)
    for i in range(30):
        assert kernels.sample(logits[i : i + 1], row_of(rows, i))[0] == together[i]


@pytest.mark.parametrize("top_n", [0, 1, 5, 700])
def test_logprobs_and_ranks(native: Kernels, reference: Kernels, top_n: int) -> None:
    logits = torch.randn(12, 700) * 3
    logits[3:6] = logits[3:6].round()
    tokens = torch.randint(0, 700, (12,))
    found = native.token_logprobs(logits, tokens, top_n)
    wanted = reference.token_logprobs(logits, tokens, top_n)
    assert torch.equal(found.rank, wanted.rank)
    assert torch.equal(found.top_ids, wanted.top_ids)
    torch.testing.assert_close(found.logprob, wanted.logprob, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(found.top_logprobs, wanted.top_logprobs, rtol=1e-5, atol=2e-5)
    if top_n:
        best = reference.token_logprobs(logits, found.top_ids[:, 0], 1)
        assert torch.equal(best.rank, torch.ones(12, dtype=torch.int64))


def test_wrong_arguments_are_refused(native: Kernels) -> None:
    with pytest.raises(KernelArgumentError, match="rows"):
        native.sample(torch.zeros(2, 3), rows_of(3))
    with pytest.raises(KernelArgumentError, match="top_n"):
        native.token_logprobs(torch.zeros(2, 3), torch.zeros(2).long(), 4)
    with pytest.raises(KernelArgumentError, match="logits_RV"):
        native.sample(torch.zeros(2, 3).double(), rows_of(2))
