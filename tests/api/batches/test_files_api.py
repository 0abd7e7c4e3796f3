"""/v1/files: what is sent is kept, within bounds, and given back to its owner."""

import asyncio

import openai
import pytest

from tandem.api.config import ApiConfig
from tests.api.batches.served import COMPLETIONS, line, served
from tests.api.batches.test_batches_api import come

FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def form(*parts: tuple[str, bytes]) -> bytes:
    """Parts by what stands behind `form-data`."""
    heads = (
        b"--b\r\nContent-Disposition: form-data%b\r\n\r\n" % more.encode() for more, _ in parts
    )
    data = (data for _, data in parts)
    return (
        b"".join(head + each + b"\r\n" for head, each in zip(heads, data, strict=True)) + b"--b--"
    )


FILE, PURPOSE = ('; name="file"; filename="a.jsonl"', b"x"), ('; name="purpose"', b"batch")


async def test_a_file_comes_back_as_it_was_sent(generator, text, tmp_path):
    async with served(generator, text, tmp_path) as at:
        client, data = at.client, b"\r\n--\x00" * 200_000
        file = await client.files.create(
            file=("日本.jsonl", data),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (file.filename, file.bytes, file.purpose) == ("日本.jsonl", len(data), "batch")
        assert (file.object, file.status) == ("file", "processed")
        assert file.expires_at == file.created_at + 3600
        assert await client.files.retrieve(file.id) == file
        assert (await client.files.content(file.id)).read() == data
        other = await at.send([line("a")])
        assert [each.id for each in (await client.files.list()).data] == [other.id, file.id]
        page = await client.files.list(order="asc", limit=1, purpose="batch")
        assert ([each.id for each in page.data], page.has_more) == ([file.id], True)
        assert not (await client.files.list(purpose="batch_output")).data
        assert (await at.http.get("/v1/files?purpose=vision")).status_code == 400
        assert at.store.held_bytes == len(data) + other.bytes
        assert (await client.files.delete(file.id)).deleted
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(file.id)
        assert at.store.held_bytes == other.bytes
        assert len(list((tmp_path / "files").iterdir())) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(FILE), "purpose"),
        (form(PURPOSE), "file"),
        (form(FILE, ('; name="purpose"', b"vision")), "purpose"),
        (form(FILE, PURPOSE, ('; name="more"', b"")), "more"),
        (form(FILE, FILE, PURPOSE), "file"),
        (form(FILE, PURPOSE, PURPOSE), "purpose"),
        (form(('; name="file"', b"x"), PURPOSE), "file"),
        (form(FILE, ('; name="purpose"', b"b" * 1000)), "purpose"),
        (form(FILE, ('; name="purpose"', b"\xff")), "purpose"),
        (form(FILE, PURPOSE, ('; name="expires_after[seconds]"', b"5")), "expires_after[seconds]"),
        (form(FILE, PURPOSE)[:-5], None),
        (b"", None),
    ],
)
async def test_a_form_with_a_mistake_leaves_nothing(generator, text, tmp_path, body, param):
    async with served(generator, text, tmp_path) as at:
        answer = await at.http.post("/v1/files", content=body, headers=FORM)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert not list((tmp_path / "files").iterdir())
        assert at.store.held_bytes == 0


async def test_other_bodies_are_refused(generator, text, tmp_path):
    async with served(generator, text, tmp_path) as at:
        answer = await at.http.post("/v1/files", json={"purpose": "batch"})
        assert answer.status_code == 415
        headers = {"Content-Type": "multipart/form-data"}
        answer = await at.http.post("/v1/files", content=b"", headers=headers)
        assert answer.json()["error"]["code"] == "invalid_form"


async def test_a_slow_sender_keeps_no_place(generator, text, tmp_path):
    async with served(generator, text, tmp_path, ApiConfig(body_timeout_s=0.05)) as at:

        async def slow():
            yield form(FILE, PURPOSE)[:80]
            await asyncio.sleep(60)

        answer = await at.http.post("/v1/files", content=slow(), headers=FORM)
        assert answer.status_code == 408
        assert not list((tmp_path / "files").iterdir())


async def test_a_full_store_says_so_and_loses_nothing(generator, text, tmp_path):
    bounds = {"limit_bytes": 3000, "file_bytes": 1500, "limit_files": 3}
    async with served(generator, text, tmp_path, **bounds) as at:
        answer = await at.http.post("/v1/files", content=b"x" * 99_999, headers=FORM)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
        with pytest.raises(openai.APIStatusError) as caught:
            await at.send(["x" * 1501])
        assert (caught.value.status_code, caught.value.code) == (413, "file_too_large")
        first, _ = await at.send(["x" * 1400]), await at.send(["y" * 1400])
        with pytest.raises(openai.BadRequestError, match="delete files") as caught:
            await at.send(["z" * 300])
        assert caught.value.code == "storage_full"
        third = await at.send([line("a")])
        with pytest.raises(openai.BadRequestError, match="as many files"):
            await at.send(["z"])
        # Nor have the answers of a batch any room.
        batch = {"endpoint": COMPLETIONS, "completion_window": "24h"}
        with pytest.raises(openai.BadRequestError, match="as many files"):
            await at.client.batches.create(input_file_id=third.id, **batch)
        assert (await at.client.files.content(first.id)).text == "x" * 1400
        assert len(list((tmp_path / "files").glob("*.data"))) == 3


async def test_batches_that_ended_give_way_to_new_ones(generator, text, tmp_path):
    async with served(generator, text, tmp_path, limit_batches=2) as at:
        generator.script.hold_after = 1
        one = await at.begin([line("a")])

        async def another():
            return await at.client.batches.create(
                input_file_id=one.input_file_id, endpoint=one.endpoint, completion_window="24h"
            )

        two = await another()
        with pytest.raises(openai.BadRequestError, match="have not ended"):
            await another()
        await at.client.batches.cancel(two.id)
        await at.ended(two)
        three = await another()
        assert [each.id for each in (await at.client.batches.list()).data] == [three.id, one.id]
        with pytest.raises(openai.NotFoundError):
            await at.client.batches.retrieve(two.id)


async def test_answers_count_to_the_share_of_their_owner(generator, text, tmp_path):
    """What never ran is listed only as far as there is room: else who makes and cancels batches
    fills the disk."""
    lines = [line(f"{n:0500}") for n in range(2000)]
    room_bytes = len("\n".join(lines)) + 1000
    generator.script.hold_after = 1
    async with served(generator, text, tmp_path, limit_bytes=room_bytes, requests=1) as at:
        batch = await at.begin(lines)
        await at.when(batch, lambda now: now.status == "in_progress")
        batch = await at.ended(await at.client.batches.cancel(batch.id))
        assert batch.request_counts.total == 2000
        assert batch.request_counts.failed == 1024
        with pytest.raises(openai.BadRequestError, match="as many bytes"):
            await at.client.batches.create(
                input_file_id=batch.input_file_id, endpoint=COMPLETIONS, completion_window="24h"
            )


async def test_an_owner_leaves_something_to_others(generator, text, tmp_path):
    api = ApiConfig(api_keys=("one", "two"))
    async with served(generator, text, tmp_path, api, limit_bytes=1000) as at:
        await at.send(["x" * 500], "one")
        with pytest.raises(openai.BadRequestError, match="delete files"):
            await at.send(["x"], "one")
        await at.send(["x" * 250], "two")
        with pytest.raises(openai.BadRequestError, match="delete files"):
            await at.send(["x"], "two")


async def test_no_request_runs_while_its_owner_has_no_room(generator, text, tmp_path):
    lines = [line(f"r{n}") for n in range(300)]
    size = len("\n".join(lines))
    async with served(generator, text, tmp_path, limit_bytes=size + 1, requests=1) as at:
        batch = await at.begin(lines)
        await come(lambda: stands_still(at.runner))
        now = await at.client.batches.retrieve(batch.id)
        assert now.status == "in_progress"
        assert 0 < now.request_counts.completed < 300
        # What waits for room is not lost.
        at.store.release(batch.input_file_id)
        at.store.release(at.store.batches[batch.id].output_file_id)
        before = now.request_counts.completed
        await at.when(now, lambda later: later.request_counts.completed > before)


def stands_still(runner) -> bool:
    return any(
        each.opened and each.waiting and not (each.running or each.unwritten or each.work)
        for each in runner.active
        if not runner.store.has_room_for(each.owner)
    )
