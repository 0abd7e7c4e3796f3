"""Reasoning over HTTP: apart from the content, whole and streamed, before calls and forms."""

from contextlib import ExitStack

import openai
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.text.model import TextModel
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.api.server import serving
from tests.api.test_tool_choice import FIND, FOUND
from tests.text.tiny_checkpoint import TEMPLATE, write_checkpoint

# As Qwen3's: thinks or not as it likes, unless the call says which.
THINKING = TEMPLATE.replace(
    "{{- '<|im_end|>\\n' }}", "{{- message.reasoning_content or '' }}{{- '<|im_end|>\\n' }}"
).rstrip("\n") + (
    "{%- if add_generation_prompt and enable_thinking is defined %}"
    "{{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
)
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
THOUGHT = "<think>\nHm, 日本.\n\nWell.\n</think>\n\n"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory) -> TextModel:
    directory = tmp_path_factory.mktemp("thinker")
    tags = ("<think>", "</think>")
    return TextModel.load(write_checkpoint(directory, tags, chat_template=THINKING))


@pytest.fixture(scope="module")
def the_thinker(thinker):
    generator = ScriptedGenerator(thinker)
    with (
        serving(build_app(generator, thinker, ApiConfig())) as port,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=30
        ) as client,
    ):
        yield client, generator


@pytest.fixture
def client(the_thinker):
    return the_thinker[0]


@pytest.fixture
def generator(the_thinker):
    _, generator = the_thinker
    generator.script = Script()
    generator.requests.clear()
    yield generator
    generator.wait_until_running(0)


def whole(client, **fields):
    answer = client.chat.completions.create(**(ASKED | fields))
    return answer.choices[0], answer.usage


def streamed(client, **fields):
    """Reasoning, content, the finish reason and the usage."""
    reasoning = content = ""
    finish = usage = None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        **(ASKED | {"stream": True, "stream_options": options} | fields)
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            more = getattr(choice.delta, "reasoning_content", None) or ""
            assert more == (getattr(choice.delta, "reasoning", None) or "")
            assert not (content and more)
            reasoning += more
            content += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return reasoning, content, finish, usage


@pytest.mark.parametrize("tokens_per_output", [1, 3, 64])
def test_reasoning_is_apart_from_the_content(client, generator, thinker, tokens_per_output):
    generator.script = Script(THOUGHT + "Hello.", tokens_per_output=tokens_per_output)
    choice, usage = whole(client)
    message = choice.message
    assert (message.reasoning_content, message.content) == ("Hm, 日本.\n\nWell.", "Hello.")
    assert message.reasoning == message.reasoning_content
    # With its tags, without the blank space behind.
    thought = thinker.tokenizer.encode(THOUGHT.rstrip(), add_special_tokens=False)
    assert usage.completion_tokens_details.reasoning_tokens == len(thought)
    reasoning, content, finish, streamed_usage = streamed(client)
    assert (reasoning, content, finish) == ("Hm, 日本.\n\nWell.", "Hello.", "stop")
    assert streamed_usage == usage


@pytest.mark.parametrize(
    ("thinking", "answer", "reasoning", "content"),
    [
        (True, "Hm.\n</think>\nYes", "Hm.", "Yes"),
        (True, "Never ends", "Never ends", ""),
        (False, "Yes <think>", None, "Yes <think>"),
        (None, "\nYes", None, "\nYes"),
    ],
)
def test_the_prompt_may_have_begun_or_ended_it(
    client, generator, thinker, thinking, answer, reasoning, content
):
    generator.script.answer = answer
    kwargs = {} if thinking is None else {"enable_thinking": thinking}
    choice, usage = whole(client, extra_body={"chat_template_kwargs": kwargs})
    message = choice.message
    assert getattr(message, "reasoning_content", None) == reasoning
    assert message.content == content
    prompt = thinker.tokenizer.decode(
        generator.requests[-1].prompt_tokens, skip_special_tokens=False
    )
    assert ("<think>" in prompt) == (thinking is not None)
    assert ("</think>" in prompt) == (thinking is False)
    if thinking is not False:
        counted = usage.completion_tokens_details.reasoning_tokens
        assert (counted > 0) == (reasoning is not None)


@pytest.mark.parametrize(
    ("said", "reasoning", "content"),
    [
        ("<think>Hm", "or so.", "Yes"),
        ([{"type": "text", "text": "<think>Hm"}], "or so.", "Yes"),
        ("Hm", None, "or so.</think>Yes"),
    ],
    ids=["open", "parts", "plain"],
)
def test_a_continued_message_may_be_in_the_middle_of_it(
    client, generator, said, reasoning, content
):
    generator.script.answer = "or so.</think>Yes"
    messages = [*ASKED["messages"], {"role": "assistant", "content": said}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    choice, _ = whole(client, messages=messages, extra_body=fields)
    assert getattr(choice.message, "reasoning_content", None) == reasoning
    assert choice.message.content == content


def test_calls_follow_reasoning(client, generator):
    generator.script.answer = f"<think>I could <tool_call> now.</think>\n\n{FOUND}"
    for fields in ({}, {"tool_choice": "required"}):
        choice, _ = whole(client, tools=[FIND], **fields)
        assert choice.message.reasoning_content == "I could <tool_call> now."
        assert [call.function.name for call in choice.message.tool_calls] == ["find"]
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
        reasoning, content, finish, _ = streamed(client, tools=[FIND], **fields)
        assert (reasoning, content, finish) == ("I could <tool_call> now.", "", "tool_calls")


@pytest.mark.parametrize(
    ("fields", "answer", "other"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[]"),
        ({"tools": [FIND], "tool_choice": "required"}, FOUND, "Hm."),
        ({"tools": [FIND], "parallel_tool_calls": False}, FOUND, FOUND + FOUND),
    ],
    ids=["form", "demanded", "one"],
)
@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_form_begins_behind_the_reasoning(
    client, generator, thinker, fields, answer, other, thinking
):
    kwargs = {} if thinking is None else {"enable_thinking": thinking}
    whole(client, extra_body={"chat_template_kwargs": kwargs}, **fields)
    grammar = generator.requests[-1].sampling.grammar

    def fits(text: str) -> bool:
        matcher = thinker.grammars.begin(grammar)
        matcher.consume(thinker.tokenizer.encode(text, add_special_tokens=False))
        return matcher.complete

    before = {None: "<think>Hm.\n</think>\n", True: "Hm.\n</think>\n", False: ""}[thinking]
    assert fits(before + answer)
    assert not fits(before + other)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_earlier_reasoning_goes_into_the_template(client, generator, thinker, field):
    earlier = {"role": "assistant", "content": "Hi.", field: "I greet."}
    whole(client, messages=[*ASKED["messages"], earlier, *ASKED["messages"]])
    prompt = thinker.tokenizer.decode(generator.requests[-1].prompt_tokens)
    assert "Hi.I greet." in prompt


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# As gpt-oss's, which has no switch, and DeepSeek V3.1's, which is off unless it is asked for.
BY_EFFORT = TEMPLATE + "{{- 'effort ' + (reasoning_effort or 'unsaid') }}"
BY_WISH = TEMPLATE + (
    "{%- if thinking is not defined %}{% set thinking = false %}{% endif %}"
    "{{- '<think>' if thinking else '</think>' }}"
)
ALWAYS = TEMPLATE + "{%- if false %}</think>{% endif %}{{- '<think>\\n' }}"


def rendered(client, **fields) -> str:
    """The end of the prompt, behind the assistant's role."""
    body = {"messages": ASKED["messages"], **fields}
    tokens = client.post("/tokenize", cast_to=object, body=body)["tokens"]
    text = client.post("/detokenize", cast_to=object, body={"tokens": tokens})["prompt"]
    return text.rpartition("<|im_start|>assistant\n")[2]


@pytest.fixture
def templated(tmp_path):
    """Makes a client of a server with that template."""
    with ExitStack() as stack:

        def make(template: str) -> openai.OpenAI:
            directory = tmp_path / str(len(list(tmp_path.iterdir())))
            directory.mkdir()
            tags = ("<think>", "</think>")
            text = TextModel.load(write_checkpoint(directory, tags, chat_template=template))
            app = build_app(ScriptedGenerator(text), text, ApiConfig())
            # Its paths begin at the root: OpenAI's client asks for these, too.
            url = f"http://127.0.0.1:{stack.enter_context(serving(app))}"
            return stack.enter_context(openai.OpenAI(base_url=url, api_key="none", max_retries=0))

        yield make


def test_effort_switches_reasoning_where_the_template_can(templated):
    thinking, by_wish = templated(THINKING), templated(BY_WISH)
    assert (rendered(thinking), rendered(by_wish)) == ("", "</think>")
    for effort in EFFORTS:
        is_off = effort in ("none", "minimal")
        opened = rendered(thinking, reasoning_effort=effort)
        assert opened == ("<think>\n\n</think>\n\n" if is_off else "<think>\n")
        opened = rendered(by_wish, reasoning_effort=effort)
        assert opened == ("</think>" if is_off else "<think>")
    # What the client says of the template itself comes first.
    kwargs = {"enable_thinking": True}
    assert rendered(thinking, reasoning_effort="none", chat_template_kwargs=kwargs) == "<think>\n"


def test_effort_reaches_templates_that_know_it(templated):
    by_effort = templated(BY_EFFORT)
    assert rendered(by_effort) == "effort unsaid"
    for effort in EFFORTS:
        assert rendered(by_effort, reasoning_effort=effort) == f"effort {effort}"
    kwargs = {"reasoning_effort": "own"}
    told = rendered(by_effort, reasoning_effort="low", chat_template_kwargs=kwargs)
    assert told == "effort own"


def test_effort_changes_nothing_where_there_is_nothing_to_choose(templated):
    plain, always = templated(TEMPLATE), templated(ALWAYS)
    for effort in EFFORTS:
        assert rendered(plain, reasoning_effort=effort) == ""
        if effort in ("none", "minimal"):
            with pytest.raises(openai.BadRequestError, match="always reasons") as refused:
                rendered(always, reasoning_effort=effort)
            assert refused.value.param == "reasoning_effort"
        else:
            assert rendered(always, reasoning_effort=effort) == "<think>\n"


def test_effort_decides_how_an_answer_is_split(client, generator):
    generator.script.answer = "Hm.\n</think>\nYes"
    choice, _ = whole(client, reasoning_effort="high")
    assert (choice.message.reasoning_content, choice.message.content) == ("Hm.", "Yes")
    generator.script.answer = "Yes"
    choice, _ = whole(client, reasoning_effort="none")
    assert getattr(choice.message, "reasoning_content", None) is None
    assert choice.message.content == "Yes"
