"""Every format of tool calls over HTTP: what a model writes in it comes out as calls."""

import json
import re
from contextlib import ExitStack

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.text.call_markup import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_SEPARATOR,
)
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator
from tests.api.server import client_of
from tests.api.test_refusals import CHAT, CHAT_PATH
from tests.api.test_tool_choice import FIND, FOUND
from tests.text.tiny_checkpoint import write_checkpoint

ARGUMENTS = '{"q": "12"}'
OBJECT = f'{{"name": "find", "%s": {ARGUMENTS}}}'
_DEEPSEEK = f"{DEEPSEEK_CALLS}{DEEPSEEK_CALL}%s{DEEPSEEK_CALL_END}{DEEPSEEK_CALLS_END}"
ANSWERS = {
    "hermes": FOUND.replace('{"q":"x"}', ARGUMENTS),
    "llama3_json": OBJECT % "parameters",
    "mistral": f"[TOOL_CALLS] [{OBJECT % 'arguments'}]",
    "deepseek_v3": _DEEPSEEK % f"function{DEEPSEEK_SEPARATOR}find\n```json\n{ARGUMENTS}\n```",
    "deepseek_v31": _DEEPSEEK % f"find{DEEPSEEK_SEPARATOR}{ARGUMENTS}",
    "qwen3_xml": "<tool_call>\n<function=find>\n<parameter=q>\n12\n</parameter>\n</function>\n"
    "</tool_call>",
}
DEMANDING = [name for name in ANSWERS if name != "qwen3_xml"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A client and a generator for each format, made when they are first asked for."""
    directory = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    made = {}

    def server(tool_format: str) -> tuple[httpx2.Client, ScriptedGenerator, TextModel]:
        if tool_format not in made:
            text = TextModel.load(directory, tool_call_parser=tool_format)
            generator = ScriptedGenerator(text)
            client = stack.enter_context(client_of(build_app(generator, text, ApiConfig())))
            made[tool_format] = (client, generator, text)
        return made[tool_format]

    with ExitStack() as stack:
        yield server


def asked(client, **fields):
    answer = client.post(CHAT_PATH, json=CHAT | {"tools": [FIND]} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize("tool_format", ANSWERS)
def test_calls_come_out(servers, tool_format):
    client, generator, _ = servers(tool_format)
    generator.script.answer = ANSWERS[tool_format]
    choice = asked(client)
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "find", "arguments": ARGUMENTS}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    # Mistral's templates take no other ids.
    is_short = bool(re.fullmatch("[a-zA-Z0-9]{9}", made["id"]))
    assert is_short == (tool_format == "mistral")


@pytest.mark.parametrize("tool_format", DEMANDING)
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [FIND | {"function": FIND["function"] | {"strict": True}}]},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["demanded", "strict", "form"],
)
def test_grammars_are_of_the_format(servers, tool_format, fields):
    client, generator, text = servers(tool_format)
    generator.script.answer = ANSWERS[tool_format]
    choice = asked(client, **fields)
    assert len(choice["message"]["tool_calls"]) == 1
    matcher = text.grammars.begin(generator.requests[-1].sampling.grammar)
    matcher.consume(text.tokenizer.encode(ANSWERS[tool_format], add_special_tokens=False))
    assert matcher.complete
    parts = []
    body = CHAT | {"tools": [FIND], "stream": True} | fields
    with client.stream("POST", CHAT_PATH, json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                parts += [call["function"]["arguments"] for call in delta.get("tool_calls", ())]
    assert "".join(parts) == ARGUMENTS
    certain = tool_format != "llama3_json" or "response_format" not in fields
    assert (len(parts) > 2) == certain


def test_calls_in_xml_cannot_be_demanded(servers):
    client, _, _ = servers("qwen3_xml")
    answer = client.post(CHAT_PATH, json=CHAT | {"tools": [FIND], "tool_choice": "required"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
