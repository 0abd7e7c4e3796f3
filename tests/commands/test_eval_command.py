"""`tandem eval`: the same tasks everywhere, verdicts that fit them, intervals that are Wilson's."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tandem.bench.tasks.chat import ChatReply
from tandem.bench.tasks.evaluation import (
    SUITES,
    EvaluationSettings,
    choose_suites,
    count_pieces,
    evaluate,
    majority,
    make_tasks,
    scaled_counter,
    wilson_interval,
)
from tandem.bench.tasks.fluency import is_fluent
from tandem.facts.sampling import SamplingParameters
from tests.bench.scripted_server import Script, ScriptedServer
from tests.commands.cli import tandem


def run(url: str, *flags: str) -> Result:
    return tandem("eval", "--url", url, *flags)


class Oracle:
    """A chat model that knows every reference of the suites, and is wrong where it is told to."""

    def __init__(self, wrong_every: int = 0) -> None:
        self.references: dict[str, Any] = {}
        self.asked: list[SamplingParameters] = []
        self.wrong_every = wrong_every
        for suite in SUITES:
            for task in make_tasks(suite, 12, 0, scaled_counter(1.0)):
                self.references[key(task.messages)] = task.reference

    async def complete_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: SamplingParameters,
    ) -> ChatReply:
        self.asked.append(sampling)
        reference = self.references[key(messages)]
        if self.wrong_every and len(self.asked) % self.wrong_every == 0:
            return ChatReply("x")
        calls = tuple(call["function"] for call in reference.get("tool_calls", ()))
        return ChatReply(reference["content"], calls)

    async def count_tokens(self, text: str) -> int:
        return count_pieces(text)


def key(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(str(message["content"]) for message in messages)


def test_an_oracle_in_process_scores_full_marks() -> None:
    oracle = Oracle()
    scores = asyncio.run(evaluate(oracle, EvaluationSettings(SUITES, samples=12)))
    assert [score.suite.name for score in scores] == [suite.name for suite in SUITES]
    assert all(score.share == 1.0 for score in scores), [s.share for s in scores]
    votes = [sampling for sampling in oracle.asked if sampling.temperature == 0.8]
    assert len(votes) == 12 * 8
    assert len({sampling.seed for sampling in votes}) == len(votes)


def test_wrong_replies_count() -> None:
    suites = choose_suites("arithmetic")
    (score,) = asyncio.run(evaluate(Oracle(wrong_every=3), EvaluationSettings(suites, samples=12)))
    assert score.right == 8


def test_over_http_with_calls_and_json(tmp_path: Path) -> None:
    oracle, output = Oracle(), tmp_path / "scores.json"

    def reply(messages: list[dict[str, Any]]) -> str | dict[str, Any]:
        reference = oracle.references.get(key(messages))
        if reference is None:
            return "no idea"
        if not reference.get("tool_calls"):
            return str(reference["content"])
        function = reference["tool_calls"][0]["function"]
        function = {"name": function["name"], "arguments": json.dumps(function["arguments"])}
        return {"tool_calls": [{"index": 0, "id": "c", "function": function}]}

    with ScriptedServer(Script(reply=reply)) as server:
        flags = ["--tasks", "arithmetic,tool-call", "--samples", "12", "--output", str(output)]
        result = run(server.url, *flags)
        assert result.exit_code == 0, result.output
        asked = [message for body in server.bodies for message in body.get("messages", ())]
    arguments = [
        call["function"]["arguments"]
        for message in asked
        for call in message.get("tool_calls") or ()
    ]
    assert all(isinstance(text, str) for text in arguments)
    assert all("tool_call_id" in message for message in asked if message["role"] == "tool")
    document = json.loads(output.read_text())
    assert [suite["score"] for suite in document["suites"]] == [1.0, 1.0]
    assert len(document["suites"][0]["tasks"]) == 12
    assert "reached" in result.stdout and "100.0%" in result.stdout


def test_replies_that_do_not_come_are_wrong_and_explained() -> None:
    with ScriptedServer(Script(refuse=lambda _: 503)) as server:
        result = run(server.url, "--tasks", "fluency", "--samples", "3")
    assert result.exit_code == 0
    assert "3 without a reply: HTTP 503" in result.stdout


@pytest.mark.parametrize("tasks", ["recall-1k", "recall-2k", "recall-4k"])
def test_recall_prompts_have_their_length(tasks: str) -> None:
    (suite,) = choose_suites(tasks)
    wanted = int(tasks[-2]) * 1000
    for task in make_tasks(suite, 3, 0, scaled_counter(1.3)):
        pieces = count_pieces(str(task.messages[0]["content"]))
        assert pieces * 1.3 == pytest.approx(wanted, rel=0.1)


def test_same_seed_same_tasks_and_more_samples_keep_the_first() -> None:
    for suite in SUITES:
        counter = scaled_counter(1.0)
        few, many = make_tasks(suite, 3, 5, counter), make_tasks(suite, 6, 5, counter)
        assert many[:3] == few
        assert make_tasks(suite, 3, 6, counter) != few


def test_majority_vote() -> None:
    texts = ["Answer: 1", "Answer: 22", "no answer", "so Answer: 22", "Answer: 3"]
    assert majority(texts) == "Answer: 22"
    assert majority(["Answer: 7", "Answer: 8"]) == "Answer: 7"
    assert majority(["none", "neither"]) == "none"


def test_wilson_interval() -> None:
    # Known values: 8 of 10 gives 0.4902 to 0.9433 (Wilson's interval as published tables have it).
    low, high = wilson_interval(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson_interval(0, 20)[0] == 0.0
    assert wilson_interval(20, 20) == (pytest.approx(0.8389, abs=1e-4), 1.0)


def test_fluency() -> None:
    assert is_fluent("A small dog ran over the wet grass. It didn't see the cat behind the tree.")
    assert not is_fluent("Yes.")
    assert not is_fluent("faint clay ferry Monday seal fir mask island galaxy. Pumpkin piano bear.")
    assert not is_fluent("The dog is on the mat and it was not and then it is of the")
    assert not is_fluent("the cat sat on the mat " * 8)
    assert not is_fluent("��� a b c d e f ���")


def test_unknown_suites_are_named() -> None:
    result = run("http://127.0.0.1:9", "--tasks", "recall-9k")
    assert result.exit_code == 2
    assert "--tasks knows recall-1k" in result.stderr
