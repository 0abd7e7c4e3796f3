"""The bundled tasks: references score, seeds repeat, what is held out stays out of training."""

from random import Random

import pytest

from tandem.bench.arithmetic import arithmetic, draw_problem, steps
from tandem.bench.recall import recall
from tandem.bench.task import Task, calls_in, canonical_call, is_held_out, score
from tandem.bench.tool_call import tool_call
from tandem.bench.words import ADJECTIVES, NOUNS, VALUES

SEEDS = range(40)


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
