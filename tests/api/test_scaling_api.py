"""Calls with `scaling` as OpenAI's own client sees them: one answer out of several samples."""

import math

import openai
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.facts.errors import EngineFailed, Overloaded
from tests.api.scripted_generator import number_of
from tests.api.server import client_of

ASKED = [{"role": "user", "content": "how many?"}]
VOTE = {"method": "self-consistency", "samples": 5}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def ask(client, scaling, **fields):
    extra = fields.pop("extra_body", {}) | {"scaling": scaling}
    return client.chat.completions.create(
        **{"model": "tiny", "messages": ASKED, "extra_body": extra} | fields
    )


def test_the_answer_that_most_samples_give(client, generator):
    script = generator.script
    script.answers = ["it is 3", "it is 4", "so 3", "maybe 5", "4 or 3"]
    script.cached_tokens = 2
    answer = ask(client, VOTE, seed=7)
    assert [choice.message.content for choice in answer.choices] == ["it is 3"]
    assert (answer.choices[0].index, answer.choices[0].finish_reason) == (0, "stop")
    report = answer.scaling
    assert report["answer"] == "3"
    assert next(iter(report["votes"].items())) == ("3", 3)
    assert report["samples"]["started"] == 5
    assert report["method"] == "self-consistency"
    # Each sample has the seed of a choice, and all of them the prompt, which counts once.
    requests = sorted(generator.requests, key=number_of)
    assert [each.request_id for each in requests] == [f"{answer.id}-{n}" for n in range(5)]
    first = requests[0].sampling
    assert [r.sampling.seed for r in requests] == [first.seed_of_choice(n) for n in range(5)]
    assert first.seed == 7
    assert answer.usage.prompt_tokens == len(requests[0].prompt_tokens)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.usage.completion_tokens == report["tokens"]["samples"]
    assert report["tokens"]["answer"] < report["tokens"]["samples"]


def test_a_decided_vote_cancels_the_rest_at_once(client, generator):
    script = generator.script
    script.answers = ["it is 3", "rambling on and on", "so 3", "3", "rambling on and on"]
    script.hold_after, script.held = 2, frozenset({1, 4})
    report = ask(client, VOTE).scaling
    assert (report["answer"], report["votes"]) == ("3", {"3": 3})
    assert (report["stopped_by"], report["decided_early"]) == ("vote", True)
    assert report["samples"] == {"started": 5, "finished": 3, "cancelled": 2, "refused": 0}
    # They count as stopped, not as given up by their client.
    stopped = {int(each.rpartition("-")[2]) for each in generator.satisfied_ids[-2:]}
    assert stopped == {1, 4}


def test_confidence_starts_no_more_than_it_takes(client, generator):
    generator.script.answer = "it is 3"
    scaling = VOTE | {"samples": 8, "parallel": 2, "confidence": 0.9}
    report = ask(client, scaling).scaling
    assert (report["answer"], report["stopped_by"]) == ("3", "confidence")
    # Three of three votes: 15/16.
    assert report["samples"]["started"] <= 4
    assert len(generator.requests) == report["samples"]["started"]


def test_a_spent_budget_ends_the_gang(client, generator):
    script = generator.script
    script.answer = "on and on and on and on and on and on and on and on and on"
    script.answers = []
    answer = ask(client, VOTE | {"budget_tokens": 10}, stop=["never said"])
    report = answer.scaling
    assert report["stopped_by"] == "budget"
    assert (report["answer"], report["votes"], report["winner"]) == (None, {}, 0)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.startswith("o")
    # At most what was on its way when the last of it was spent.
    assert 10 <= answer.usage.completion_tokens <= 10 + VOTE["samples"]
    assert all(each.sampling.max_tokens == 10 for each in generator.requests)


def test_the_best_of_n_by_its_own_log_probabilities(client, generator):
    script = generator.script
    script.answers = ["one", "two", "three"]
    script.logprobs = {0: -2.0, 1: -0.25, 2: -1.0}
    answer = ask(client, {"method": "best-of-n", "samples": 3})
    assert answer.choices[0].message.content == "two"
    report = answer.scaling
    assert report["scores"] == pytest.approx([math.exp(-2.0), math.exp(-0.25), math.exp(-1.0)])
    assert (report["votes"], report["winner"]) == ({}, 1)
    # Who did not ask for log-probabilities sees none.
    assert answer.choices[0].logprobs is None
    shown = ask(client, {"method": "best-of-n", "samples": 3}, logprobs=True)
    assert {each.logprob for each in shown.choices[0].logprobs.content} == {-0.25}


def test_scores_of_equal_answers_add_up_where_they_vote(client, generator):
    script = generator.script
    script.answers = ["3", "4", "so 3"]
    script.logprobs = {0: -1.0, 1: -0.5, 2: -0.9}
    answer = ask(client, {"method": "best-of-n", "samples": 3, "vote": "last-number"})
    # Of the two that say 3, the better one speaks.
    assert answer.choices[0].message.content == "so 3"


def test_the_model_as_its_own_judge(client, generator, text):
    script = generator.script
    script.answers = ["one", "two", "three", "no", "yes", "no"]
    verifier = {"type": "judge", "prompt": "{question} / {answer} / good?"}
    answer = ask(client, {"method": "best-of-n", "samples": 3, "verifier": verifier})
    assert answer.choices[0].message.content == "two"
    report = answer.scaling
    assert report["scores"] == [0.0, 1.0, 0.0]
    assert report["tokens"]["verifier"] == 3
    asked = next(r for r in generator.requests if number_of(r) == 4)
    prompt = text.tokenizer.decode(asked.prompt_tokens, skip_special_tokens=False)
    assert prompt.endswith(
        "<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nhow many? / two / good?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (asked.sampling.max_tokens, asked.sampling.temperature) == (1, 0.0)
    # Each verdict has a prompt of its own, which was read for this call, too.
    prompts = [len(each.prompt_tokens) for each in generator.requests]
    first = len(next(r for r in generator.requests if number_of(r) == 0).prompt_tokens)
    assert answer.usage.prompt_tokens == sum(prompts) - 2 * first


def test_rounds_see_the_answer_before_them(client, generator, text):
    script = generator.script
    script.answers = ["it is 3", "no, 4", "yes, 4", "5"]
    answer = ask(client, {"method": "re-query", "rounds": 4, "prompt": "again: {question}"})
    assert answer.choices[0].message.content == "yes, 4"
    report = answer.scaling
    assert (report["winner"], report["stopped_by"], report["answer"]) == (2, "vote", "4")
    assert report["samples"]["started"] == len(generator.requests) == 3
    prompts = [
        text.tokenizer.decode(each.prompt_tokens, skip_special_tokens=False)
        for each in generator.requests
    ]
    assert prompts[1].endswith(
        "it is 3<|im_end|>\n<|im_start|>user\nagain: how many?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "no, 4" in prompts[2]
    assert "it is 3" not in prompts[2]


def test_completions_go_on_from_their_text(client, generator, text):
    generator.script.answers = ["3", "3"]
    answer = client.completions.create(
        model="tiny",
        prompt="how many?",
        echo=True,
        extra_body={"scaling": {"method": "re-query", "prompt": "sure?"}},
    )
    assert answer.choices[0].text == "how many?3"
    assert answer.scaling["stopped_by"] == "vote"
    asked = text.tokenizer.decode(generator.requests[1].prompt_tokens)
    assert asked == "how many?3\n\nsure?\n"


@pytest.mark.parametrize("tokens_per_output", [1, 7])
def test_a_stream_says_what_the_answer_says(client, generator, tokens_per_output):
    script = generator.script
    script.answers = ["日本 4", "it is the 日本語 fox " * 20 + "3", "so 3"]
    script.tokens_per_output = tokens_per_output
    scaling = VOTE | {"samples": 3}
    whole = ask(client, scaling, logprobs=True)
    options = {"include_usage": True}
    chunks = list(ask(client, scaling, logprobs=True, stream=True, stream_options=options))
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert content == whole.choices[0].message.content == script.answers[1]
    shown = [each for c in chunks[:-1] for each in c.choices[0].logprobs.content]
    assert shown == whole.choices[0].logprobs.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
    assert not hasattr(chunks[0], "scaling")
    assert chunks[-2].scaling == whole.scaling
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)


def test_votes_over_tool_calls(client, generator):
    call = '<tool_call>{"name": "find", "arguments": %s}</tool_call>'
    generator.script.answers = [
        call % '{"q": "x", "n": 1}',
        call % '{"q": "y"}',
        call % '{"n": 1,   "q": "x"}',
    ]
    answer = ask(client, VOTE | {"samples": 3}, tools=[TOOL])
    assert answer.choices[0].message.tool_calls[0].function.name == "find"
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.scaling["votes"] == {'find {"n":1,"q":"x"}': 2, 'find {"q":"y"}': 1}


def test_samples_without_room_have_no_vote(client, generator):
    script = generator.script
    script.answer = "it is 3"
    script.refusals = {1: Overloaded("full", 2.0), 3: Overloaded("full", 2.0)}
    report = ask(client, VOTE).scaling
    assert report["samples"]["refused"] == 2
    assert report["votes"]["3"] <= 3
    script.refusals = dict.fromkeys(range(5), Overloaded("full", 2.0))
    with pytest.raises(openai.RateLimitError) as refused:
        ask(client, VOTE)
    assert refused.value.response.headers["retry-after"]


def test_a_sample_that_fails_fails_the_call(client, generator):
    generator.script.refusals = {2: EngineFailed("died")}
    generator.script.hold_after, generator.script.held = 1, frozenset({0, 1, 3, 4})
    with pytest.raises(openai.InternalServerError):
        ask(client, VOTE)


def test_a_deadline_ends_all_of_it_with_the_best_so_far(client, generator):
    script = generator.script
    script.answers = ["it is 3", "4 and more", "4 and more", "4 and more", "so 3"]
    script.hold_after, script.held = 2, frozenset({1, 2, 3})
    before = len(generator.requests)
    answer = ask(client, VOTE, extra_body={"deadline_s": 0.5})
    report = answer.scaling
    # What was cut has no vote.
    assert (report["stopped_by"], report["answer"]) == ("deadline", "3")
    assert report["votes"] == {"3": 2}
    assert report["samples"] == {"started": 5, "finished": 2, "cancelled": 3, "refused": 0}
    assert not report["decided_early"]
    assert answer.choices[0].message.content == "it is 3"
    assert len(generator.requests) == before + 5


def test_a_deadline_before_any_sample_has_ended_shows_what_there_is(client, generator):
    generator.script.answer = "4 and more"
    generator.script.hold_after = 2
    answer = ask(client, VOTE, extra_body={"deadline_s": 0.2})
    assert (answer.scaling["stopped_by"], answer.scaling["votes"]) == ("deadline", {})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content


JUDGED = {"method": "best-of-n", "samples": 2, "parallel": 1, "verifier": {"type": "judge"}}
ONE_BY_ONE = VOTE | {"samples": 3, "parallel": 1}


@pytest.mark.parametrize("scaling", [ONE_BY_ONE, JUDGED, {"method": "re-query"}])
def test_rounds_and_verdicts_have_what_is_left_of_the_deadline(client, generator, scaling):
    generator.script.answers = ["1", "2", "yes", "no"]
    before = len(generator.callers)
    headers = {"X-Request-Timeout": "60"}
    ask(client, scaling, extra_headers=headers, extra_body={"deadline_s": 70})
    left_s = [each.deadline_s for each in generator.requests]
    assert len(left_s) >= 3
    assert 30 < left_s[-1] <= left_s[0] < 60
    assert left_s == sorted(left_s, reverse=True) and len(set(left_s)) == len(left_s)
    assert not any(each.deadline_s for each in generator.callers[before:])


@pytest.mark.parametrize("scaling", [ONE_BY_ONE, JUDGED, {"method": "re-query"}])
def test_it_is_one_turn_of_its_session(client, generator, scaling):
    generator.script.answers = ["1", "2", "yes", "no"]
    before = len(generator.callers)
    ask(client, scaling, extra_body={"agent": {"session": "s", "pause_s": 3, "pin_s": 9}})
    first, *others = generator.callers[before:]
    assert (first.session, first.pause_s, first.pin_s) == ("s", 3, 9)
    assert others
    assert {(each.session, each.pause_s, each.pin_s) for each in others} == {("", None, 0)}


def test_the_tools_that_are_called_are_those_of_the_winner(client, generator):
    call = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    generator.script.answers = [call % "seek", call % "find", call % "find"]
    before = len(generator.called_tools)
    session = {"agent": {"session": "s"}}
    ask(client, VOTE | {"samples": 3}, tools=[TOOL], extra_body=session)
    assert generator.called_tools[before:] == [("s", ("find",))]


def test_a_client_that_leaves_frees_all_samples(client, generator):
    generator.script.hold_after = 1
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.3), VOTE)
    generator.wait_until_running(0)
    assert len(generator.requests) == 5


def test_greedy_checkpoints_sample_all_the_same(client, generator):
    ask(client, {"method": "re-query", "rounds": 1}, temperature=0)
    assert generator.requests[0].sampling.temperature == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"scaling": {}}, "scaling"),
        ({"scaling": {"method": "majority"}}, "scaling.method"),
        ({"scaling": VOTE | {"sample": 3}}, "scaling"),
        ({"scaling": VOTE | {"samples": 33}}, "scaling.samples"),
        ({"scaling": VOTE | {"samples": 0}}, "scaling.samples"),
        ({"scaling": VOTE | {"rounds": 2}}, "scaling.rounds"),
        ({"scaling": VOTE | {"prompt": "?"}}, "scaling.prompt"),
        ({"scaling": VOTE | {"vote": "regex:(a+)+$"}}, "scaling.vote"),
        ({"scaling": VOTE | {"confidence": 0.5}}, "scaling.confidence"),
        ({"scaling": VOTE | {"confidence": 1.0}}, "scaling.confidence"),
        ({"scaling": VOTE | {"budget_tokens": 0}}, "scaling.budget_tokens"),
        ({"scaling": VOTE, "n": 2}, "n"),
        ({"scaling": VOTE, "temperature": 0}, "temperature"),
        ({"scaling": {"method": "re-query", "parallel": 2}}, "scaling.parallel"),
        ({"scaling": {"method": "re-query", "rounds": 40}}, "scaling.rounds"),
        ({"scaling": {"method": "re-query"}, "tools": [TOOL]}, "tools"),
        (
            {"scaling": {"method": "best-of-n", "vote": "text", "confidence": 0.9}},
            "scaling.confidence",
        ),
        (
            {"scaling": {"method": "best-of-n", "verifier": {"yes": "ja"}}},
            "scaling.verifier.yes",
        ),
        (
            {"scaling": VOTE | {"verifier": {"type": "judge", "yes": "a", "no": "A "}}},
            "scaling.verifier.yes",
        ),
    ],
    ids=str,
)
def test_refused(http, fields, param):
    response = http.post("/v1/chat/completions", json={"messages": ASKED} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert param.rpartition(".")[2] in error["message"]


def test_one_prompt_alone(http):
    body = {"prompt": ["a", "b"], "scaling": VOTE}
    response = http.post("/v1/completions", json=body)
    assert response.json()["error"]["param"] == "prompt"


def test_an_operator_bounds_it_or_switches_it_off(generator, text):
    generator.script.answer = "3"
    body = {"messages": ASKED, "scaling": {"method": "self-consistency"}}
    with client_of(build_app(generator, text, ApiConfig(max_scaling_samples=2))) as client:
        # The default number is no more than there may be.
        answer = client.post("/v1/chat/completions", json=body).json()
        assert answer["scaling"]["samples"]["started"] == 2
    with client_of(build_app(generator, text, ApiConfig(max_scaling_samples=0))) as client:
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert "max-scaling-samples" in response.json()["error"]["message"]


def test_a_gang_that_keeps_too_much_ends(generator, text):
    generator.script.answer = "on and on " * 40
    body = {"messages": ASKED, "scaling": VOTE}
    with client_of(build_app(generator, text, ApiConfig(answer_bytes=80_000))) as client:
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 400


def test_verdicts_are_paid_out_of_the_budget(client, generator):
    generator.script.answers = ["one", "two", "three", "yes", "yes", "yes"]
    verifier = {"type": "judge", "prompt": "{question} / {answer} / good?"}
    scaling = {"method": "best-of-n", "samples": 3, "parallel": 1, "verifier": verifier}
    first_tokens = ask(client, scaling | {"samples": 2}).scaling["tokens"]["answer"]
    generator.requests.clear()
    report = ask(client, scaling | {"budget_tokens": first_tokens + 1}).scaling
    assert (report["stopped_by"], report["samples"]["started"]) == ("budget", 1)
    assert (report["tokens"]["samples"], report["tokens"]["verifier"]) == (first_tokens, 1)
