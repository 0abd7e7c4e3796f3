"""What the Responses API remembers: conversations that go on, whose, and for how long."""

import openai
import pytest

from tandem.api.app import build_app
from tandem.api.app_context import AppContext
from tandem.api.call_metrics import CallMetrics
from tandem.api.config import ApiConfig, ResponseStoreConfig
from tandem.api.intake import Intake
from tandem.api.logprobs import TokenJson
from tandem.api.response_cache import ResponseCache
from tandem.api.response_call import ResponseCall
from tandem.api.response_store import ResponseStore
from tandem.api.responses_body import ResponsesBody
from tandem.api.whole_response import ResponseBudget
from tandem.facts.errors import EngineFailed
from tests.api.server import client_of
from tests.api.test_refusals import error_of
from tests.api.test_responses_api import CALL, FIND, PATH, prompt_of, respond, spoken


def test_a_conversation_goes_on(client, generator, text):
    generator.script.answer = "one"
    first = respond(client, input="a", instructions="Be kind.")
    assert prompt_of(generator, text) == spoken(("system", "Be kind."), ("user", "a"))
    generator.script.answer = f"two {CALL}"
    second = respond(client, input="b", previous_response_id=first.id, tools=[FIND], stream=True)
    *_, last = second
    call = last.response.output[-1]
    generator.script.answer = "three"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    third = respond(client, input=[output], previous_response_id=last.response.id)
    # Instructions are not taken over.
    assert prompt_of(generator, text) == spoken(
        ("user", "a"),
        ("assistant", "one"),
        ("user", "b"),
        ("assistant", 'two <tool_call>find{"q": "日本"}</tool_call>'),
        ("tool", "42"),
    )
    assert third.previous_response_id == last.response.id
    assert client.responses.retrieve(third.id).output_text == "three"
    # What is gone is gone for all that goes on from it.
    client.responses.delete(first.id)
    for name in (third.id, first.id):
        with pytest.raises(openai.NotFoundError, match=first.id) as caught:
            respond(client, previous_response_id=name)
        assert caught.value.code == "previous_response_not_found"
        assert caught.value.body["param"] == "previous_response_id"
    with pytest.raises(openai.NotFoundError, match="is stored here"):
        client.responses.retrieve(first.id)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_is_left_out_of_what_goes_on(client, generator, text, stream):
    generator.script.answer = f"Let me see. {CALL}"
    strict = FIND | {"strict": True}
    limit = len(text.tokenizer.encode(generator.script.answer, add_special_tokens=False)) - 4
    answer = respond(client, tools=[strict], max_output_tokens=limit, stream=stream)
    answer = list(answer)[-1].response if stream else answer
    *_, call = answer.output
    assert (call.type, call.status, answer.status) == ("function_call", "incomplete", "incomplete")
    assert not call.arguments.endswith("}")
    respond(client, input="b", previous_response_id=answer.id)
    said = spoken(("user", "hello"), ("assistant", "Let me see. "), ("user", "b"))
    assert prompt_of(generator, text) == said


def test_a_failed_call_leaves_nothing_to_go_on_from(client, generator):
    generator.script.failure, generator.script.fail_after = EngineFailed("it died"), 1
    events = respond(client, stream=True)
    name = next(events).response.id
    *_, last = events
    assert (last.type, last.message, last.code) == ("error", "it died", "engine_failed")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(name)


def test_items_are_referred_to(client, generator, text):
    first = respond(client, input=[{"role": "user", "content": "a"}])
    (asked,) = client.responses.input_items.list(first.id)
    reference = {"type": "item_reference", "id": first.output[0].id}
    question = {"role": "user", "content": "b"}
    second = respond(client, input=[{"id": asked.id}, reference, question])
    expected = spoken(("user", "a"), ("assistant", "hello world"), ("user", "b"))
    assert prompt_of(generator, text) == expected
    # What was referred to is stored with what refers to it.
    client.responses.delete(first.id)
    respond(client, input="c", previous_response_id=second.id)
    assert prompt_of(generator, text).startswith(expected)
    twice = [{"id": second.output[0].id}] * 2
    with pytest.raises(openai.BadRequestError, match="twice"):
        respond(client, input=twice)
    for gone in (reference, {"id": "msg_else"}, reference | {"id": second.output[0].id[:-1] + "9"}):
        with pytest.raises(openai.NotFoundError, match="no item"):
            respond(client, input=[gone, question])


def test_input_items_are_listed(client, generator):
    items = [{"role": "user", "content": f"number {n}"} for n in range(5)]
    answer = respond(client, input=items)
    listed = list(client.responses.input_items.list(answer.id, order="asc", limit=2))
    assert [item.content[0].text for item in listed] == [each["content"] for each in items]
    assert len({item.id for item in listed}) == 5
    page = client.responses.input_items.list(answer.id, limit=2)
    assert [item.id for item in page.data] == [listed[4].id, listed[3].id]
    assert page.has_more
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": "msg_0"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            client.responses.input_items.list(answer.id, **wrong)


def test_what_is_not_to_be_stored_is_not(client, generator):
    answer = respond(client, store=False)
    for wanted in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            wanted(answer.id)
    stored = respond(client)
    assert (answer.store, stored.store) == (False, True)


def test_a_server_may_store_nothing(generator, text):
    config = ApiConfig(response_store=ResponseStoreConfig(limit_bytes=0))
    with client_of(build_app(generator, text, config)) as http:
        answer = http.post(PATH, json={"input": "hello"}).json()
        assert (answer["status"], answer["store"]) == ("completed", False)
        error_of(http.get(f"{PATH}/{answer['id']}"), 404)


def test_keys_and_tenants_see_their_own_responses(generator, text):
    config = ApiConfig(api_keys=("one", "two"), tenants={"a1": "a", "a2": "a", "b1": "b"})
    with client_of(build_app(generator, text, config)) as http:

        def send(key, method, path, **rest):
            headers = {"Authorization": f"Bearer {key}"}
            return http.request(method, path, headers=headers, **rest)

        for owner, friends in (("one", ["one"]), ("two", ["two"]), ("a1", ["a1", "a2"])):
            made = send(owner, "POST", PATH, json={"input": "hello"}).json()
            path, item = f"{PATH}/{made['id']}", {"id": made["output"][0]["id"]}
            for key in ("one", "two", "a1", "a2", "b1"):
                expected = 200 if key in friends else 404
                asked = {"input": "b", "previous_response_id": made["id"]}
                calls = [
                    ("GET", path, {}),
                    ("GET", f"{path}/input_items", {}),
                    ("POST", PATH, {"json": asked}),
                    ("POST", f"{PATH}/input_tokens", {"json": asked}),
                    ("POST", PATH, {"json": {"input": [item]}}),
                ]
                for method, where, rest in calls:
                    assert send(key, method, where, **rest).status_code == expected
            assert send("b1", "DELETE", path).status_code == 404
            assert send(friends[-1], "DELETE", path).json()["deleted"] is True
            assert send(owner, "GET", path).status_code == 404


def test_what_is_read_of_earlier_calls_counts_with_the_body(generator, text):
    config, card = ApiConfig(), generator.card
    store = ResponseStore(config.response_store)
    context = AppContext(
        generator,
        text,
        config,
        Intake(config, card.context_tokens),
        ResponseBudget(config.answer_bytes),
        ResponseCache(config.response_cache, "tiny"),
        store,
        CallMetrics("tiny"),
    )
    names = TokenJson(text.token_bytes)
    store.begin("", "resp_1", None, b"[]" + b" " * 50_000)
    store.complete("resp_1", b'{"output": []}')
    sent = ResponsesBody(input="a", previous_response_id="resp_1")
    assert ResponseCall(sent, "", context, names).spec().history_bytes > 50_000
    assert ResponseCall(ResponsesBody(input="a"), "", context, names).spec().history_bytes == 0
