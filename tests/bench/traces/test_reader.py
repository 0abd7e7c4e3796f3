"""Trace files of every kind are read alike; what is wrong in them is named with its line."""

import itertools
from itertools import pairwise
from pathlib import Path

import pytest

from tandem.bench.traces.reader import read_trace
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.trace import TraceRow
from tandem.twin.cache_replay import BoundedCache, replay_cache

DATA = Path(__file__).parents[1] / "data"


def test_mooncake() -> None:
    rows = read_trace(DATA / "mooncake_conversation_300.jsonl.gz")
    assert len(rows) == 300
    assert (rows[0].prompt_tokens, rows[0].output_tokens) == (6758, 500)
    assert rows[-1].arrival_s == pytest.approx(102.0)
    for row in rows:
        assert len(row.block_ids) == -(-row.prompt_tokens // 512)


def test_azure() -> None:
    rows = read_trace(DATA / "azure_conv_200.csv")
    assert len(rows) == 200
    assert rows[0].arrival_s == 0.0
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(rows))
    assert rows[0].block_ids == ()
    # The excerpt's first and last instants, subtracted by hand.
    assert rows[-1].arrival_s == pytest.approx(61.2635, abs=0.001)


def test_own_format_starts_at_zero_in_order(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"arrival_s": 9.5, "prompt_tokens": 40, "output_tokens": 3, "ttft_s": 0.1}\n'
        '{"arrival_s": 8, "prompt_tokens": 30, "output_tokens": 0, "block_ids": [4, 5],'
        ' "block_tokens": 16}\n\n'
    )
    first, second = read_trace(path)
    assert (first.arrival_s, first.block_ids, first.block_tokens) == (0.0, (4, 5), 16)
    assert first.output_tokens == 1
    assert second.arrival_s == 1.5


def test_own_format_with_everything(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"arrival_s": 0, "prompt_tokens": 40, "output_tokens": 3, "session": "a", "think_s": 1.5,'
        ' "tenant": "t", "service_class": "batch", "answers": 8}\n'
    )
    assert read_trace(path) == [
        TraceRow(
            0.0,
            40,
            3,
            session="a",
            think_s=1.5,
            tenant="t",
            service_class="batch",
            answers=8,
        )
    ]


@pytest.mark.parametrize("field", ["answers", "block_tokens", "think_s"])
def test_impossible_values_are_named_with_their_line(tmp_path: Path, field: str) -> None:
    path = tmp_path / "own.jsonl"
    row = '{"arrival_s": 0, "prompt_tokens": 40, "output_tokens": 3'
    path.write_text(f'{row}}}\n{row}, "{field}": -1}}\n')
    with pytest.raises(InvalidConfiguration, match=f"line 2: .*{field}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no rows"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no rows"),
        ("a,b\n1,2\n", "neither"),
        ("num_prefill_tokens,num_decode_tokens\n1,2\n", "give it as --lengths-file"),
        ("workload,window_start_s,rate_rps\na,0,1\na,600,x\n", "line 3"),
        ('{"runs": [[0, 1]], "session": "a"}\n', "line 1.*workload"),
        ('{"timestamp": 1, "input_length": 2}\n', "line 1.*output_length"),
        ('{"arrival_s": 1}\n', "line 1.*prompt_tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", "line 2"),
    ],
)
def test_bad_content_is_named(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(InvalidConfiguration, match=problem):
        read_trace(path)


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
