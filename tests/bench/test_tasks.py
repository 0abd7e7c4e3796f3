"""The bundled tasks: references score, seeds repeat, what is held out stays out of training."""

import hashlib
import json
from collections.abc import Iterable
from random import Random

import pytest

from tandem.bench.tasks.arithmetic import arithmetic, draw_problem, steps
from tandem.bench.tasks.evaluation import SUITES, Suite, make_tasks, scaled_counter
from tandem.bench.tasks.recall import recall
from tandem.bench.tasks.task import (
    ADJECTIVES,
    NOUNS,
    VALUES,
    Task,
    calls_in,
    canonical_call,
    is_held_out,
    score,
)
from tandem.bench.tasks.tool_call import tool_call, tool_conversation
from tandem.bench.workload import ContentSource, Segment

SEEDS = range(40)
# What the tasks of a seed were when the bundled model was trained and measured on them.
DIGESTS = {
    "recall-1k": "5f87c451c2e5299c43f3f05b93b2e636",
    "recall-2k": "c6ccb20fad0376560ed0ad531ce3078d",
    "recall-4k": "610c2ffc88d0657e92571d6029fd339e",
    "arithmetic": "8acd56f2b6fb77c1d72b12e5128584cc",
    "arithmetic-vote": "323e85b68f61b170037133cfb638deb4",
    "tool-call": "3f1a013de164bacc1701f65f5b732d0f",
    "fluency": "2f10069731e23105cd7a1fcfaf200d2e",
}
TRAINING_DIGEST = "e2ddd59036f402168b0d727b02678901"
CONVERSATION_DIGEST = "377905e1fd774226b03d54085f594492"
PROMPT_DIGEST = "6e7eb9f5db036b0cf98e9e2da2e113d7"


def words(text: str) -> int:
    return 2 * len(text.split())


def draw(kind: str, seed: int) -> Task:
    rng = Random(seed)
    if kind == "recall":
        return recall(rng, 600, words)
    return arithmetic(rng) if kind == "arithmetic" else tool_call(rng)


@pytest.mark.parametrize("kind", ["recall", "arithmetic", "tool_call"])
def test_the_reference_reply_scores_and_an_empty_one_does_not(kind):
    for seed in SEEDS:
        task = draw(kind, seed)
        calls = [call["function"] for call in task.reference.get("tool_calls", ())]
        assert score(task, task.reference["content"], calls)
        assert not score(task, "")


@pytest.mark.parametrize("kind", ["recall", "arithmetic", "tool_call"])
def test_the_same_seed_makes_the_same_task(kind):
    assert draw(kind, 3) == draw(kind, 3)


def test_word_pools_do_not_overlap():
    assert len({*ADJECTIVES, *NOUNS, *VALUES}) == len(ADJECTIVES) + len(NOUNS) + len(VALUES)


@pytest.mark.parametrize("context_tokens", [300, 1000, 4000])
def test_a_recall_prompt_has_the_length_that_was_asked_for(context_tokens):
    content = recall(Random(1), context_tokens, words).messages[0]["content"]
    assert 0.9 * context_tokens < words(content) < 1.1 * context_tokens


def test_only_the_asked_name_of_a_recall_task_is_held_out():
    content = recall(Random(2), 800, words).messages[0]["content"]
    names = [line[2:].split(":")[0] for line in content.splitlines() if line.startswith("- ")]
    assert [is_held_out(f"recall {name}") for name in names].count(True) == 1
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("held_out", [True, False])
def test_training_and_evaluation_never_share_a_problem(held_out):
    rng = Random(4)
    problems = [draw_problem(rng, held_out=held_out) for _ in range(200)]
    assert {problem.held_out for problem in problems} == {held_out}


def test_every_written_step_is_true():
    rng = Random(5)
    for _ in range(300):
        for line in steps(draw_problem(rng, held_out=False)).splitlines():
            # "7 + 5 = 12, write 2, carry 1" and "3 - 8: borrow 1, 13 - 8 = 5"
            for part in line.replace(":", ",").split(","):
                left, equals, right = part.partition(" = ")
                if equals:
                    assert eval_sum(left) == int(right)


def eval_sum(text: str) -> int:
    total, sign = 0, "+"
    for word in text.split():
        if word in "+-*":
            sign = word
        else:
            total = {"+": total + int(word), "-": total - int(word), "*": total * int(word)}[sign]
    return total


def test_a_call_in_the_text_counts_like_a_parsed_one():
    task = next(t for t in (draw("tool_call", seed) for seed in SEEDS) if "arguments" in t.answer)
    call = task.reference["tool_calls"][0]["function"]
    text = f"<tool_call>\n{canonical_call(call)}\n</tool_call>"
    assert calls_in(text) == [task.answer]
    assert score(task, text)
    assert not score(task, text.replace("arguments", "argument"))
    assert not score(task, text + text)


def digest(texts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode() + b"\n")
    return found.hexdigest()[:32]


def as_text(task: Task) -> str:
    parts = (task.kind, task.messages, task.answer, task.reference, task.tools)
    return json.dumps(parts, ensure_ascii=False)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_seed_asks_what_it_always_asked(suite: Suite):
    tasks = make_tasks(suite, 30, 7, scaled_counter(1.3))
    assert digest(map(as_text, tasks)) == DIGESTS[suite.name]


def test_a_seed_trains_on_what_it_always_trained_on():
    tasks = (tool_call(Random(i), held_out=False, missing_share=0.3) for i in range(400))
    assert digest(map(as_text, tasks)) == TRAINING_DIGEST
    conversations = (tool_conversation(Random(i), 6) for i in range(200))
    assert digest(map(json.dumps, conversations)) == CONVERSATION_DIGEST


def test_a_seed_sends_the_words_that_it_always_sent():
    text = ContentSource(5, 1).text((Segment((2, 7), 500),))
    assert digest([text]) == PROMPT_DIGEST
