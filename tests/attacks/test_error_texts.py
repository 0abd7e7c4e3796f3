"""What errors say: never megabytes of what was sent, never what went on inside."""

import json

import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.errors import Refusal, refusal_of
from tandem.facts.errors import EngineFailed, InvalidConfiguration, InvalidRequest, TandemError
from tandem.facts.sampling import SamplingParameters
from tandem.text.chat import ChatOptions, ChatTemplate
from tests.api.scripted_generator import ScriptedGenerator
from tests.attacks.clients import browsing

CHAT_PATH, PROMPT_PATH = "/v1/chat/completions", "/v1/completions"
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
PROMPT = {"prompt": "hello"}
MEGABYTE = "x" * (1 << 20)


@pytest.fixture(scope="module")
def http(text):
    with browsing(build_app(ScriptedGenerator(text), text, ApiConfig())) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT_PATH, {"messages": [{"role": MEGABYTE, "content": ""}]}),
        (CHAT_PATH, {"messages": [{"role": f"x - at `$.{MEGABYTE}", "content": ""}]}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": [{"type": MEGABYTE}]}]}),
        (CHAT_PATH, CHAT | {"model": MEGABYTE}),
        (CHAT_PATH, CHAT | {MEGABYTE: 1}),
        (CHAT_PATH, CHAT | {"tool_choice": MEGABYTE}),
        (CHAT_PATH, CHAT | {"cache_salt": MEGABYTE}),
        (CHAT_PATH, CHAT | {"logit_bias": {MEGABYTE: 1}}),
        (CHAT_PATH, CHAT | {"chat_template_kwargs": {MEGABYTE: 1}}),
        (CHAT_PATH, CHAT | {"stream": True, "stream_options": {MEGABYTE: 1}}),
        (PROMPT_PATH, PROMPT | {"suffix": MEGABYTE}),
    ],
    ids=range(11),
)
def test_what_was_sent_is_shown_in_part(http, path, body):
    response = http.post(path, json=body)
    assert len(response.content) < 2048
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert response.json()["error"]["message"]


def test_a_template_tells_what_its_author_wrote_and_nothing_of_its_inside():
    source = "{% if messages|length > 1 %}{{ raise_exception('one alone') }}{% endif %}{{ 1 + '' }}"
    template, message = ChatTemplate({"default": source}, {}), {"role": "user", "content": "x"}
    with pytest.raises(InvalidRequest, match="refused by the chat template: one alone"):
        template.render([message, message], [], ChatOptions())
    with pytest.raises(InvalidRequest, match="do not suit the chat template of this model") as told:
        template.render([message], [], ChatOptions())
    assert "operand" not in str(told.value)


def test_both_ends_of_a_long_message_are_kept():
    error = json.loads(Refusal(400, "first " + MEGABYTE + " last", param=MEGABYTE).openai_body())[
        "error"
    ]
    assert error["message"].startswith("first x")
    assert error["message"].endswith("x last")
    assert len(error["message"]) <= 512
    assert len(error["param"]) <= 128


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *((CHAT_PATH, name) for name in ("top_k", "min_tokens", "top_logprobs", "seed", "n")),
        *((CHAT_PATH, name) for name in ("temperature", "top_p", "priority", "max_tokens")),
        *((CHAT_PATH, name) for name in ("presence_penalty", "max_completion_tokens")),
        *((PROMPT_PATH, name) for name in ("top_k", "min_tokens", "logprobs", "best_of")),
        *((PROMPT_PATH, name) for name in ("min_p", "repetition_penalty", "frequency_penalty")),
    ],
)
@pytest.mark.parametrize("digits", [309, 4299, 5000])
def test_numbers_beyond_every_float_are_the_client_s_mistake(http, path, field, digits):
    body = CHAT | {"logprobs": True} if path == CHAT_PATH else PROMPT
    for sign in ("", "-"):
        number = sign + "9" * digits
        sent = json.dumps(body | {field: 0}).replace(f'"{field}": 0', f'"{field}": {number}')
        response = http.post(path, content=sent, headers={"Content-Type": "application/json"})
        # A longest answer may be asked for in any size.
        allowed = field in ("max_tokens", "max_completion_tokens") and not sign and digits < 4300
        assert response.status_code == (200 if allowed else 400), response.text[:500]
        assert allowed or len(response.content) < 2048


@pytest.mark.parametrize("value", [10**309, -(10**400), float("nan"), float("inf")])
def test_no_parameter_takes_a_number_out_of_range(value):
    for name in ("temperature", "top_k", "min_tokens", "max_tokens", "seed", "top_logprobs"):
        with pytest.raises(InvalidRequest, match=f"^{name} must be between"):
            SamplingParameters(**{name: value})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TandemError("/secret/path"), 500),
        (InvalidConfiguration("/secret/path: weights are cut"), 500),
        (EngineFailed("the engine failed"), 503),
    ],
)
def test_what_is_not_the_client_s_to_know_is_not_told(error, status):
    refusal = refusal_of(error)
    assert refusal.status == status
    assert "secret" not in refusal.message
