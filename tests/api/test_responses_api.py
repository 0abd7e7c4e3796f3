"""The Responses API as OpenAI's own client sees it, over a socket: answers, streams, the store."""

import json

import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.api.body_fields import ChatMessage
from tandem.api.response_messages import fitting_end
from tandem.facts.errors import EngineFailed, InvalidRequest, Overloaded
from tandem.facts.request import FinishReason
from tests.api.scripted_generator import CONTEXT_TOKENS

PATH = "/v1/responses"
FIND = {
    "type": "function",
    "name": "find",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    },
    "strict": False,
}
CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "日本"}}\n</tool_call>'


def respond(client, **fields):
    return client.responses.create(**{"model": "tiny", "input": "hello"} | fields)


def prompt_of(generator, text) -> str:
    tokens = generator.requests[-1].prompt_tokens
    return text.tokenizer.decode(tokens, skip_special_tokens=False)


def spoken(*turns: tuple[str, str]) -> str:
    """A prompt that says this, and asks for an answer."""
    said = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return f"{said}<|im_start|>assistant\n"


def plain(response) -> dict:
    """Without what differs from call to call."""
    answer = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        answer.pop(name)
    for item in answer["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return answer


def test_an_answer(client, generator):
    generator.script.cached_tokens = 3
    answer = respond(client, metadata={"a": "b"}, user="me", max_output_tokens=50, temperature=0.5)
    assert answer.id.startswith("resp_")
    assert (answer.object, answer.status, answer.model) == ("response", "completed", "tiny")
    assert answer.output_text == "hello world"
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.content[0].annotations == []
    usage = answer.usage
    assert usage.input_tokens == len(generator.requests[0].prompt_tokens)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert (answer.metadata, answer.user, answer.max_output_tokens) == ({"a": "b"}, "me", 50)
    assert (answer.temperature, answer.top_p, answer.truncation) == (0.5, 1.0, "disabled")
    assert (answer.tools, answer.tool_choice, answer.parallel_tool_calls) == ([], "auto", True)
    assert answer.text.format.type == "text"
    assert answer.completed_at >= answer.created_at
    assert (answer.error, answer.incomplete_details, answer.instructions) == (None, None, None)


@pytest.mark.parametrize("tokens_per_output", [1, 3, 1000])
@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        ("the 日本語 fox 🎉👩🏽‍🚀 naïve", ["message"]),
        ("", ["message"]),
        (f"Let me see. {CALL}{CALL}", ["message", "function_call", "function_call"]),
        (CALL, ["function_call"]),
        (f"{CALL} and so on", ["function_call", "message"]),
        (f"{CALL} and {CALL}", ["function_call", "message", "function_call"]),
    ],
)
def test_a_stream_says_what_the_answer_says(client, generator, tokens_per_output, answer, kinds):
    generator.script.answer = answer
    generator.script.tokens_per_output = tokens_per_output
    whole = respond(client, tools=[FIND])
    with client.responses.stream(model="tiny", input="hello", tools=[FIND]) as stream:
        events = list(stream)
        last = stream.get_final_response()
    assert [item.type for item in whole.output] == kinds
    raw = list(respond(client, tools=[FIND], stream=True))
    assert plain(raw[-1].response) == plain(whole)
    assert last.output_text == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == raw[-1].type == "response.completed"
    check_events(raw)


def check_events(events) -> None:
    """What deltas say is what the ends and the whole say, and nothing begins or ends twice."""
    texts, arguments, added, done = {}, {}, [], []
    for event in events:
        place = getattr(event, "output_index", None)
        if event.type == "response.output_item.added":
            added.append(place)
            assert event.item.status == "in_progress"
        elif event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
            texts[place] = texts.get(place, "") + event.delta
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert event.text == texts.get(place, "")
        elif event.type == "response.content_part.done":
            assert event.part.text == texts.get(place, "")
        elif event.type == "response.function_call_arguments.delta":
            arguments[place] = arguments.get(place, "") + event.delta
        elif event.type == "response.function_call_arguments.done":
            assert event.arguments == arguments[place]
        elif event.type == "response.output_item.done":
            done.append((place, event.item.id))
    assert added == sorted(added)
    assert sorted(done) == [(n, item.id) for n, item in enumerate(events[-1].response.output)]


def test_events_have_names_and_no_end_mark(http, generator):
    options = {"include_obfuscation": False, "include_usage": True}
    body = {"input": "hello", "stream": True, "stream_options": options}
    response = http.post(PATH, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.strip().split("\n\n")
    for event in events:
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in response.text


def test_load_generators_can_keep_an_answer_from_ending(client, generator):
    respond(client, extra_body={"ignore_eos": True})
    assert generator.requests[-1].sampling.stop_token_ids == ()
    respond(client)
    assert generator.requests[-1].sampling.stop_token_ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("finish", "limit", "status", "reason"),
    [
        (FinishReason.STOP, 1, "incomplete", "max_output_tokens"),
        (FinishReason.ABORT, 50, "failed", None),
    ],
)
def test_an_answer_that_is_cut_off_says_so(
    client, generator, stream, finish, limit, status, reason
):
    generator.script.answer = "hello<|im_end|>"
    generator.script.finish_reason = finish
    answer = respond(client, max_output_tokens=limit, stream=stream)
    if stream:
        *_, last = answer
        assert last.type == f"response.{status}"
        answer = last.response
    assert (answer.status, answer.output[-1].status) == (status, "incomplete")
    details = answer.incomplete_details
    assert (details and details.reason) == reason
    assert (answer.error is not None) == (status == "failed")
    assert client.responses.retrieve(answer.id).status == status


def test_reasoning_free_prompts_have_items_of_all_kinds(client, generator, text):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}], "type": "message"},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": "x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        {"role": "user", "content": "c"},
    ]
    respond(client, input=items, instructions="Be kind.")
    assert prompt_of(generator, text) == spoken(
        ("system", "Be kind.\n\nBe brief."),
        ("user", "a"),
        ("assistant", '<tool_call>find{"q": "x"}</tool_call>'),
        ("tool", "42"),
        ("assistant", "b"),
        ("user", "c"),
    )


def test_input_tokens_are_those_of_the_call(client, generator):
    fields = {"input": "hello there", "instructions": "Be kind.", "tools": [FIND]}
    first = respond(client, **fields)
    counted = client.responses.input_tokens.count(model="tiny", **fields)
    assert counted.input_tokens == first.usage.input_tokens
    more = {"input": "and?", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(**more)
    assert counted.input_tokens == respond(client, **more).usage.input_tokens
    assert len(generator.requests) == 2


class Treasure(pydantic.BaseModel):
    colour: str
    count: int


def test_an_answer_is_parsed(client, generator, text):
    generator.script.answer = '{"colour": "red", "count": 3}'
    answer = client.responses.parse(model="tiny", input="hello", text_format=Treasure)
    assert answer.output_parsed == Treasure(colour="red", count=3)
    with client.responses.stream(model="tiny", input="hello", text_format=Treasure) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed
    of_response = generator.requests[-1].sampling.grammar
    client.chat.completions.parse(
        model="tiny", messages=[{"role": "user", "content": "hello"}], response_format=Treasure
    )
    assert of_response == generator.requests[-1].sampling.grammar
    respond(client, text={"format": {"type": "json_object"}})
    assert generator.requests[-1].sampling.grammar
    respond(client, text={"format": {"type": "text"}, "verbosity": "medium"})
    assert not generator.requests[-1].sampling.grammar


def test_log_probabilities(client, generator):
    generator.script.answer = "fox 🚀"
    include = ["message.output_text.logprobs"]
    part = respond(client, include=include, top_logprobs=2).output[0].content[0]
    assert b"".join(bytes(each.bytes) for each in part.logprobs).decode() == "fox 🚀"
    assert all(each.logprob == -0.5 and len(each.top_logprobs) == 2 for each in part.logprobs)
    streamed = []
    for event in respond(client, include=include, top_logprobs=2, stream=True):
        if event.type == "response.output_text.delta":
            streamed += event.logprobs
    assert [each.token for each in streamed] == [each.token for each in part.logprobs]
    assert respond(client, include=include).output[0].content[0].logprobs[0].top_logprobs == []
    assert respond(client).output[0].content[0].logprobs == []


def test_the_oldest_turns_may_be_dropped(client, generator, text):
    long = [
        {"role": ("user", "assistant")[n % 2], "content": f"{n} " + "the fox jumps " * 12}
        for n in range(21)
    ]
    instructions = "Be kind."
    with pytest.raises(openai.BadRequestError, match="context") as caught:
        respond(client, input=long, instructions=instructions)
    assert caught.value.body["param"] == "input"
    answer = respond(
        client, input=long, instructions=instructions, truncation="auto", max_output_tokens=100
    )
    said = prompt_of(generator, text)
    assert said.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
    assert f"<|im_start|>user\n{long[-1]['content']}" in said
    assert answer.usage.input_tokens <= CONTEXT_TOKENS - 100
    kept = said.count("<|im_start|>user")
    assert 1 < kept < 11
    # One turn more would not have fitted.
    said = spoken(("user", long[2]["content"]))
    turn = len(text.tokenizer.encode(said, add_special_tokens=False))
    assert answer.usage.input_tokens + 2 * turn > CONTEXT_TOKENS - 100
    short = long[-3:]
    respond(client, input=short, truncation="auto")
    respond(client, input=short)
    assert generator.requests[-1].prompt_tokens == generator.requests[-2].prompt_tokens


@given(
    roles=st.lists(st.sampled_from(["user", "user", "assistant", "tool"]), max_size=30),
    systems=st.integers(0, 2),
    room=st.integers(0, 40),
)
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
def test_as_many_of_the_last_turns_are_kept_as_fit(roles, systems, room):
    head = [ChatMessage(role="system", content=str(n)) for n in range(systems)]
    said = [ChatMessage(role=role, content=str(n)) for n, role in enumerate(roles)]
    tried = []

    def fits(messages) -> bool:
        tried.append(len(messages))
        return len(messages) <= room

    kept = fitting_end([*head, *said], fits)
    starts = [0, *(n for n, role in enumerate(roles) if role == "user" and n)]
    ends = [[*head, *said[start:]] for start in starts]
    assert kept == next((end for end in ends if len(end) <= room), ends[-1])
    assert len(tried) < 12


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
        respond(client, stream=stream)
    assert caught.value.status_code == status


def test_a_closed_stream_frees_its_sequence(client, generator):
    generator.script.hold_after = 2
    stream = respond(client, stream=True)
    next(stream)
    generator.wait_until_running(1)
    stream.close()
    generator.wait_until_running(0)
