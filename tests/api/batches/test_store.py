"""What lies on the disk: a store that is opened again goes on from what a killed process left."""

import json
import os
import shutil
from itertools import count
from pathlib import Path

import msgspec
import openai
import pytest
from msgspec import Raw

import tandem.api.batches.store as store_module
from tandem.api.batches.disk import Journal
from tandem.api.batches.lines import LineResponse, OutputLine, line_id, output_line
from tandem.api.batches.records import BatchRecord
from tandem.api.batches.store import BatchStore
from tandem.api.config import BatchConfig
from tandem.facts.errors import InvalidConfiguration
from tandem.policy.batches import BatchStatus
from tests.api.batches.served import COMPLETIONS, line, served
from tests.api.batches.test_batches_api import come


def test_a_folder_is_of_one_server(tmp_path):
    config = BatchConfig(str(tmp_path))
    store = BatchStore(config, shared=False)
    with pytest.raises(InvalidConfiguration, match=rf"process {os.getpid()}\) uses {tmp_path}"):
        BatchStore(config, shared=False)
    store.close()
    BatchStore(config, shared=False).close()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfiguration, match=r"batch-directory .*: "):
        BatchStore(BatchConfig(str(tmp_path / "file/below")), shared=False)


def accepts(line: bytes) -> bool:
    return line.startswith(b"good")


@pytest.mark.parametrize("end", [b"", b"goo", b"good", b"bad\ngood 3\n", b"\0" * 4096])
def test_a_journal_is_cut_behind_its_last_whole_line(tmp_path, end):
    path = tmp_path / "journal"
    path.write_bytes(b"good 1\ngood 2\n" + end)
    journal = Journal(path, accepts)
    journal.append(b"good 4\n")
    journal.close()
    assert path.read_bytes() == b"good 1\ngood 2\ngood 4\n"


def test_what_a_full_disk_did_not_take_is_not_there(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal", accepts)
    journal.append(b"good 1\n")
    write = os.pwrite

    def half(descriptor: int, data: bytes, at: int) -> int:
        if at > len(b"good 1\n"):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:3], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        journal.append(b"good 2\n")
    monkeypatch.undo()
    assert (tmp_path / "journal").read_bytes() == b"good 1\n"
    journal.append(b"good 3\n")
    journal.close()
    assert (tmp_path / "journal").read_bytes() == b"good 1\ngood 3\n"


async def begun(at, script, lines: int) -> BatchRecord:
    """A batch of which the first request is answered, and the others have no end for now."""
    script.hold_after, script.held = 1, frozenset({1})
    more = [line(f"r{n}", seed=n, n=2) for n in range(1, lines)]
    batch = await at.begin([line("r0", seed=0), *more])
    await come(lambda: at.runner.counts(at.store.batches[batch.id]).completed)
    return at.store.batches[batch.id]


def rewrite(directory: Path, record: BatchRecord) -> None:
    path = directory / "batches" / f"{record.batch_id}.json"
    path.write_bytes(msgspec.json.encode(record))


@pytest.mark.parametrize("left", ["half a line", "in progress", "finalizing", "published"])
async def test_a_batch_goes_on_from_whatever_was_left(generator, text, tmp_path, left):
    async with served(generator, text, tmp_path, requests=1) as at:
        record = await begun(at, generator.script, 6)
        generator.script.hold_after = None
        if left in ("finalizing", "published"):
            # The one that has no end begins anew.
            for task in [each for batch in at.runner.active for each in batch.running.values()]:
                task.cancel()
            await come(lambda: not at.store.unended)
    output, errors = (
        tmp_path / "files" / f"{file_id}.data"
        for file_id in (record.output_file_id, record.error_file_id)
    )
    if left == "half a line":
        # And what was being sent when all ended.
        output.write_bytes(output.read_bytes() + b'{"id":"batch_req_')
        (tmp_path / "files" / "file-half.data").write_bytes(b"x")
    if left in ("finalizing", "published"):
        # The last record that a killed process wrote was that of the step before.
        record = record.entered(BatchStatus.FINALIZING, record.created_ns // 10**9)
        rewrite(tmp_path, record)
        errors.write_bytes(b"")
    if left == "finalizing":
        output.with_suffix(".json").unlink()
    answered = set(output.read_bytes().splitlines()[:-1])
    generator.requests.clear()
    async with served(generator, text, tmp_path) as at:
        await come(lambda: not at.store.unended)
        batch = await at.client.batches.retrieve(record.batch_id)
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert (batch.request_counts.completed, batch.request_counts.total) == (6, 6)
        answers = await at.lines_of(batch.output_file_id)
        assert sorted(answers) == [f"r{n}" for n in range(6)]
        content = (await at.client.files.content(batch.output_file_id)).read()
        assert answered <= set(content.splitlines())
        held = sum(each.size_bytes for each in at.store.files.values())
        assert at.store.held_bytes == held
        assert {each.name.partition(".")[0] for each in (tmp_path / "files").iterdir()} == {
            batch.input_file_id,
            batch.output_file_id,
        }


async def test_a_batch_goes_on_from_any_instant(generator, text, tmp_path, monkeypatch):
    """Whatever the folder was whenever something in it had to be on the disk: each answer is there
    once, and nothing else is left."""
    instants: list[Path] = []
    sync = os.fsync

    def copy_and_sync(descriptor: int) -> None:
        instants.append(tmp_path / f"at {len(instants)}")
        shutil.copytree(tmp_path / "live", instants[-1])
        sync(descriptor)

    lines = [*(line(f"r{n}", seed=n) for n in range(4)), line("r4", unknown=1)]
    async with served(generator, text, tmp_path / "live", requests=1) as at:
        monkeypatch.setattr(os, "fsync", copy_and_sync)
        ended = await at.ended(await at.begin(lines))
        monkeypatch.setattr(os, "fsync", sync)
    assert len(instants) > 14
    shown = (ended.input_file_id, ended.output_file_id, ended.error_file_id)
    kept = {f"{file_id}.{kind}" for file_id in shown for kind in ("data", "json")}
    begun = 0
    for folder in instants:
        async with served(generator, text, folder) as at:
            if not at.store.batches:
                continue
            begun += 1
            batch = await at.ended(await at.client.batches.retrieve(ended.id))
            assert (batch.status, batch.request_counts) == ("completed", ended.request_counts)
            answers = await at.lines_of(batch.output_file_id)
            errors = await at.lines_of(batch.error_file_id)
            assert (sorted(answers), list(errors)) == (["r0", "r1", "r2", "r3"], ["r4"])
            await come(lambda at=at: not list(at.runner.active))
        assert {each.name for each in (folder / "files").iterdir()} == kept
        assert {each.name for each in (folder / "batches").iterdir()} == {f"{ended.id}.json"}
    assert begun > 8


async def test_an_answer_that_stands_there_is_not_computed_again(generator, text, tmp_path):
    async with served(generator, text, tmp_path, requests=1) as at:
        record = await begun(at, generator.script, 50)
    generator.script.hold_after = None
    record = at.store.batches[record.batch_id]
    assert record.status is BatchStatus.IN_PROGRESS
    output = tmp_path / "files" / f"{record.output_file_id}.data"
    assert len(output.read_bytes().splitlines()) == 1
    generator.requests.clear()
    async with served(generator, text, tmp_path) as at:
        await come(lambda: not at.store.unended)
    # Two answers to each of the others.
    assert len(generator.requests) == 2 * 49


async def test_a_disk_that_fails_now_and_then_costs_no_answer(
    generator, text, tmp_path, monkeypatch
):
    calls, record, write = count(), store_module.write_record, os.pwrite

    def fails() -> None:
        if next(calls) % 5 == 0:
            raise OSError(28, "No space left on device")

    def failing_record(path: Path, data: bytes) -> None:
        fails()
        record(path, data)

    def failing_write(descriptor: int, data: bytes, at: int) -> int:
        fails()
        return write(descriptor, data, at)

    monkeypatch.setattr("tandem.api.batches.runner._DISK_PAUSE_S", 0.001)
    monkeypatch.setattr("tandem.api.batches.runner._LOOK_S", 0.002)
    async with served(generator, text, tmp_path, requests=2) as at:
        file = await at.send([*(line(f"r{n}") for n in range(9)), line("r9", unknown=1)])
        wanted = {"endpoint": COMPLETIONS, "completion_window": "24h"}
        monkeypatch.setattr(store_module, "write_record", failing_record)
        monkeypatch.setattr(os, "pwrite", failing_write)
        with pytest.raises(openai.InternalServerError) as refused:
            await at.client.batches.create(input_file_id=file.id, **wanted)
        assert (refused.value.status_code, refused.value.code) == (503, "storage_failed")
        assert not (await at.client.batches.list()).data
        batch = await at.ended(await at.client.batches.create(input_file_id=file.id, **wanted))
        monkeypatch.undo()
        assert batch.status == "completed"
        assert len(await at.lines_of(batch.output_file_id)) == 9
        assert list(await at.lines_of(batch.error_file_id)) == ["r9"]
    assert not list(tmp_path.glob("*/*.half"))


async def test_files_and_batches_are_kept_for_their_time(generator, text, tmp_path):
    async with served(generator, text, tmp_path, lifetime_s=7200) as at:
        batch = await at.ended(await at.begin([line("a")]))
        file = await at.client.files.retrieve(batch.output_file_id)
        assert file.expires_at - file.created_at == 7200
        await at.store.sweep(batch.completed_at + 7199)
        assert at.store.batches
        await at.store.sweep(batch.completed_at + 7202)
        assert not at.store.batches
        assert not at.store.files
        assert not list((tmp_path / "files").iterdir())
        assert not list((tmp_path / "batches").iterdir())


async def test_requests_whose_file_is_gone_fail_their_batch(generator, text, tmp_path):
    generator.script.hold_after = 1
    async with served(generator, text, tmp_path, requests=1) as at:
        batch = await at.begin([line("a"), line("b")])
        await come(lambda: generator.running)
    (tmp_path / "files" / f"{batch.input_file_id}.data").unlink()
    (tmp_path / "batches" / "batch_none.json").write_text("{")
    async with served(generator, text, tmp_path) as at:
        await come(lambda: not at.store.unended)
        batch = await at.client.batches.retrieve(batch.id)
        assert batch.status == "failed"
        assert [each.code for each in batch.errors.data] == ["file_not_found"]
        assert (tmp_path / "batches" / "batch_none.json").exists()


def test_an_answer_is_one_line_whatever_ends_lines_elsewhere():
    body = Raw('{"text": "a\u2028b\x85c",\n "n": 1}'.encode())
    response = LineResponse(status_code=200, request_id="r", body=body)
    written = output_line(OutputLine(id="a", custom_id="\u2029", response=response))
    (only,) = written.decode().splitlines()
    assert json.loads(only)["response"]["body"] == {"text": "a\u2028b\x85c", "n": 1}
    assert json.loads(only)["custom_id"] == "\u2029"


def test_answers_are_named_by_their_requests():
    assert line_id("batch_0a", 255) == "batch_req_0a000000ff"
    assert json.loads(line("a"))["url"] == COMPLETIONS
