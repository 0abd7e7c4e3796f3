"""Hit ratios against a slow, obvious replay, and against the reference values of public traces."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bench.traces.reader import read_trace
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.policy.eviction.policies import EVICTIONS
from tandem.twin.cache_replay import BoundedCache, ExpiringCache, replay_cache

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared/data/traces"
EXCERPT = ROOT / "tests/bench/data/mooncake_conversation_300.jsonl.gz"
CONVERSATION = "mooncake_fast25_conversation_trace.jsonl.gz"
SURROGATE = "mooncake_toolagent_SURROGATE.jsonl.gz"


@cache
def recorded(name):
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_trace(path)


def shares(rows, block_cache):
    hits = replay_cache(rows, block_cache)
    return round(hits.token_share, 5), round(hits.block_share, 5)


@pytest.mark.parametrize(
    ("blocks", "tokens_found", "blocks_found"),
    [
        (1953, 0.05432, 0.05328),
        (5859, 0.13873, 0.13608),
        (19531, 0.29078, 0.28518),
        (58593, 0.36585, 0.35879),
        (None, 0.37362, 0.36641),
    ],
)
def test_lru_reference(blocks, tokens_found, blocks_found):
    found = shares(recorded(CONVERSATION), BoundedCache(blocks))
    assert found == (tokens_found, blocks_found)


@pytest.mark.parametrize(
    ("blocks", "fifo", "lfu"),
    [
        (1953, 0.05299, 0.06017),
        (5859, 0.12745, 0.0988),
        (19531, 0.26113, 0.2107),
        (58593, 0.34807, 0.35911),
    ],
)
def test_fifo_and_lfu_reference(blocks, fifo, lfu):
    assert shares(recorded(CONVERSATION), BoundedCache(blocks, "fifo"))[0] == fifo
    assert shares(recorded(CONVERSATION), BoundedCache(blocks, "lfu"))[0] == lfu


def test_totals_reference():
    hits = replay_cache(recorded(CONVERSATION), BoundedCache(None))
    assert (hits.requests, hits.blocks, hits.unique_blocks) == (12_031, 288_500, 182_790)
    assert round(hits.mean_request_share, 5) == 0.40938


@pytest.mark.parametrize(("ttl_s", "tokens_found"), [(60, 0.10537), (600, 0.35012)])
def test_ttl_reference(ttl_s, tokens_found):
    assert shares(recorded(CONVERSATION), ExpiringCache(ttl_s))[0] == tokens_found


@pytest.mark.parametrize(
    ("blocks", "lru", "lfu"),
    [
        (1_000, 0.305, 0.307),
        (10_000, 0.409, 0.364),
        (30_000, 0.492, 0.460),
        (50_000, 0.515, 0.506),
        (100_000, 0.521, None),
        (None, 0.524, None),
    ],
)
def test_surrogate_reference(blocks, lru, lfu):
    rows = recorded(SURROGATE)
    assert round(replay_cache(rows, BoundedCache(blocks)).block_share, 3) == lru
    if lfu is not None:
        assert round(replay_cache(rows, BoundedCache(blocks, "lfu")).block_share, 3) == lfu


def test_the_surrogate_at_three_million_tokens():
    rows = recorded(SURROGATE)
    part = replay_cache(rows, BoundedCache(5859)).token_share
    assert round(part / replay_cache(rows, BoundedCache(None)).token_share, 3) == 0.687


def test_unbounded_synthetic_reference():
    rows = recorded("mooncake_fast25_synthetic_trace.jsonl.gz")
    hits = replay_cache(rows, BoundedCache(None))
    assert (round(hits.token_share, 4), round(hits.block_share, 4)) == (0.6512, 0.6396)


def test_excerpt():
    rows = read_trace(EXCERPT)
    hits = replay_cache(rows, BoundedCache(None))
    assert (hits.requests, hits.blocks, hits.unique_blocks) == (300, 8490, 7814)
    assert hits.hit_blocks == 8490 - 7814
    # Counted once with lists and scans.
    for eviction, hit_blocks in {"lru": 360, "fifo": 358, "lfu": 364}.items():
        assert replay_cache(rows, BoundedCache(3000, eviction)).hit_blocks == hit_blocks


PROMPTS = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=40
).map(lambda paths: [tuple(_chained(path)) for path in paths])


def _chained(path):
    """Block ids that name the whole way to them, as a prefix hash does."""
    block_id = 0
    for step in path:
        block_id = block_id * 4 + step + 1
        yield block_id


def rows_of(prompts):
    return [
        TraceRow(float(place), len(ids) * 16 - place % 16, 1, ids, 16)
        for place, ids in enumerate(prompts)
    ]


@given(PROMPTS, st.integers(1, 12))
def test_lru_against_a_list(prompts, capacity):
    order, hit_blocks, hit_tokens = [], 0, 0
    rows = rows_of(prompts)
    for row in rows:
        found = 0
        while found < len(row.block_ids) and row.block_ids[found] in order:
            found += 1
        hit_blocks += found
        hit_tokens += min(16 * found, row.prompt_tokens)
        order = [key for key in order if key not in row.block_ids] + list(row.block_ids[::-1])
        order = order[-capacity:]
    hits = replay_cache(rows, BoundedCache(capacity))
    assert (hits.hit_blocks, hits.hit_tokens) == (hit_blocks, hit_tokens)


@pytest.mark.parametrize("eviction", EVICTIONS)
@given(prompts=PROMPTS, capacity=st.integers(1, 12))
def test_no_cache_beats_the_unbounded_one(eviction, prompts, capacity):
    rows = rows_of(prompts)
    best = replay_cache(rows, BoundedCache(None))
    found = replay_cache(rows, BoundedCache(capacity, eviction))
    assert found.hit_blocks <= best.hit_blocks
    if capacity >= best.unique_blocks:
        assert found == best


@given(PROMPTS, st.integers(1, 40))
def test_a_ttl_is_a_look_back(prompts, ttl_s):
    rows = rows_of(prompts)
    expected = 0
    for place, row in enumerate(rows):
        recent = {
            block for earlier in rows[max(0, place - ttl_s) : place] for block in earlier.block_ids
        }
        for block in row.block_ids:
            if block not in recent:
                break
            expected += 1
    assert replay_cache(rows, ExpiringCache(ttl_s)).hit_blocks == expected


def test_no_rows_have_no_hits():
    hits = replay_cache([], BoundedCache(None))
    assert (hits.token_share, hits.block_share, hits.mean_request_share) == (0.0, 0.0, 0.0)


def test_bad_input_is_named():
    with pytest.raises(InvalidConfiguration, match="capacity must be at least 1 block, got 0"):
        BoundedCache(0)
    with pytest.raises(InvalidConfiguration, match="ttl must be more than 0 seconds, got -1"):
        ExpiringCache(-1.0)
    rows = [TraceRow(0.0, 16, 1, (1,), 16), TraceRow(0.0, 512, 1, (2,), 512)]
    with pytest.raises(InvalidConfiguration, match="one block size, got 16, 512"):
        replay_cache(rows, BoundedCache(None))
