"""Planned workloads: the same for the same seed, as long as asked, sharing what they say."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.bench.laws import Arrivals, parse_length_law, read_length_pairs
from tandem.bench.traces.reader import read_trace
from tandem.bench.workload import (
    Content,
    ContentSource,
    Conversation,
    PlannedRequest,
    Replay,
    Segment,
    Synthetic,
    arrive,
    clip_prompts,
    plan_replay,
    plan_synthetic,
    plan_warmup,
    trace_segments,
)
from tandem.facts.trace import TraceRow

DATA = Path(__file__).parent / "data"
VOCABULARY = 1000
_SOURCE = ContentSource(0)


def synthetic(**changes: object) -> list[Conversation]:
    laws = {
        "num_prompts": 30,
        "input_law": parse_length_law("uniform:5-40", "--input-tokens"),
        "output_law": parse_length_law("normal:10,3", "--output-tokens"),
    }
    return plan_synthetic(Synthetic(**(laws | changes)))  # type: ignore[arg-type]


def requests_of(plan: list[Conversation]) -> list[PlannedRequest]:
    return [turn for conversation in plan for turn in conversation.turns]


def tokens_of(request: PlannedRequest, source: ContentSource = _SOURCE) -> list[int]:
    return source.token_ids(request.segments, VOCABULARY)


def shared_tokens(first: list[int], second: list[int]) -> int:
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))


def test_same_seed_same_requests() -> None:
    plan = synthetic(seed=3, shared_prefix_tokens=8, prefix_groups=2)
    again = synthetic(seed=3, shared_prefix_tokens=8, prefix_groups=2)
    assert plan == again
    assert arrive(plan, Arrivals(3.0), 5) == arrive(again, Arrivals(3.0), 5)
    other = synthetic(seed=4, shared_prefix_tokens=8, prefix_groups=2)
    assert [r.prompt_tokens for r in requests_of(plan)] != [
        r.prompt_tokens for r in requests_of(other)
    ]


def test_lengths_hold_in_tokens_and_in_words() -> None:
    for request in requests_of(synthetic()):
        assert len(tokens_of(request)) == request.prompt_tokens
        assert len(ContentSource(0).text(request.segments).split()) == request.prompt_tokens
        assert all(0 <= token < VOCABULARY for token in tokens_of(request))
        assert request.output_tokens >= 1


def test_points_of_a_sweep_and_seeds_share_no_prompt() -> None:
    request = synthetic(input_law=parse_length_law("64", "x"))[0].turns[0]
    prompts = [
        tokens_of(request, ContentSource(seed, point)) for seed in (0, 1) for point in (0, 1)
    ]
    for place, prompt in enumerate(prompts):
        assert all(shared_tokens(prompt, other) < 3 for other in prompts[:place])


def test_prefix_groups_share_their_prefix_and_nothing_else() -> None:
    plan = synthetic(shared_prefix_tokens=20, prefix_groups=3, seed=1)
    groups = defaultdict(list)
    for request in requests_of(plan):
        groups[request.segments[0].key].append(tokens_of(request))
    assert len(groups) == 3
    for prompts in groups.values():
        for prompt in prompts[1:]:
            assert 20 <= shared_tokens(prompts[0], prompt) < 23
    firsts = [prompts[0] for prompts in groups.values()]
    assert shared_tokens(firsts[0], firsts[1]) < 3


def test_turns_carry_their_history() -> None:
    plan = synthetic(num_prompts=7, turns=3, think_s=0.5)
    assert [len(conversation.turns) for conversation in plan] == [3, 3, 1]
    assert plan[0].think_s == 0.5
    first, second, third = plan[0].turns
    assert tokens_of(second)[: first.prompt_tokens] == tokens_of(first)
    assert tokens_of(third)[: second.prompt_tokens] == tokens_of(second)
    assert second.prompt_tokens > first.prompt_tokens + first.output_tokens
    assert [request.index for request in requests_of(plan)] == list(range(7))


def test_length_pairs_replace_the_laws() -> None:
    pairs = read_length_pairs(DATA / "lengths_sharegpt_200.csv")
    known = {tuple(pair) for pair in pairs.tolist()}
    for request in requests_of(synthetic(length_pairs=pairs, num_prompts=50)):
        assert (request.prompt_tokens, request.output_tokens) in known


@pytest.mark.parametrize("scale", [1.0, 0.03, 0.3])
def test_prefix_sharing_of_a_trace_is_that_of_its_ids(scale: float) -> None:
    rows = read_trace(DATA / "mooncake_conversation_300.jsonl.gz")
    plan = requests_of(plan_replay(Replay(tuple(rows), scale_lengths=scale)))
    prompts = [tokens_of(request) for request in plan]
    pairs = 0
    for place, row in enumerate(rows):
        assert len(prompts[place]) == max(1, round(row.prompt_tokens * scale))
        for earlier in range(place):
            ids = shared_tokens(list(row.block_ids), list(rows[earlier].block_ids))
            expected = min(round(ids * 512 * scale), len(prompts[place]), len(prompts[earlier]))
            # Different random content may agree for a token or two.
            assert expected <= shared_tokens(prompts[place], prompts[earlier]) <= expected + 3
            pairs += ids > 1
    assert pairs > 10


@given(
    st.integers(1, 5000),
    st.lists(st.integers(0, 50), max_size=12),
    st.floats(0.001, 2.0),
)
@settings(max_examples=200, deadline=None)
def test_segments_cover_the_prompt(prompt_tokens: int, ids: list[int], scale: float) -> None:
    row = TraceRow(0.0, prompt_tokens, 1, tuple(ids))
    segments = trace_segments(row, 9, scale)
    assert sum(segment.tokens for segment in segments) == max(1, round(prompt_tokens * scale))
    assert all(segment.tokens > 0 for segment in segments)


def test_speed_and_spread() -> None:
    rows = tuple(TraceRow(3.0 * (index // 5), 10, 2) for index in range(20))
    plain = plan_replay(Replay(rows, speed=2.0))
    assert [conversation.arrival_s for conversation in plain] == [
        1.5 * (index // 5) for index in range(20)
    ]
    spread = plan_replay(Replay(rows, speed=2.0, spread_s=3.0))
    instants_s = [conversation.arrival_s for conversation in spread]
    assert instants_s == sorted(instants_s)
    assert len(set(instants_s)) == 20
    assert all(0 <= instant_s < 6.0 for instant_s in instants_s)


def test_clipping_keeps_the_front() -> None:
    plan = synthetic(shared_prefix_tokens=20)
    for whole, cut in zip(requests_of(plan), requests_of(clip_prompts(plan, 25)), strict=True):
        assert cut.prompt_tokens == min(25, whole.prompt_tokens)
        assert tokens_of(whole)[:25] == tokens_of(cut)


def test_a_shorter_segment_is_a_prefix() -> None:
    key = (Content.TRACE_BLOCK, 123456)
    long = ContentSource(5).token_ids((Segment(key, 512),), 50257)
    for tokens in (1, 7, 100, 511):
        assert ContentSource(5).token_ids((Segment(key, tokens),), 50257) == long[:tokens]


def test_warmup_is_as_long_and_shares_nothing() -> None:
    plan = synthetic(num_prompts=3)
    warmup = requests_of(plan_warmup(5, plan))
    assert [request.prompt_tokens for request in warmup] == [
        requests_of(plan)[index % 3].prompt_tokens for index in range(5)
    ]
    assert shared_tokens(tokens_of(warmup[0]), tokens_of(requests_of(plan)[0])) < 3
