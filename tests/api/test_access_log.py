"""What the access log has of calls that several requests or none were made of."""

import json

import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ResponseCacheConfig
from tandem.facts.errors import EngineFailed
from tests.api.server import client_of
from tests.waiting import until

ASKED = {"prompt": "hello", "max_tokens": 50}
GANG = ASKED | {"scaling": {"method": "self-consistency", "samples": 3}}


class Lines(list):
    """A log in memory."""

    lost_lines = 0

    def write(self, line: bytes) -> None:
        self.append(json.loads(line))


@pytest.fixture
def lines():
    return Lines()


@pytest.fixture
def logged(generator, text, lines):
    config = ApiConfig(response_cache=ResponseCacheConfig(limit_bytes=1 << 20))
    with client_of(build_app(generator, text, config, lines)) as client:
        yield client


@pytest.fixture
def ask(logged, lines):
    """Asks, and gives the answer and its line, which comes after it."""

    def ask(body, **headers):
        before = len(lines)
        answer = logged.post("/v1/completions", json=body, headers=headers)
        until(lambda: len(lines) == before + 1)
        return answer, lines[-1]

    return ask


def test_an_answer_out_of_the_response_cache(ask, generator):
    generator.script.answer = "a fox " * 9
    seeded = ASKED | {"temperature": 0.9, "seed": 4}
    bodies = (seeded, seeded, seeded | {"n": 2}, seeded | {"n": 2, "stream": True})
    lines = [ask(body, **{"x-tier": "gold"})[1] for body in bodies]
    assert [line["cached"] for line in lines] == [False, True, False, True]
    assert {line["class"] for line in lines} == {"gold"}
    once, again = lines[:2]
    for name in ("prompt_tokens", "output_tokens", "answers", "finish_reasons"):
        assert again[name] == once[name]
    assert again["cached_tokens"] == again["prompt_tokens"]
    assert 0 < again["ttft_s"] <= again["total_s"]
    assert ask({"prompt": 5})[1]["cached"] is None


def test_a_gang_has_the_tokens_and_times_of_all_its_samples(ask, generator):
    generator.script.answer = "a fox " * 9
    answer, line = ask(GANG)
    usage = answer.json()["usage"]
    assert line["output_tokens"] == usage["completion_tokens"] > 3 * 9
    assert (line["answers"], line["finish_reasons"]) == (1, ["stop"])
    assert (line["code"], line["cached"]) == (None, False)
    # Three samples at the same time.
    later_tokens = line["output_tokens"] / 3 - 1
    assert line["tpot_s"] > 0
    assert line["ttft_s"] + line["tpot_s"] * later_tokens <= line["total_s"]


def test_a_gang_that_failed_has_what_it_used(ask, generator):
    generator.script.answer = "a fox " * 9
    generator.script.fail_after, generator.script.failure = 8, EngineFailed("it broke")
    _, line = ask(GANG)
    assert (line["status"], line["code"], line["finish_reasons"]) == (503, "engine_failed", [])
    assert line["output_tokens"] >= 3 * 7
    assert line["ttft_s"] > 0


def test_looks_of_an_open_page_are_no_calls(ask, logged, lines):
    for path in ("/", "/tandem/overview?since=3", "/tandem/requests"):
        logged.get(path)
    _, line = ask(ASKED)
    assert lines == [line]


def test_lines_that_were_lost_are_counted(logged, lines):
    lines.lost_lines = 3
    metric = 'tandem:access_log_lost_lines_total{model_name="tiny"} 3.0'
    assert metric in logged.get("/metrics").text


@pytest.fixture
def content(generator, text):
    """A log that has up to 32 bytes of prompts and answers."""
    lines = Lines()
    config = ApiConfig(log_content_bytes=32)
    with client_of(build_app(generator, text, config, lines)) as client:

        def ask(path, body):
            before = len(lines)
            client.post(path, json=body)
            until(lambda: len(lines) == before + 1)
            return lines[-1]

        yield ask


def test_nothing_that_was_said_is_in_the_log_unless_it_is_wanted(ask, generator):
    generator.script.answer = "a fox "
    _, line = ask(ASKED)
    assert not {"prompts", "texts", "content_cut"} & line.keys()
    assert "trace_id" not in line
    assert "fox" not in json.dumps(line)


def test_prompts_and_answers_are_in_the_log_as_the_model_has_them(content, generator):
    generator.script.answer = "a fox "
    line = content("/v1/completions", ASKED | {"prompt": ["hello", "what"], "n": 2})
    assert [each.strip() for each in line["prompts"]] == ["hello", "what"]
    assert len(line["texts"]) == 4
    assert sum(len(each.encode()) for each in line["texts"]) <= 32
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    line = content("/v1/chat/completions", chat)
    assert "hello" in line["prompts"][0]
    assert "fox" in line["texts"][0]
    # A call that failed before it was read has said nothing.
    assert "prompts" not in content("/v1/completions", {"prompt": 5})


def test_what_is_too_long_is_cut_at_a_letter(content, generator):
    generator.script.answer = "né" * 40
    line = content("/v1/completions", ASKED | {"prompt": "é" * 40})
    for kept in (line["prompts"], line["texts"]):
        (text,) = kept
        assert 16 <= len(text.encode()) <= 32
        assert "\ufffd" not in text
    assert line["content_cut"]
    generator.script.answer = "a fox "
    assert not content("/v1/completions", ASKED | {"max_tokens": 2})["content_cut"]


def test_the_answer_of_a_gang_is_that_of_its_winner(content, generator):
    generator.script.answer = "a fox "
    line = content("/v1/completions", GANG | {"max_tokens": 4})
    (text,) = line["texts"]
    assert "fox" in text
