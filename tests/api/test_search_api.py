"""Calls with `best_of` and `use_beam_search` as OpenAI's own client sees them."""

from contextlib import nullcontext

import pytest

from tandem.api.search_request import (
    BEAM_SEARCH_TOKENS_LIMIT,
    BEAM_WIDTH_LIMIT,
    check_beam_cost,
)
from tandem.facts.errors import InvalidRequest, Overloaded
from tests.api.scripted_generator import number_of

ASKED = [{"role": "user", "content": "how many?"}]


def complete(client, **fields):
    return client.completions.create(**{"model": "tiny", "prompt": "hello"} | fields)


def test_the_best_of_several_are_given_best_first(client, generator):
    script = generator.script
    script.answers = ["one", "two two", "three", "four"]
    script.logprobs = {0: -2.0, 1: -0.25, 2: -1.0, 3: -1.0}
    answer = complete(client, best_of=4, n=2, seed=7)
    assert [choice.text for choice in answer.choices] == ["two two", "three"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    # Who did not ask for log-probabilities sees none.
    assert all(choice.logprobs is None for choice in answer.choices)
    requests = sorted(generator.requests, key=number_of)
    assert [each.sampling.top_logprobs for each in requests] == [0] * 4
    assert len({each.sampling.seed for each in requests}) == 4
    # All that was generated counts.
    assert answer.usage.completion_tokens > sum(len(c.text.split()) for c in answer.choices) + 2
    shown = complete(client, best_of=4, n=2, logprobs=1)
    assert set(shown.choices[0].logprobs.token_logprobs) == {-0.25}


def test_the_best_of_each_prompt(client, generator):
    script = generator.script
    script.answers = ["a", "b", "c", "d"]
    script.logprobs = {0: -2.0, 1: -1.0, 2: -0.1, 3: -0.2}
    answer = complete(client, prompt=["x", "y y"], best_of=2, echo=True)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "xb"), (1, "y yc")]


def test_chats_have_it_too_and_equal_scores_go_to_the_first(client, generator):
    generator.script.answers = ["a", "b", "c"]
    answer = client.chat.completions.create(model="tiny", messages=ASKED, extra_body={"best_of": 3})
    assert [choice.message.content for choice in answer.choices] == ["a"]
    assert answer.choices[0].logprobs is None


def test_whoever_is_left_out_is_not_chosen(client, generator):
    script = generator.script
    script.answers = ["a", "b", "c"]
    script.logprobs = {0: -2.0, 1: -1.0, 2: -0.1}
    script.left_out = (2,)
    assert [choice.text for choice in complete(client, best_of=3).choices] == ["b"]


@pytest.mark.parametrize("chat", [False, True])
def test_beams(client, generator, text, chat):
    generator.script.answer = "hello world"
    fields = {"n": 2, "max_tokens": 3, "temperature": 0}
    extra = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5, "return_token_ids": True}
    if chat:
        answer = client.chat.completions.create(
            model="tiny", messages=ASKED, extra_body=extra, logprobs=True, **fields
        )
        texts = [choice.message.content for choice in answer.choices]
        shown = [[each.logprob for each in c.logprobs.content] for c in answer.choices]
    else:
        answer = complete(client, extra_body=extra, logprobs=0, **fields)
        texts = [choice.text for choice in answer.choices]
        shown = [c.logprobs.token_logprobs if c.logprobs else [] for c in answer.choices]
    # After each token the script finds token t likely as -0.5 - t; 0 and 2 end an answer.
    ids = [choice.token_ids for choice in answer.choices]
    assert len(ids) == 2
    assert ids[0] == [0] or ids[0][0] == 1
    for token_ids, logprobs, written in zip(ids, shown, texts, strict=True):
        visible = [token for token in token_ids if token not in generator.card.end_token_ids]
        assert logprobs[: len(visible)] == [-0.5 - token for token in visible]
        assert written == text.tokenizer.decode(visible)
    assert answer.usage.completion_tokens == sum(map(len, ids))
    sampling = {each.sampling for each in generator.requests}
    assert {(s.max_tokens, s.temperature, s.top_logprobs) for s in sampling} == {(1, 0.0, 6)}
    first, *others = generator.requests
    assert all(r.prompt_tokens[: len(first.prompt_tokens)] == first.prompt_tokens for r in others)
    assert not any(r.request_id == first.request_id for r in others)


def test_the_beams_of_each_prompt(client, generator):
    answer = complete(
        client,
        prompt=["a", "b c"],
        n=2,
        max_tokens=2,
        echo=True,
        extra_body={"use_beam_search": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [c.text[0] for c in answer.choices] == ["a", "a", "b", "b"]


def test_stop_tokens_end_beams_and_ignored_ends_do_not(client, generator):
    def tokens(**extra):
        extra |= {"use_beam_search": True, "return_token_ids": True}
        answer = complete(client, n=2, max_tokens=2, extra_body=extra)
        return [tuple(choice.token_ids) for choice in answer.choices]

    # Of the scripted likelihoods, 0 is the best token at each step.
    assert tokens(ignore_eos=True, length_penalty=0) == [(0, 0), (0, 1)]
    assert tokens(length_penalty=0) == [(0,), (1, 0)]
    ended = tokens(ignore_eos=True, stop_token_ids=[1], length_penalty=0)
    assert ended == [(0, 0), (1,)]


def test_a_step_without_room_refuses_the_call(http, generator):
    generator.script.failure = Overloaded("full", 2.0)
    body = {"prompt": "a", "use_beam_search": True, "n": 2}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 2


def test_wider_beams_than_log_probabilities_reach_are_refused(http):
    body = {"messages": ASKED, "use_beam_search": True, "best_of": BEAM_WIDTH_LIMIT + 1}
    error = http.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] in ("best_of", "n")


@pytest.mark.parametrize(("width", "fits"), [(10, True), (11, False)])
def test_a_search_may_send_so_much(width, fits):
    # Each beam sends a prompt of 10,000 tokens 1,100 times, and what comes of it.
    limit = BEAM_SEARCH_TOKENS_LIMIT // (1_100 * 11_100)
    assert limit == 10
    with nullcontext() if fits else pytest.raises(InvalidRequest, match="beams"):
        check_beam_cost(10_000, 1_100, width)


def test_tools_that_must_be_called_need_more_than_beams(http):
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    body = {"messages": ASKED, "tools": [tool], "tool_choice": "required"}
    response = http.post("/v1/chat/completions", json=body | {"use_beam_search": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_no_answer_of_a_search_is_kept(client, generator):
    for _ in range(2):
        complete(client, max_tokens=1, temperature=0, extra_body={"use_beam_search": True})
    assert len(generator.requests) == 2
