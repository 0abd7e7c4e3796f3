"""`tandem traces`, and traces by name in the verbs that play them."""

import pytest

from tandem.bench.traces.drawn import MixDraw, draw_mix
from tandem.config.traces import RECORDED
from tests.commands.cli import tandem


def test_it_lists_what_there_is_and_where_others_are():
    shown = tandem("traces").stdout
    assert "chats-and-agents: 478 requests of 109 sessions" in shown
    for each in RECORDED:
        assert each.url in shown and each.licence in shown


def test_it_draws_one_that_can_be_played(tmp_path):
    path = tmp_path / "mine.jsonl.gz"
    flags = ["--seed", 4, "--seconds", 120, "--chats-per-minute", 3, "--agents-per-minute", 1]
    drawn = tandem("traces", "--draw", path, *flags)
    rows = draw_mix(MixDraw(4, 120, 3, 1))
    assert drawn.stdout.startswith(f"{len(rows)} requests")
    shown = tandem("hits", path, "--capacity", "1k")
    assert f"{len(rows)} requests" in shown.stdout
    missing = tandem("traces", "--draw", tmp_path / "no" / "x.jsonl")
    assert missing.exit_code == 2 and "--draw: there is no folder" in missing.stderr


def test_a_trace_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "478 requests" in tandem("hits", "chats-and-agents", "--capacity", "1k").stdout
    # A file of that name is meant first.
    row = '{"arrival_s": 0, "prompt_tokens": 40, "output_tokens": 1, "block_ids": [1]}\n'
    (tmp_path / "chats-and-agents").write_text(row)
    assert "1 requests" in tandem("hits", "chats-and-agents", "--capacity", "1k").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("hits", "chat-and-agents"),
        ("simulate", "laptop", "--trace", "chat-and-agents"),
        ("bench", "--trace", "chat-and-agents"),
    ],
)
def test_a_name_that_is_none_is_told_what_may_be_meant(words):
    shown = tandem(*words)
    assert shown.exit_code == 2
    assert "did you mean chats-and-agents?" in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
