"""The completions endpoint and the token endpoints, over a socket."""

from functools import partial

import openai
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.facts.request import FinishReason
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator
from tests.api.server import client_of
from tests.text.tiny_checkpoint import write_checkpoint


def complete(client, **fields):
    return client.completions.create(**{"model": "tiny", "prompt": "hello"} | fields)


def test_an_answer(client, generator):
    answer = complete(client, max_tokens=100)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert generator.requests[0].sampling.max_tokens == 100
    complete(client)
    assert generator.requests[1].sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "count"), [("a b", 1), (["a", "b c"], 2), ([5, 6], 1), ([[5], [6, 7], [8]], 3)]
)
def test_all_forms_of_prompt(client, generator, text, prompt, count):
    answer = complete(client, prompt=prompt, n=2, seed=1)
    assert [choice.index for choice in answer.choices] == list(range(2 * count))
    prompts = [request.prompt_tokens for request in generator.requests]
    assert prompts[0::2] == prompts[1::2]
    assert len({request.request_id for request in generator.requests}) == 2 * count
    assert len({request.sampling.seed for request in generator.requests}) == 2
    assert answer.usage.prompt_tokens == sum(len(tokens) for tokens in prompts[0::2])


MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


@pytest.mark.parametrize("marks", MARKS)
def test_a_model_with_tokens_for_it_fills_in_the_middle(tmp_path, marks):
    text = TextModel.load(write_checkpoint(tmp_path, marks, add_bos_token=True))
    generator = ScriptedGenerator(text)
    prefix, suffix, middle = map(text.tokenizer.token_id, marks)
    tokens = partial(text.tokenizer.encode, add_special_tokens=False)
    (begin,) = text.tokenizer.encode("", add_special_tokens=True)
    with client_of(build_app(generator, text, ApiConfig(max_choices=4))) as http:
        prompts = ["the quick", list(tokens("lazy dog"))]
        for prompt in prompts:
            body = {"prompt": prompt, "suffix": "jumps over"}
            answer = http.post("/v1/completions", json=body).json()
            assert answer["choices"][0]["text"] == "hello world"
        for request, before in zip(generator.requests, ("the quick", "lazy dog"), strict=True):
            middles = (prefix, *tokens(before), suffix, *tokens("jumps over"), middle)
            assert tuple(request.prompt_tokens) == (begin, *middles)
        for field, value in (("echo", True), ("truncate_prompt_tokens", 3)):
            refused = http.post("/v1/completions", json=body | {field: value})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == field
        long = http.post("/v1/completions", json=body | {"suffix": "over " * 5000})
        assert long.json()["error"]["code"] == "context_length_exceeded"


def test_a_model_without_such_tokens_says_so(client):
    with pytest.raises(openai.BadRequestError, match="fill in a middle"):
        complete(client, suffix="x")
    assert complete(client, suffix="").choices[0].text == "hello world"


def test_whole_numbers_may_be_written_as_floats(http, generator):
    body = '{"prompt": [5.0], "max_tokens": 3.0, "temperature": 1.0}'
    headers = {"Content-Type": "application/json"}
    assert http.post("/v1/completions", content=body, headers=headers).status_code == 200
    assert generator.requests[0].prompt_tokens == (5,)


def test_the_end_of_a_prompt_may_be_kept(client, generator):
    ids = list(range(5, 25))
    extra = {"truncate_prompt_tokens": 3}
    complete(client, prompt=[ids, ids[:2]], extra_body=extra)
    assert [r.prompt_tokens for r in generator.requests] == [tuple(ids[-3:]), tuple(ids[:2])]
    answer = complete(client, prompt="the fox jumps over", echo=True, extra_body=extra)
    assert answer.choices[0].text.endswith("overhello world")
    assert answer.usage.prompt_tokens == 3
    # What the context has room for beside the answer; longer prompts than that are refused else.
    long = ids * (generator.card.context_tokens // len(ids) + 1)
    with pytest.raises(openai.BadRequestError, match="context"):
        complete(client, prompt=long)
    complete(client, prompt=long, max_tokens=30, extra_body={"truncate_prompt_tokens": -1})
    request = generator.requests[-1]
    assert len(request.prompt_tokens) == generator.card.context_tokens - 30
    assert list(request.prompt_tokens) == long[-len(request.prompt_tokens) :]
    with pytest.raises(openai.BadRequestError, match="context"):
        complete(client, prompt=long * 4, extra_body={"truncate_prompt_tokens": -1})


def test_echo(client, generator):
    assert complete(client, echo=True).choices[0].text == "hellohello world"
    assert complete(client, prompt=[[300], [301]], echo=True).choices[1].text != "hello world"
    chunks = list(complete(client, echo=True, stream=True, n=2))
    for index in (0, 1):
        texts = [c.choices[0].text for c in chunks if c.choices[0].index == index]
        assert "".join(texts) == "hellohello world"


def test_logprobs_in_the_old_form(client, generator):
    generator.script.answer = "the fox 🚀 jumps"
    whole = complete(client, logprobs=2).choices[0]
    logprobs = whole.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset[0] == 0
    ends = [o + len(t) for o, t in zip(logprobs.text_offset, logprobs.tokens, strict=True)]
    assert ends[:-1] == logprobs.text_offset[1:]
    assert all(t in top for t, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))
    chunks = [c.choices[0].logprobs for c in complete(client, logprobs=2, stream=True)]
    streamed = [offset for chunk in chunks if chunk for offset in chunk.text_offset]
    assert streamed == logprobs.text_offset
    assert complete(client, logprobs=0).choices[0].logprobs.top_logprobs[0]


def test_logprobs_may_name_tokens_by_their_ids(client, generator):
    generator.script.answer = "the fox 🚀 jumps"
    by_text = complete(client, logprobs=2).choices[0].logprobs
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    answer = complete(client, logprobs=2, extra_body=extra).choices[0]
    named = [f"token_id:{token}" for token in answer.token_ids[: len(by_text.tokens)]]
    assert answer.logprobs.tokens == named
    assert answer.logprobs.text_offset == by_text.text_offset
    assert answer.logprobs.token_logprobs == by_text.token_logprobs
    assert all(name in top for name, top in zip(named, answer.logprobs.top_logprobs, strict=True))
    assert "token_id:1" in answer.logprobs.top_logprobs[0]
    chunks = [
        c.choices[0].logprobs for c in complete(client, logprobs=2, extra_body=extra, stream=True)
    ]
    assert [name for chunk in chunks if chunk for name in chunk.tokens] == named


def test_streaming_equals_the_answer(client, generator):
    generator.script.answer = "the 日本語 fox 🎉 naïve"
    generator.script.finish_reason = FinishReason.LENGTH
    whole = complete(client, max_tokens=200).choices[0]
    chunks = list(complete(client, max_tokens=200, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason == "length"


def test_an_answer_cut_inside_a_character(client, generator):
    generator.script.answer = "\U0001f9e0"
    answer = complete(client, max_tokens=1).choices[0]
    assert (answer.text, answer.finish_reason) == ("\ufffd", "length")


def test_client_stop_tokens(client, generator, text):
    token = text.tokenizer.encode("hello world", add_special_tokens=False)[-1]
    answer = complete(client, extra_body={"stop_token_ids": [token]}).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.stop_reason == token
    assert answer.text != "hello world"
    kept = {"stop_token_ids": [token], "include_stop_str_in_output": True}
    assert complete(client, extra_body=kept).choices[0].text == "hello world"


def test_special_tokens_can_be_shown(client, generator):
    generator.script.answer = "one<|im_start|>two"
    assert complete(client).choices[0].text == "onetwo"
    shown = complete(client, extra_body={"skip_special_tokens": False})
    assert shown.choices[0].text == "one<|im_start|>two"


def test_context_bounds_the_answer(client, generator):
    room = 3
    prompt = [5] * (generator.card.context_tokens - room)
    complete(client, prompt=prompt, max_tokens=100)
    assert generator.requests[0].sampling.max_tokens == room
    # By these words clients know it that look at no code.
    with pytest.raises(openai.BadRequestError, match="maximum context length is") as caught:
        complete(client, prompt=[5] * generator.card.context_tokens)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x y " * 9000}]
        )
    assert caught.value.code == "context_length_exceeded"


def test_tokenize_and_back(http, text):
    answer = http.post("/tokenize", json={"prompt": "hello 日本", "return_token_strs": True}).json()
    assert answer["tokens"] == list(text.tokenizer.encode("hello 日本", add_special_tokens=False))
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {
        "prompt": "hello 日本"
    }


def test_tokenizing_a_chat(http, client, generator):
    messages = [{"role": "user", "content": "hello"}]
    client.chat.completions.create(model="tiny", messages=messages)
    tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert tokens == list(generator.requests[0].prompt_tokens)
