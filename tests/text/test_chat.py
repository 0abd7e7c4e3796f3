"""Duel: our rendering against transformers' own, and what a template may do to a request."""

from datetime import datetime

import pytest

from tandem.facts.errors import InvalidConfiguration, InvalidRequest
from tandem.text.chat import ChatOptions, ChatTemplate
from tests.text.tiny_checkpoint import TEMPLATE

TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "<b> & é", "parameters": {"type": "object"}},
}
CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Sure, "},
]
TRIMMING = """
{%- for m in messages %}
    {{ '[' + m.role + ']' + m.content | trim + eos_token }}
    {% if loop.index > 9 %}{% break %}{% endif %}
    {% generation %}x{% endgeneration %}
{% endfor %}
{{ tools | tojson(indent=2) if tools is not none }}{{ extra }}
"""


def template(source: str = TEMPLATE, **more: str) -> ChatTemplate:
    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate({"default": source, **more}, specials, lambda: datetime(2026, 11, 21))


@pytest.mark.parametrize("source", [TEMPLATE, TRIMMING])
@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("mode", ["prompt", "closed", "open"])
def test_transformers_renders_the_same(source, tools, mode):
    chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    options = ChatOptions(
        add_generation_prompt=mode == "prompt",
        continue_final_message=mode == "open",
        arguments={"extra": "e"},
    )
    expected, _ = chat_template_utils.render_jinja_template(
        conversations=[CHAT],
        tools=tools or None,
        chat_template=source,
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        bos_token="<s>",
        eos_token="</s>",
        extra="e",
    )
    assert template(source).render(CHAT, tools, options) == expected[0]


def test_an_open_message_ends_the_prompt():
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    assert template().render(CHAT, [], options).endswith("<|im_start|>assistant\nSure, ")
    assert template(TRIMMING).render(CHAT, [], options).endswith("[assistant]Sure,")


@pytest.mark.parametrize(
    "options",
    [
        ChatOptions(continue_final_message=True),
        ChatOptions(add_generation_prompt=False, arguments={"messages": []}),
        ChatOptions(arguments={"eos_token": ""}),
    ],
)
def test_contradicting_options_are_refused(options):
    with pytest.raises(InvalidRequest):
        template().render(CHAT, [], options)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[7].content + 'x' }}",
        "{{ none + 'x' }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages | tojson | int + [] }}",
        "{{ messages | tojson(cls=1) }}",
    ],
)
def test_a_template_that_fails_refuses_the_request(source):
    with pytest.raises(InvalidRequest, match="messages"):
        template(source).render(CHAT, [], ChatOptions())


def test_a_broken_template_is_a_broken_checkpoint():
    with pytest.raises(InvalidConfiguration):
        template("{% if %}")
    with pytest.raises(InvalidConfiguration):
        ChatTemplate({"rag": "x"}, {})


def test_tools_choose_their_own_template():
    both = template("plain {{ tools }}", tool_use="tools {{ tools | length }}")
    assert both.render(CHAT, [TOOL], ChatOptions()) == "tools 1"
    assert both.render(CHAT, [], ChatOptions()) == "plain None"
    assert both.uses_tools
    assert not template("{{ messages }}").uses_tools


def test_dates_come_from_the_given_clock():
    rendered = template("{{ strftime_now('%d %b %Y') }}").render(CHAT, [], ChatOptions())
    assert rendered == "21 Nov 2026"
