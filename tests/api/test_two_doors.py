"""One conversation underneath: what goes through chat and through responses is the same request,
and its answer says the same."""

import json
from dataclasses import replace

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.text.model import TextModel
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.api.server import client_of
from tests.api.test_reasoning import THINKING, THOUGHT
from tests.text.tiny_checkpoint import write_checkpoint

CHAT_PATH, PATH = "/v1/chat/completions", "/v1/responses"
PARAMETERS = {
    "type": "object",
    "properties": {"q": {"type": "string"}},
    "required": ["q"],
    "additionalProperties": False,
}
FIND = {"name": "find", "description": "Finds.", "parameters": PARAMETERS}
NOW = {"name": "now"}
CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "日本"}}\n</tool_call>'
BOOLEANS = st.booleans()
TEXTS = st.sampled_from(
    ["a", "the fox", "日本 🎉", "two\nlines", " blank ", "<|im_end|>", "<think>"]
)
ANSWERS = st.sampled_from(
    ["hello world", "", f"I look. {CALL}", f"{CALL}{CALL}", f"{CALL} then", THOUGHT + "Yes.",
     f"{THOUGHT}Well. {CALL}", "<think>Never ends", "日本語 🎉"]
)  # fmt: skip


class RoomyGenerator(ScriptedGenerator):
    """With a context for every conversation that is drawn."""

    @property
    def card(self):
        return replace(super().card, context_tokens=4096)


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """A server of a model that reasons and calls tools, and its generator."""
    directory = tmp_path_factory.mktemp("doors")
    tags = ("<think>", "</think>")
    text = TextModel.load(write_checkpoint(directory, tags, chat_template=THINKING))
    generator = RoomyGenerator(text)
    with client_of(build_app(generator, text, ApiConfig())) as http:
        yield http, generator


class Conversation:
    """The same turns as messages of a chat and as items."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        self.items: list[dict] = []

    def ask(self, text: str, *, in_parts: bool) -> None:
        content = [{"type": "text", "text": text}] if in_parts else text
        self.messages.append({"role": "user", "content": content})
        content = [{"type": "input_text", "text": text}] if in_parts else text
        self.items.append({"role": "user", "content": content})

    def answer(self, text: str, reasoning: str, calls: int) -> None:
        message: dict = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
            part = {"type": "reasoning_text", "text": reasoning}
            self.items.append({"type": "reasoning", "id": "r", "summary": [], "content": [part]})
        part = {"type": "output_text", "text": text, "annotations": []}
        self.items.append({"type": "message", "role": "assistant", "content": [part]})
        made, arguments = [], '{"q": "x"}'
        for number in range(calls):
            function = {"name": "find", "arguments": arguments}
            made.append({"id": f"c{number}", "type": "function", "function": function})
            call = {"type": "function_call", "call_id": f"c{number}"}
            self.items.append(call | function)
        self.messages.append(message | ({"tool_calls": made} if made else {}))
        for number in range(calls):
            output = {"call_id": f"c{number}", "output": "42"}
            self.items.append({"type": "function_call_output"} | output)
            self.messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "42"})


@st.composite
def conversations(draw):
    conversation = Conversation()
    for _ in range(draw(st.integers(0, 3))):
        conversation.ask(draw(TEXTS), in_parts=draw(st.booleans()))
        conversation.answer(
            draw(TEXTS), draw(st.sampled_from(["", "Hm."])), draw(st.integers(0, 2))
        )
    conversation.ask(draw(TEXTS), in_parts=False)
    return conversation


@st.composite
def calls(draw):
    """The bodies of a call through either door."""
    conversation, tools = draw(conversations()), draw(st.sampled_from([[], [FIND], [FIND, NOW]]))
    system = draw(st.sampled_from(["", "Be kind."]))
    shared = {"temperature": draw(st.sampled_from([0, 0.5])), "seed": 7, "stream": draw(BOOLEANS)}
    tools = [tool | {"strict": draw(BOOLEANS)} for tool in tools]
    if tools and not draw(BOOLEANS):
        shared["parallel_tool_calls"] = False
    head = [{"role": "system", "content": system}] if system else []
    chat = {"messages": head + conversation.messages, "max_completion_tokens": 200}
    chat["tools"] = [{"type": "function", "function": tool} for tool in tools]
    chat["chat_template_kwargs"] = thinks = draw(
        st.sampled_from([{}, {"enable_thinking": True}, {"enable_thinking": False}])
    )
    asked = {"input": conversation.items, "instructions": system, "max_output_tokens": 200}
    asked["tools"] = [{"type": "function"} | tool for tool in tools]
    if thinks:
        asked["reasoning"] = {"effort": "medium" if thinks["enable_thinking"] else "minimal"}
    return chat | shared, asked | shared


@settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(bodies=calls(), answer=ANSWERS, tokens_per_output=st.sampled_from([1, 4, 1000]))
def test_drawn_conversations_are_the_same_through_both(doors, bodies, answer, tokens_per_output):
    http, generator = doors
    generator.script = Script(answer, tokens_per_output=tokens_per_output)
    chat, asked = bodies
    said = (chat_streamed if chat["stream"] else chat_whole)(http.post(CHAT_PATH, json=chat))
    of_chat = generator.requests[-1]
    assert said == (streamed if chat["stream"] else whole)(http.post(PATH, json=asked))
    of_response = generator.requests[-1]
    assert of_response.prompt_tokens == of_chat.prompt_tokens
    assert of_response.sampling == of_chat.sampling
    assert len(generator.requests) % 2 == 0


def chat_whole(response: httpx2.Response):
    """Reasoning, text, calls and how it ended."""
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    message = choice["message"]
    made = [each["function"] for each in message.get("tool_calls", ())]
    calls = [(each["name"], each["arguments"]) for each in made]
    finish = choice["finish_reason"]
    return message.get("reasoning_content", ""), message["content"] or "", calls, finish == "length"


def chat_streamed(response: httpx2.Response):
    reasoning, content, calls, finish = "", "", [], None
    for line in response.text.split("\n\n")[:-2]:
        choice = json.loads(line.removeprefix("data: "))["choices"][0]
        delta = choice["delta"]
        reasoning += delta.get("reasoning", "")
        content += delta.get("content", "")
        finish = choice["finish_reason"] or finish
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                calls.append((part["function"]["name"], ""))
            name, arguments = calls.pop()
            calls.append((name, arguments + part["function"]["arguments"]))
    return reasoning, content, calls, finish == "length"


def whole(response: httpx2.Response):
    return said_by(response.json())


def streamed(response: httpx2.Response):
    """Of the deltas, which are checked against the last event."""
    texts = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
    arguments: dict[int, str] = {}
    for event in response.text.split("\n\n")[:-1]:
        told = json.loads(event.partition("\ndata: ")[2])
        if told["type"] in texts:
            texts[told["type"]] += told["delta"]
        elif told["type"] == "response.function_call_arguments.delta":
            place = told["output_index"]
            arguments[place] = arguments.get(place, "") + told["delta"]
    reasoning, content, calls, is_cut = said_by(told["response"])
    assert list(texts.values()) == [reasoning, content]
    assert [arguments[place] for place in sorted(arguments)] == [call[1] for call in calls]
    return reasoning, content, calls, is_cut


def said_by(answer: dict):
    assert answer["object"] == "response", answer
    reasoning = content = ""
    calls = []
    for item in answer["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
        elif item["type"] == "reasoning":
            reasoning += item["content"][0]["text"]
        else:
            content += item["content"][0]["text"]
    return reasoning, content, calls, answer["status"] == "incomplete"


STRICT = FIND | {"strict": True}
OWN_FIELDS = {"top_k": 5, "cache_salt": "s", "priority": 2, "presence_penalty": 0.5}
FORM = {"name": "form", "schema": PARAMETERS, "strict": True}


@pytest.mark.parametrize(
    ("of_chat", "of_response"),
    [
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tool_choice": "none"}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "find"}}},
            {"tool_choice": {"type": "function", "name": "find"}},
        ),
        (
            {"tools": [NOW], "tool_choice": "required"},
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "now"}],
                }
            },
        ),
        ({"tools": [STRICT, NOW]}, {"tools": [STRICT, NOW]}),
        (
            {"response_format": {"type": "json_schema", "json_schema": FORM}},
            {"text": {"format": {"type": "json_schema"} | FORM}},
        ),
        (
            {"response_format": {"type": "json_object"}, "tools": []},
            {"text": {"format": {"type": "json_object"}}, "tools": []},
        ),
        ({"top_logprobs": 3, "logprobs": True}, {"top_logprobs": 3}),
        (OWN_FIELDS, OWN_FIELDS),
    ],
    ids=str,
)
def test_fields_mean_the_same_through_both(doors, of_chat, of_response):
    http, generator = doors
    generator.script = Script(CALL)
    both = {"seed": 3, "tools": [FIND, NOW]}
    chat = {"messages": [{"role": "user", "content": "a"}]} | both | of_chat
    chat["tools"] = [{"type": "function", "function": tool} for tool in chat["tools"]]
    asked = {"input": "a"} | both | of_response
    asked["tools"] = [{"type": "function"} | tool for tool in asked["tools"]]
    said = chat_whole(http.post(CHAT_PATH, json=chat))
    assert said == whole(http.post(PATH, json=asked))
    first, second = generator.requests[-2:]
    assert first.prompt_tokens == second.prompt_tokens
    assert first.sampling == second.sampling
    assert (first.cache_salt, first.priority) == (second.cache_salt, second.priority)


def test_reasoning_is_an_item_of_its_own_and_goes_back(doors):
    http, generator = doors
    generator.script = Script(THOUGHT + "Yes.")
    answer = http.post(PATH, json={"input": "a"}).json()
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message"]
    assert answer["output"][0]["summary"] == []
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    goes_on = {"input": "b", "previous_response_id": answer["id"]}
    http.post(PATH, json=goes_on)
    sent_back = [{"role": "user", "content": "a"}, *answer["output"]]
    http.post(PATH, json={"input": [*sent_back, {"role": "user", "content": "b"}]})
    by_id, by_items = generator.requests[-2:]
    assert by_id.prompt_tokens == by_items.prompt_tokens
    message = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm, 日本.\n\nWell."}
    messages = [{"role": "user", "content": each} for each in "ab"]
    http.post(CHAT_PATH, json={"messages": [messages[0], message, messages[1]]})
    assert generator.requests[-1].prompt_tokens == by_id.prompt_tokens


def test_an_effort_sets_what_the_template_looks_at(doors, generator, http):
    thinker, its_generator = doors
    prompts = {}
    for effort in (None, "none", "minimal", "low", "high"):
        thinker.post(PATH, json={"input": "a", "reasoning": {"effort": effort}})
        prompts[effort] = its_generator.requests[-1].prompt_tokens
    assert prompts["none"] == prompts["minimal"]
    assert prompts["low"] == prompts["high"]
    assert len({prompts[None], prompts["none"], prompts["low"]}) == 3
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    thinker.post(PATH, json={"input": "a", "reasoning": {"effort": "none"}} | kwargs)
    assert its_generator.requests[-1].prompt_tokens == prompts["low"]
    # A template without such a variable, of a model that does not reason: there is nothing to set.
    for effort in ("none", "high"):
        response = http.post(PATH, json={"input": "a", "reasoning": {"effort": effort}})
        assert response.status_code == 200


def test_a_model_that_nothing_keeps_from_reasoning_says_so(tmp_path):
    tags = ("<think>", "</think>")
    always = THINKING.replace("enable_thinking is defined", "true").replace(
        "enable_thinking", "true"
    )
    text = TextModel.load(write_checkpoint(tmp_path, tags, chat_template=always))
    with client_of(build_app(ScriptedGenerator(text), text, ApiConfig())) as http:
        for effort, status in (("none", 400), ("minimal", 400), ("low", 200)):
            response = http.post(PATH, json={"input": "a", "reasoning": {"effort": effort}})
            assert response.status_code == status
