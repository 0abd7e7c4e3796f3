"""Sessions of agents: characters become tokens, runs become blocks, gaps become think times."""

from itertools import pairwise
from pathlib import Path

import pytest

from tandem.bench.traces.reader import read_trace
from tandem.twin.cache_replay import BoundedCache, replay_cache

ROOT = Path(__file__).parents[3]
EXCERPT = ROOT / "tests/twin/data/agents_excerpt.jsonl.gz"
WHOLE = ROOT.parent / "shared/data/traces/lmcache_agent_derived_hash64ch.jsonl.gz"


def test_calls_of_a_session_follow_each_other():
    rows = read_trace(EXCERPT)
    sessions = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    assert len(sessions) == 9
    assert {row.tenant for row in rows} == {"miniswe", "magagent", "taubench"}
    for calls in sessions.values():
        assert calls[0].think_s == 0.0
        for earlier, later in pairwise(calls):
            assert later.think_s == later.arrival_s - earlier.arrival_s


def test_characters_and_runs():
    first, second = [row for row in read_trace(EXCERPT) if row.tenant == "miniswe"][:2]
    # 5,433 and 5,480 characters; 84 and 85 whole blocks of 64.
    assert (first.prompt_tokens, first.output_tokens, first.block_tokens) == (1358, 121, 16)
    assert (second.prompt_tokens, second.arrival_s) == (1370, 2.587)
    assert first.block_ids == tuple(range(84))
    assert second.block_ids == tuple(range(85))


@pytest.mark.parametrize(
    ("workload", "share"), [("miniswe", 0.936), ("magagent", 0.837), ("taubench", 0.826)]
)
def test_reuse_reference(workload, share):
    """The published shares count characters; ours count whole tokens of four of them."""
    if not WHOLE.exists():
        pytest.skip(f"{WHOLE} is not here")
    rows = [row for row in read_trace(WHOLE) if row.tenant == workload]
    found = replay_cache(rows, BoundedCache(None)).token_share
    assert found == pytest.approx(share, abs=0.002)
