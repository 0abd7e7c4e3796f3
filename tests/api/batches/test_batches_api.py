"""/v1/batches: from a file of requests to files of answers, through the doors that single calls
take."""

import asyncio
import json

import openai
import pytest

from tandem.api.config import ApiConfig, KeyFile
from tandem.api.server_load import ServerLoad
from tandem.facts.errors import Overloaded, RequestFailed
from tandem.facts.rate_limits import background_account
from tandem.policy.batches import QUIET_S
from tests.api.batches.served import COMPLETIONS, line, served

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES = {
    COMPLETIONS: {"prompt": "hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 8},
}


def request(name: str, url: str, **body) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


@pytest.mark.parametrize("url", BODIES)
async def test_requests_of_a_batch_are_answered_as_single_calls_are(generator, text, tmp_path, url):
    async with served(generator, text, tmp_path) as at:
        body = {"model": "tiny", "priority": 3} | BODIES[url]
        body = body if url != "/v1/messages" else body | {"priority": None}
        body = {key: value for key, value in body.items() if value is not None}
        batch = await at.begin(
            [request(f"r{n}", url, **body) for n in range(40)], url, metadata={"a": "b"}
        )
        assert (batch.status, batch.endpoint, batch.metadata) == ("validating", url, {"a": "b"})
        assert batch.expires_at == batch.created_at + 24 * 3600
        batch = await at.ended(batch)
        assert (batch.status, batch.errors, batch.error_file_id) == ("completed", None, None)
        assert batch.model == "tiny"
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
        answers = await at.lines_of(batch.output_file_id)
        assert set(answers) == {f"r{n}" for n in range(40)}
        # Responses of batches would push out those that conversations go on from.
        alone = body | {"store": False} if url == "/v1/responses" else body
        single = (await at.http.post(url, json=alone)).json()
        for answer in answers.values():
            assert answer["error"] is None
            assert answer["response"]["status_code"] == 200
            assert answer["response"]["request_id"].startswith("req-")
            assert without_names(answer["response"]["body"]) == without_names(single)
        # Whatever a line says of its urgency.
        *lines, single = generator.callers[-41:]
        assert all(caller.background for caller in lines)
        assert not single.background


def without_names(answer: object) -> object:
    """An answer but for what differs from call to call."""
    if isinstance(answer, list):
        return [without_names(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    own = ("id", "created", "created_at", "completed_at")
    return {key: without_names(value) for key, value in answer.items() if key not in own}


async def test_what_fails_stands_in_the_file_of_errors(generator, text, tmp_path):
    generator.script.refusals[0] = RequestFailed("it failed")
    async with served(generator, text, tmp_path) as at:
        lines = [
            line("failed"),
            line("streamed", stream=True),
            line("unknown", no_such_field=1),
            line("long", prompt="hello " * 5000),
        ]
        batch = await at.ended(await at.begin([*lines, "", ""]))
        assert (batch.status, batch.output_file_id) == ("completed", None)
        assert (batch.request_counts.total, batch.request_counts.failed) == (4, 4)
        errors = await at.lines_of(batch.error_file_id)
        found = {
            name: (each["response"]["status_code"], each["response"]["body"]["error"]["code"])
            for name, each in errors.items()
        }
        assert found == {
            "failed": (500, "request_failed"),
            "streamed": (400, "invalid_value"),
            "unknown": (400, "unknown_parameter"),
            "long": (400, "context_length_exceeded"),
        }
        assert errors["streamed"]["response"]["body"]["error"]["param"] == "stream"


async def test_a_request_without_room_comes_again(generator, text, tmp_path, monkeypatch):
    monkeypatch.setattr("tandem.api.batches.line_call._wait_s", lambda _: 0.01)
    generator.script.refusals[0] = Overloaded("no room", 0.0)
    async with served(generator, text, tmp_path, requests=1) as at:
        batch = await at.begin([line("a"), line("b")])
        await come(lambda: generator.requests)
        generator.script.refusals.clear()
        batch = await at.ended(batch)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 0)
        assert len(generator.requests) == 3


async def come(condition) -> None:
    """Waits until something is there."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


WRONG = {
    "invalid_json_line": ["no JSON"],
    "invalid_custom_id": [line("")],
    "duplicate_custom_id": [line("a"), line("a")],
    "invalid_method": [line("a", method="GET")],
    "mismatched_endpoint": [line("a", url="/v1/embeddings")],
    "model_not_found": [line("a", model="other")],
    "mismatched_model": [line("a", model="tiny"), line("b", model="org/tiny")],
    "empty_file": ["", " "],
    "too_many_tasks": [line(f"{n}") for n in range(6)],
    "line_too_large": [line("a", prompt="x" * (1 << 20))],
    "invalid_value": [line("a", model=7)],
}


ALONE = ("empty_file", "too_many_tasks", "model_not_found", "mismatched_model")


@pytest.mark.parametrize("code", WRONG)
async def test_a_file_with_a_mistake_is_no_batch(generator, text, tmp_path, code):
    async with served(generator, text, tmp_path, lines=5) as at:
        good = [] if code in ALONE else [line("good")]
        batch = await at.ended(await at.begin([*good, *WRONG[code]]))
        assert batch.status == "failed"
        assert batch.failed_at is not None
        [problem] = batch.errors.data
        assert problem.code == code
        if code != "empty_file":
            assert problem.line == len(good) + len(WRONG[code])
        assert not generator.requests
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        # Its two files are gone, and its input is not.
        assert [each.suffix for each in sorted((tmp_path / "files").iterdir())] == [
            ".data",
            ".json",
        ]


async def test_a_call_with_a_mistake_is_no_batch(generator, text, tmp_path):
    async with served(generator, text, tmp_path) as at:
        file = await at.send([line("a")])
        body = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h"}
        for change, status, param in (
            ({"input_file_id": "file-none"}, 404, "file_id"),
            ({"endpoint": "/v1/models"}, 400, "endpoint"),
            ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
            ({"completion_window": "1h"}, 400, "completion_window"),
            ({"metadata": {"a": 1}}, 400, "metadata[...]"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, 400, None),
        ):
            answer = await at.http.post("/v1/batches", json=body | change)
            assert answer.status_code == status, answer.text
            if param is not None:
                assert answer.json()["error"]["param"] == param
        batch = await at.ended(await at.begin([line("a")]))
        with pytest.raises(openai.BadRequestError, match="purpose batch_output"):
            await at.client.batches.create(
                input_file_id=batch.output_file_id, endpoint=COMPLETIONS, completion_window="24h"
            )


async def test_a_cancelled_batch_gives_what_it_has(generator, text, tmp_path):
    generator.script.hold_after = 1
    async with served(generator, text, tmp_path, requests=2) as at:
        batch = await at.begin([line(f"r{n}") for n in range(5)])
        await come(lambda: len(generator.running) == 2)
        with pytest.raises(openai.BadRequestError, match="is not done with the file"):
            await at.client.files.delete(batch.input_file_id)
        cancelled = await at.client.batches.cancel(batch.id)
        assert cancelled.status == "cancelling"
        batch = await at.ended(cancelled)
        assert batch.status == "cancelled"
        assert batch.cancelling_at <= batch.cancelled_at
        assert not generator.running
        errors = await at.lines_of(batch.error_file_id)
        assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
        assert len(errors) == batch.request_counts.failed == 5
        with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
            await at.client.batches.cancel(batch.id)
        await at.client.files.delete(batch.input_file_id)


async def test_what_did_not_run_in_time_has_expired(generator, text, tmp_path, monkeypatch):
    generator.script.hold_after = 1
    async with served(generator, text, tmp_path, requests=1) as at:
        batch = await at.begin([line("a"), line("b")])
        await come(lambda: generator.running)
        later_s = batch.expires_at
        monkeypatch.setattr("tandem.api.batches.runner.unix_time_s", lambda: later_s)
        batch = await at.ended(batch)
        assert (batch.status, batch.expired_at) == ("expired", later_s)
        errors = await at.lines_of(batch.error_file_id)
        assert [each["error"]["code"] for each in errors.values()] == ["batch_expired"] * 2


async def test_fewer_requests_run_while_somebody_waits_for_an_answer(generator, text, tmp_path):
    generator.script.hold_after = 1
    load = ServerLoad()
    async with served(generator, text, tmp_path, load=load, requests=8) as at:
        load.calls = 1
        batch = await at.begin([line(f"r{n}") for n in range(20)])
        await come(lambda: len(generator.running) == 2)
        at.runner.wake()
        await at.client.batches.retrieve(batch.id)
        assert len(generator.running) == 2
        load.calls = 0
        assert (await at.http.post(COMPLETIONS, json={"prompt": "a", "model": "x"})).is_error
        at.runner.wake()
        await at.client.batches.retrieve(batch.id)
        # The next one may come soon.
        assert len(generator.running) == 2
        load.ended_s -= QUIET_S
        at.runner.wake()
        await come(lambda: len(generator.running) == 8)


async def test_batches_are_listed_page_by_page(generator, text, tmp_path):
    async with served(generator, text, tmp_path) as at:
        made = [(await at.begin([line("a")])).id for _ in range(5)]
        listed = [each.id async for each in await at.client.batches.list(limit=2)]
        assert listed == made[::-1]
        page = await at.client.batches.list(limit=2, after=made[3])
        assert ([each.id for each in page.data], page.has_more) == (made[2:0:-1], True)
        for query in ("limit=0", "limit=x", "limit=101", "after=none"):
            assert (await at.http.get(f"/v1/batches?{query}")).status_code == 400


async def test_a_batch_is_its_owners_alone(generator, text, tmp_path):
    api = ApiConfig(api_keys=("one", "two"), tenants={"a1": "acme", "a2": "acme"})
    async with served(generator, text, tmp_path, api) as at:
        file = await at.send([line("a")], "one")
        one, two = at.client_of("one"), at.client_of("two")
        wanted = {"endpoint": COMPLETIONS, "completion_window": "24h"}
        with pytest.raises(openai.NotFoundError):
            await two.batches.create(input_file_id=file.id, **wanted)
        batch = await one.batches.create(input_file_id=file.id, **wanted)
        for call in (
            two.batches.retrieve(batch.id),
            two.batches.cancel(batch.id),
            two.files.retrieve(file.id),
            two.files.content(file.id),
            two.files.delete(file.id),
        ):
            with pytest.raises(openai.NotFoundError, match="is stored here"):
                await call
        assert not (await two.batches.list()).data
        assert not (await two.files.list()).data
        with pytest.raises(openai.AuthenticationError):
            await at.client.batches.list()
        # Keys of one tenant share what it has, and its requests are the tenant's.
        shared = await at.send([line("a")], "a1")
        other = at.client_of("a2")
        theirs = await other.batches.create(input_file_id=shared.id, **wanted)
        await come(lambda: len(generator.requests) == 2)
        # In accounts of their own, so that they take nothing from what their owners wait for.
        assert {caller.account for caller in generator.callers[-2:]} == {
            background_account("acme"),
            background_account(next(iter(at.store.batches.values())).key),
        }
        assert (await at.client_of("a1").batches.retrieve(theirs.id)).id == theirs.id


async def test_an_operator_has_batches_as_well(generator, text, tmp_path):
    keys = tmp_path / "operators"
    keys.write_text("boss\n")
    api = ApiConfig(api_keys=("one",), operator_key_files=(KeyFile(str(keys)),))
    async with served(generator, text, tmp_path / "store", api) as at:
        at.key = "boss"
        batch = await at.ended(await at.begin([line("a")]))
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 0)
        with pytest.raises(openai.NotFoundError):
            await at.client_of("one").batches.retrieve(batch.id)


async def test_a_key_that_is_no_longer_valid_computes_nothing(generator, text, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\nother\n")
    before = ApiConfig(api_keys=("old", "other"))
    generator.script.hold_after = 1
    async with served(generator, text, tmp_path / "store", before, requests=1) as at:
        file = await at.send([line("a"), line("b")], "old")
        batch = await at.client_of("old").batches.create(
            input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h"
        )
        await come(lambda: generator.running)
    generator.script.hold_after = None
    generator.requests.clear()
    async with served(generator, text, tmp_path / "store", ApiConfig(api_keys=("other",))) as at:
        await come(lambda: not at.store.unended)
        record = at.store.batches[batch.id]
        assert (record.counts.completed, record.counts.failed) == (0, 2)
        errors = at.store.data_path(record.error_file_id).read_text()
        assert errors.count('"status_code":401') == 2
        assert not generator.requests
