"""The chat endpoint as OpenAI's own client sees it, over a socket."""

import asyncio
import json

import openai
import pytest

from tandem.api.sampling_request import SEED_LIMIT
from tandem.facts.errors import EngineFailed, InvalidRequest, Overloaded
from tandem.facts.request import FinishReason

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "日本"}}\n</tool_call>'


def chat(client, **fields):
    return client.chat.completions.create(**{"model": "tiny", "messages": HELLO} | fields)


def test_an_answer(client, generator):
    generator.script.cached_tokens = 3
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == "hello world"
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    prompt_tokens = len(generator.requests[0].prompt_tokens)
    assert answer.usage.prompt_tokens == prompt_tokens
    assert answer.usage.total_tokens == prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_the_template_makes_the_prompt(client, generator, text):
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    chat(client, messages=messages)
    prompt = text.tokenizer.decode(generator.requests[0].prompt_tokens, skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_continuing_the_final_message(client, generator, text):
    messages = [*HELLO, {"role": "assistant", "content": "Sure, "}]
    chat(client, messages=messages, extra_body={"continue_final_message": True})
    prompt = text.tokenizer.decode(generator.requests[0].prompt_tokens, skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nSure, ")


def test_sampling_fields_arrive(client, generator, text):
    chat(
        client,
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        max_completion_tokens=7,
        presence_penalty=0.5,
        logit_bias={"5": 2},
        user="someone",
        metadata={"a": "b"},
        extra_body={
            "top_k": -1,
            "min_p": 0.1,
            "typical_p": 0.9,
            "xtc_threshold": 0.2,
            "xtc_probability": 0.5,
            "dry_multiplier": 0.8,
            "dry_base": 1.5,
            "dry_allowed_length": 3,
            "dry_penalty_last_n": 64,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "stop_token_ids": [9],
            "allowed_token_ids": [9, 7, 9],
            "bad_words": ["fox", " fox"],
            "priority": -3,
            "cache_salt": "s",
        },
    )
    request = generator.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 0)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)
    assert sampling.presence_penalty == 0.5
    assert sampling.typical_p == 0.9
    assert (sampling.xtc_threshold, sampling.xtc_probability) == (0.2, 0.5)
    assert (sampling.dry_multiplier, sampling.dry_base) == (0.8, 1.5)
    assert (sampling.dry_allowed_length, sampling.dry_penalty_last_n) == (3, 64)
    assert sampling.seed == SEED_LIMIT - 1
    assert (sampling.max_tokens, sampling.min_tokens) == (7, 2)
    assert sampling.logit_bias == ((5, 2.0),)
    assert sampling.stop_token_ids == (0, 2, 9)
    assert sampling.allowed_token_ids == (9, 7)
    # At the start of a text and after a space.
    spelled = [text.tokenizer.decode(word) for word in sampling.bad_words]
    assert spelled == ["fox", " fox"]
    assert (request.priority, request.cache_salt) == (-3, "s")


def test_the_end_of_a_conversation_may_be_kept(client, generator, text):
    long = [{"role": "user", "content": "the fox jumps " * 400}]
    with pytest.raises(openai.BadRequestError, match="context"):
        chat(client, messages=long)
    chat(client, messages=long, extra_body={"truncate_prompt_tokens": -1})
    chat(client, messages=long, max_tokens=40, extra_body={"truncate_prompt_tokens": -1})
    most, beside, context = *generator.requests, generator.card.context_tokens
    assert (len(most.prompt_tokens), most.sampling.max_tokens) == (context - 1, 1)
    assert (len(beside.prompt_tokens), beside.sampling.max_tokens) == (context - 40, 40)
    assert text.tokenizer.decode(beside.prompt_tokens).endswith("jumps \nassistant\n")


def test_words_can_be_biased_and_banned(client, generator, text):
    def spelled(word):
        return text.tokenizer.encode(word, add_special_tokens=False)

    pairs = [[5, 2], ["the fox", -1.5], ["fox", False], [7, False]]
    chat(client, extra_body={"logit_bias": pairs, "bad_words": ["dog"]})
    chat(client, logit_bias={"5": 2.0, "the fox": -1.5, "fox": False, "7": False})
    chat(client, extra_body={"logit_bias": [[5, 2]], "bad_words": ["fox"]})
    first, second, plain = (request.sampling for request in generator.requests)
    tokens = [5, *dict.fromkeys((*spelled("the fox"), *spelled(" the fox")))]
    assert len(tokens) > 2
    assert first.logit_bias == tuple((t, 2.0 if t == 5 else -1.5) for t in tokens)
    never = (spelled("fox"), spelled(" fox"), (7,))
    assert first.bad_words == (spelled("dog"), spelled(" dog"), *never)
    assert (second.logit_bias, second.bad_words) == (first.logit_bias, never)
    assert plain.bad_words == never[:2]


def test_dry_has_breakers_of_its_own_or_the_usual_ones(client, generator, text):
    def breakers(**fields):
        chat(client, extra_body=fields)
        return generator.requests[-1].sampling.dry_sequence_breakers

    def ends(*texts):
        spelled = [text.tokenizer.encode(t, add_special_tokens=False) for t in texts]
        return {tokens[-1] for tokens in spelled}

    assert breakers() == breakers(dry_sequence_breakers=["fox"]) == ()
    usual = set(breakers(dry_multiplier=0.8))
    assert ends("\n", ":", '"', "*") <= usual
    own = breakers(dry_multiplier=0.8, dry_sequence_breakers=["fox"], dry_penalty_last_n=-1)
    assert set(own) == ends("fox", " fox", "afox")
    assert breakers(dry_multiplier=0.8, dry_sequence_breakers=[]) == ()


def test_logprobs_may_name_tokens_by_their_ids(client, generator, text):
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    fields = {"logprobs": True, "top_logprobs": 2}
    plain = chat(client, **fields).choices[0].logprobs.content
    choice = chat(client, extra_body=extra, **fields).choices[0]
    assert [each.token for each in choice.logprobs.content] == [
        f"token_id:{token}" for token in choice.token_ids[: len(plain)]
    ]
    assert [each.bytes for each in choice.logprobs.content] == [each.bytes for each in plain]
    assert [each.token for each in choice.logprobs.content[0].top_logprobs] == [
        "token_id:0",
        "token_id:1",
    ]


def test_defaults_come_from_the_checkpoint(client, generator):
    chat(client)
    chat(client, extra_body={"ignore_eos": True})
    first, second = generator.requests
    assert (first.sampling.temperature, first.sampling.top_k) == (0.7, 20)
    assert first.sampling.max_tokens == generator.card.context_tokens - len(first.prompt_tokens)
    assert first.sampling.seed != second.sampling.seed
    assert second.sampling.stop_token_ids == ()


@pytest.mark.parametrize("tokens_per_output", [1, 3, 1000])
def test_a_stream_says_what_the_answer_says(client, generator, tokens_per_output):
    generator.script.answer = "the 日本語 fox 🎉👩🏽‍🚀 naïve"
    generator.script.tokens_per_output = tokens_per_output
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert content == whole.choices[0].message.content == generator.script.answer
    assert not any("\ufffd" in (c.choices[0].delta.content or "") for c in chunks[:-1])
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_continuous_usage(client, generator):
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [c.usage.completion_tokens for c in chat(client, stream=True, stream_options=options)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_several_choices_have_several_seeds(client, generator):
    generator.script.answers = ["one", "two three", ""]
    answer = chat(client, n=3, seed=5)
    assert [c.message.content for c in answer.choices] == ["one", "two three", ""]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    seeds = [request.sampling.seed for request in generator.requests]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert len({request.prompt_tokens for request in generator.requests}) == 1
    ids = [request.request_id for request in generator.requests]
    assert ids == [f"{answer.id}-{choice}" for choice in range(3)]
    assert answer.usage.prompt_tokens == len(generator.requests[0].prompt_tokens)


def test_streamed_choices_interleave(client, generator):
    generator.script.answers = ["one two three", "hello world again"]
    contents, order = ["", ""], []
    for chunk in chat(client, n=2, stream=True):
        choice = chunk.choices[0]
        contents[choice.index] += choice.delta.content or ""
        order.append(choice.index)
    assert contents == generator.script.answers
    assert order != sorted(order)


def test_logprobs(client, generator):
    generator.script.answer = "fox 🚀"
    answer = chat(client, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content).decode() == "fox 🚀"
    assert all(token.logprob == -0.5 and len(token.top_logprobs) == 2 for token in content)
    streamed = []
    for chunk in chat(client, logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == content
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client).choices[0].logprobs is None


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("tokens_per_output", [1, 4])
def test_stop_strings_over_token_borders(client, generator, include, tokens_per_output):
    generator.script.answer = "the quick brown fox jumps"
    generator.script.tokens_per_output = tokens_per_output
    extra = {"include_stop_str_in_output": include}
    answer = chat(client, stop=["wn fo", "zebra"], extra_body=extra)
    expected = "the quick brown fo" if include else "the quick bro"
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (expected, "stop")
    assert choice.stop_reason == "wn fo"
    streamed = chat(client, stop=["wn fo", "zebra"], extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == expected
    generator.wait_until_running(0)


def test_stop_strings_wait_for_min_tokens(client, generator):
    generator.script.answer = "one one one"
    answer = chat(client, stop="one", extra_body={"min_tokens": 4})
    assert answer.choices[0].message.content.count("one") >= 1
    assert answer.usage.completion_tokens > 4


def test_length_and_abort_are_told(client, generator):
    assert chat(client, max_tokens=1).choices[0].finish_reason == "length"
    generator.script.finish_reason = FinishReason.ABORT
    generator.script.answer = "hello<|im_end|>"
    assert chat(client).choices[0].finish_reason == "abort"


def test_tool_calls_come_out(client, generator):
    generator.script.answer = "Let me see. " + CALL + CALL
    agent = {"agent": {"session": "agent-7"}}
    choice = chat(client, tools=[TOOL], extra_body=agent).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see. "
    assert generator.called_tools[-1] == ("agent-7", ("find", "find"))
    first, second = choice.message.tool_calls
    assert first.function.name == "find"
    assert json.loads(first.function.arguments) == {"q": "日本"}
    assert first.id != second.id
    assert chat(client, tools=[TOOL], tool_choice="none").choices[0].finish_reason == "stop"
    assert chat(client).choices[0].message.content == generator.script.answer


def test_an_answer_that_a_stop_string_ends_has_ended_before_its_tools_run(client, generator):
    generator.script.answer = CALL + " end and more"
    before = len(generator.endings)
    choice = chat(client, tools=[TOOL], stop=[" end"]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert generator.endings[before:] == ["satisfied", "tools_called"]


def test_tool_calls_stream(client, generator):
    generator.script.answer = "Let me see. " + CALL + CALL
    content, calls = "", []
    for chunk in chat(client, tools=[TOOL], stream=True):
        content += chunk.choices[0].delta.content or ""
        calls += chunk.choices[0].delta.tool_calls or []
    assert content == "Let me see. "
    assert [call.index for call in calls] == [0, 1]
    assert chunk.choices[0].finish_reason == "tool_calls"


def test_malformed_calls_are_content(client, generator):
    generator.script.answer = "<tool_call>{no json}</tool_call> sorry"
    choice = chat(client, tools=[TOOL]).choices[0]
    assert choice.message.content == generator.script.answer
    assert choice.finish_reason == "stop"


def test_tool_results_go_in(client, generator, text):
    made = {
        "id": "c1",
        "type": "function",
        "function": {"name": "find", "arguments": '{"q": "x"}'},
    }
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    chat(client, messages=messages, tools=[TOOL])
    prompt = text.tokenizer.decode(generator.requests[0].prompt_tokens, skip_special_tokens=False)
    assert '<tool_call>find{"q": "x"}</tool_call>' in prompt
    assert "<|im_start|>tool\n42" in prompt
    assert '{"type": "function", "function": {"name": "find", "parameters"' in prompt


def test_token_ids_on_request(client, generator):
    answer = chat(client, extra_body={"return_token_ids": True})
    request = generator.requests[0]
    assert answer.prompt_token_ids == list(request.prompt_tokens)
    assert answer.choices[0].token_ids[-1] in request.sampling.stop_token_ids
    chunks = list(chat(client, extra_body={"return_token_ids": True}, stream=True))
    assert chunks[0].prompt_token_ids == answer.prompt_token_ids
    streamed = [token for chunk in chunks for token in chunk.choices[0].token_ids]
    assert streamed == answer.choices[0].token_ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "raised", "status"),
    [
        (Overloaded("too busy", 2.3), openai.RateLimitError, 429),
        (InvalidRequest("priority", "is odd"), openai.BadRequestError, 400),
        (EngineFailed("it died"), openai.InternalServerError, 503),
    ],
)
def test_failures_before_the_first_token_are_plain_errors(
    client, generator, stream, failure, raised, status
):
    generator.script.failure = failure
    with pytest.raises(raised) as caught:
        chat(client, stream=stream)
    assert caught.value.status_code == status
    assert caught.value.body["message"] == str(failure)
    if status == 429:
        assert caught.value.response.headers["retry-after"] in ("3", "4")


def test_a_failure_in_mid_stream_is_the_last_event(client, generator):
    generator.script.failure, generator.script.fail_after = EngineFailed("it died"), 2
    stream = chat(client, stream=True)
    next(stream)
    with pytest.raises(openai.APIError, match="it died"):
        list(stream)


def test_one_failing_choice_ends_all(client, generator):
    generator.script.failure, generator.script.fail_after = EngineFailed("it died"), 2
    with pytest.raises(openai.InternalServerError):
        chat(client, n=3)
    generator.wait_until_running(0)


def test_a_closed_stream_frees_its_sequences(client, generator):
    generator.script.hold_after = 2
    stream = chat(client, stream=True, n=2)
    next(stream)
    generator.wait_until_running(2)
    stream.close()
    generator.wait_until_running(0)


def async_client(port) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)


def test_cancelled_calls_free_their_sequences(port, generator):
    generator.script.hold_after = 1

    async def cancel_both() -> None:
        async with async_client(port) as client:
            calls = [asyncio.ensure_future(chat(client, n=2)), asyncio.ensure_future(chat(client))]
            await asyncio.to_thread(generator.wait_until_running, 3)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(cancel_both())
    generator.wait_until_running(0)


def test_many_clients_at_once(port, generator):
    async def ask_all() -> list[str]:
        async with async_client(port) as client:

            async def ask() -> str:
                stream = await chat(client, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return await asyncio.gather(*(ask() for _ in range(20)))

    assert asyncio.run(ask_all()) == ["hello world"] * 20
    assert len({request.request_id for request in generator.requests}) == 20
