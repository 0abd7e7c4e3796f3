"""A drawn trace: the same seed, the same bytes; the bundled one is drawn with the defaults."""

import gzip
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tandem.bench.traces.drawn import MixDraw, draw_mix, trace_lines, write_trace
from tandem.bench.traces.reader import read_trace
from tandem.config.traces import find_trace
from tandem.facts.errors import InvalidConfiguration

MOST_BYTES = 200_000


def sessions_of(rows):
    sessions = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)
    return sessions


def lengths_of_chats(rows):
    return [(row.arrival_s, row.prompt_tokens) for row in rows if row.tenant == "chats"]


def test_the_bundled_trace_is_what_its_command_draws():
    path = find_trace(Path("chats-and-agents"), "--trace")
    content = gzip.decompress(path.read_bytes())
    assert content == trace_lines(draw_mix(MixDraw()))
    assert path.stat().st_size < len(content) < MOST_BYTES


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_is_written_is_read(tmp_path, name):
    rows = draw_mix(MixDraw(seed=3, seconds=60))
    write_trace(rows, tmp_path / name, "--draw")
    start_s = rows[0].arrival_s
    moved = [replace(row, arrival_s=row.arrival_s - start_s) for row in rows]
    assert read_trace(tmp_path / name) == moved
    with pytest.raises(InvalidConfiguration, match="--draw: cannot write"):
        write_trace(rows, tmp_path / "no" / name, "--draw")


def test_a_seed_decides_and_another_draws_others():
    draw = MixDraw(seed=5, seconds=120)
    assert trace_lines(draw_mix(draw)) == trace_lines(draw_mix(draw))
    assert draw_mix(draw) != draw_mix(replace(draw, seed=6))
    # More of one kind leaves the other as it is.
    more = draw_mix(replace(draw, agents_per_minute=9))
    assert lengths_of_chats(more) == lengths_of_chats(draw_mix(draw))
    with pytest.raises(InvalidConfiguration, match="more seconds"):
        draw_mix(MixDraw(seconds=0.01))


def test_sessions_grow_within_the_context_and_share_their_system_prompt():
    rows = draw_mix(MixDraw(seed=1, context_tokens=3000))
    assert [row.arrival_s for row in rows] == sorted(row.arrival_s for row in rows)
    assert {row.tenant for row in rows} == {"chats", "agents"}
    for session in sessions_of(rows).values():
        for row in session:
            assert row.prompt_tokens + row.output_tokens <= 3000
            assert len(row.block_ids) == row.prompt_tokens // row.block_tokens
        for before, after in pairwise(session):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.block_ids[: len(before.block_ids)] == before.block_ids
            assert after.arrival_s > before.arrival_s + after.think_s
    firsts = [session[0].block_ids[0] for session in sessions_of(rows).values()]
    assert len(set(firsts)) < len(firsts) / 5
    assert max(map(len, sessions_of(rows).values())) > 3
