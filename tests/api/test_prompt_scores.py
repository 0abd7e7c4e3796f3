"""Log-probabilities of prompts: echoed with the answer's, as evaluation harnesses ask for them, and
in vLLM's form."""

import pytest

from tandem.api.logprobs import completion_logprobs
from tandem.api.prompt_scores import PROMPT_VALUES_LIMIT, check_prompts
from tandem.facts.errors import InvalidRequest
from tandem.facts.request import TokenLogprobs
from tests.api.test_chat_api import chat
from tests.api.test_completions_api import complete

# Scripted: the token at place p has -p / 4.
PROMPT = [5, 6, 7, 6]


def echoed(client, **fields):
    return complete(client, prompt=PROMPT, echo=True, logprobs=1, temperature=0, **fields)


def test_an_echo_has_its_log_probabilities_before_those_of_the_answer(client, text):
    choice = echoed(client, max_tokens=1).choices[0]
    logprobs, names = choice.logprobs, [text.token_bytes.bytes_of(each).decode() for each in PROMPT]
    assert logprobs.tokens[:4] == names
    assert logprobs.token_logprobs == [None, -0.25, -0.5, -0.75, -0.5]
    assert logprobs.top_logprobs[0] is None
    assert logprobs.top_logprobs[1] == {
        names[1]: -0.25,
        text.token_bytes.bytes_of(0).decode(): -0.5,
    }
    assert logprobs.text_offset[:4] == [len("".join(names[:place])) for place in range(4)]
    assert choice.text.startswith(text.tokenizer.decode(PROMPT, skip_special_tokens=True))


def test_a_token_that_ends_the_answer_has_an_entry_too(client, generator):
    """Harnesses cut the last entry off, taking it for the one token of the answer."""
    generator.script.answer = ""
    choice = echoed(client, max_tokens=1).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.logprobs.token_logprobs == [None, -0.25, -0.5, -0.75, -0.5]


def test_with_no_tokens_only_the_prompt_is_scored(client, generator):
    answer = echoed(client, max_tokens=0)
    choice = answer.choices[0]
    assert choice.logprobs.token_logprobs == [None, -0.25, -0.5, -0.75]
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0
    assert generator.requests[-1].sampling.max_tokens == 1
    plain = complete(client, prompt=PROMPT, echo=True, max_tokens=0).choices[0]
    assert plain.text == choice.text
    assert plain.logprobs is None


def test_a_prompt_of_one_token_has_none(client):
    choice = complete(client, prompt=[5], echo=True, logprobs=0, max_tokens=0).choices[0]
    assert choice.logprobs.token_logprobs == [None]


def test_a_streamed_echo_has_the_same(client):
    whole = echoed(client, max_tokens=6).choices[0].logprobs
    chunks = [chunk.choices[0].logprobs for chunk in echoed(client, max_tokens=6, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [entry for each in chunks if each for entry in getattr(each, name)]
        assert streamed == getattr(whole, name)


def test_several_prompts_have_each_their_own(client):
    choices = complete(
        client, prompt=[PROMPT, [9, 8]], n=2, echo=True, logprobs=0, max_tokens=0
    ).choices
    assert [len(each.logprobs.tokens) for each in choices] == [4, 4, 2, 2]


def test_prompt_logprobs_as_vllm_has_them(client, text):
    choice = complete(
        client, prompt=PROMPT, max_tokens=2, extra_body={"prompt_logprobs": 1}
    ).choices[0]

    def entry(token, logprob, rank):
        decoded = text.token_bytes.bytes_of(token).decode()
        return {str(token): {"logprob": logprob, "rank": rank, "decoded_token": decoded}}

    likeliest = entry(0, -0.5, 1)
    assert choice.prompt_logprobs == [
        None,
        entry(6, -0.25, 2) | likeliest,
        entry(7, -0.5, 2) | likeliest,
        entry(6, -0.75, 2) | likeliest,
    ]
    assert choice.logprobs is None


def test_each_form_shows_as_many_alternatives_as_it_was_asked_for(client, generator):
    choice = complete(
        client, prompt=PROMPT, echo=True, logprobs=1, max_tokens=1,
        extra_body={"prompt_logprobs": 3, "return_token_ids": True},
    ).choices[0]  # fmt: skip
    assert generator.requests[-1].sampling.prompt_logprobs == 3
    assert len(choice.prompt_logprobs[1]) == 4
    assert len(choice.logprobs.top_logprobs[1]) == 2
    assert choice.prompt_token_ids == PROMPT


def test_a_chat_has_them_beside_its_choices(client):
    options = {"n": 2, "logprobs": True, "extra_body": {"prompt_logprobs": 0}}
    answer = chat(client, **options)
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    first, second = (next(iter(each.values())) for each in answer.prompt_logprobs[1:3])
    assert (first["logprob"], second["logprob"]) == (-0.25, -0.5)
    assert chat(client, logprobs=True).choices[0].logprobs == answer.choices[0].logprobs


@pytest.mark.parametrize("several", ["n", "best_of"])
def test_of_a_chat_only_the_first_choice_scores_the_prompt(client, generator, several):
    # Chosen is another than the one that scores.
    generator.script.logprobs = {2: -0.1}
    begun = len(generator.requests)
    answer = chat(client, extra_body={several: 3, "prompt_logprobs": 1})
    asked = {each.choice: each.sampling.prompt_logprobs for each in generator.requests[begun:]}
    assert asked == {0: 1, 1: None, 2: None}
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens


def test_every_choice_of_a_completion_scores_its_prompt(client, generator):
    begun = len(generator.requests)
    answer = complete(client, prompt=PROMPT, n=2, extra_body={"prompt_logprobs": 0})
    assert [each.sampling.prompt_logprobs for each in generator.requests[begun:]] == [0, 0]
    assert all(len(each.prompt_logprobs) == len(PROMPT) for each in answer.choices)


def test_of_tokens_with_the_same_text_the_likeliest_is_shown(text):
    """Harnesses take a token for the likeliest where its log-probability is the largest."""
    first, second, third = [
        token
        for token in range(text.tokenizer.vocabulary_tokens)
        if text.token_bytes.bytes_of(token) in (b"\x80", b"\x81", b"\x82")
    ]
    score = TokenLogprobs(-3.0, 3, ((first, -0.5), (second, -1.0)))
    shown = completion_logprobs([(third, score)], text.token_bytes, 0)
    assert (shown.token_logprobs, shown.top_logprobs) == ([-3.0], [{"\ufffd": -0.5}])
    by_id = completion_logprobs([(third, score)], text.token_bytes, 0, by_id=True)
    assert list(by_id.top_logprobs[0].values()) == [-0.5, -1.0, -3.0]


def test_prompts_that_make_too_many_values_are_refused():
    check_prompts([range(PROMPT_VALUES_LIMIT // 2)], 1)
    check_prompts([range(PROMPT_VALUES_LIMIT)], None)
    with pytest.raises(InvalidRequest, match="can be scored with 1 alternatives"):
        check_prompts([range(PROMPT_VALUES_LIMIT // 2 + 1)], 1)
