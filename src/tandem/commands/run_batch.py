"""`tandem run-batch`: answers a file of requests in this process, without a port. Started again
after whatever ended it, it goes on where it was."""

import asyncio
import logging
import shutil
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import MofNCompleteColumn

from tandem.api.batches.bodies import Endpoint
from tandem.api.batches.lines import answered_number, parse_line
from tandem.api.batches.records import NS_PER_S, BatchRecord
from tandem.api.batches.runner import BatchRunner
from tandem.api.clock_and_entropy import fresh_id, unix_time_ns
from tandem.api.key_ring import digest_of
from tandem.commands.late_imports import part
from tandem.commands.options import (
    ConfigFile,
    GivenOptions,
    ModelArgument,
    flag,
    flags,
    with_options,
)
from tandem.commands.terminal import print_detail, progress_bars, terminal
from tandem.config.checkpoints import check_model
from tandem.config.encoders import check_encoders
from tandem.config.options import ServeOptions, read_options
from tandem.facts.errors import InvalidConfiguration
from tandem.live.adapters import check_adapters
from tandem.live.log_format import begin_log
from tandem.live.processes.lifecycle import loop_runner
from tandem.policy.batches import BatchStatus

_LOOK_S = 0.1
_PIECE_BYTES = 1 << 20
_LIFETIME_S = 10 * 365 * 24 * 3600


@flags
class BatchFiles:
    """The batch."""

    input_file: Path = flag(
        "Requests, one a line, as `/v1/batches` takes them.", "--input-file", "-i"
    )
    output_file: Path = flag("Their answers, in the same order.", "--output-file", "-o")
    named_model: str | None = flag("The same as MODEL.", "--model", default=None)

    @property
    def folder(self) -> Path:
        """What is answered so far lies here until all is."""
        return self.output_file.with_name(f"{self.output_file.name}.unfinished")


@with_options
def run_batch_command(
    files: BatchFiles,
    given: GivenOptions,
    model: ModelArgument = None,
    config: ConfigFile = None,
) -> None:
    """Answer a file of requests, without a server.

    Each line is a request as OpenAI's batches have it; all go to one endpoint. Answers and errors
    are in the output file, in the order of the requests. What was answered before it was ended
    is not computed again.
    """
    options = _options(read_options(config, given), given, files)
    begin_log(options.log_level, options.log_format, "run-batch", logging.BASIC_FORMAT)
    name, console = model or files.named_model, terminal()
    check_adapters(options, check_model(name, options))
    check_encoders(options.encoder_models, options.revision)
    endpoint, digest = _endpoint_of(files.input_file), _digest_of(files.input_file)
    console.print(f"[bold]Tandem[/bold] is loading {name or 'the bundled model'} …")
    assembly = part("server")
    server = assembly.assemble(name, options)
    with loop_runner() as runner:
        record = runner.run(_run(assembly, server, files, (endpoint, digest)))
    shutil.rmtree(files.folder)
    counts = record.counts
    print_detail(console, f"{counts.completed:,} answers and {counts.failed:,} errors")


def _options(options: ServeOptions, given: Any, files: BatchFiles) -> ServeOptions:
    """Those of a server with the folder of this batch and no other callers. Raises
    `InvalidConfiguration` for a file that is not there."""
    if not files.input_file.is_file():
        raise InvalidConfiguration(f"--input-file {files.input_file} is no file")
    size_mib = files.input_file.stat().st_size // (1 << 20) + 1
    at_once = options.max_batch_requests
    return msgspec.structs.replace(
        options,
        batch_directory=str(files.folder),
        api_key_file=(),
        batch_store_mib=1 << 30,
        max_batch_file_mib=size_mib,
        max_batch_lines=1_000_000,
        max_batch_requests=at_once if "max_batch_requests" in given else options.max_num_seqs,
    )


async def _run(
    assembly: Any, server: Any, files: BatchFiles, wanted: tuple[str, str]
) -> BatchRecord:
    """The batch once it has ended and its answers are written. Raises `InvalidConfiguration` for
    requests that are no batch."""
    # Whoever would listen joins batches to the endpoints.
    assembly.http_server(server, "error")
    batches: BatchRunner = server.batches
    async with assembly.running(server):
        # A key in the environment guards this server, too.
        keys = server.api.api_keys
        key = f"key {digest_of(keys[0].encode()).hex()}" if keys else ""
        batch_id = await _begin(batches, files, key, *wanted)
        record = await _ended(batches, batch_id)
        if record.problems:
            told = "; ".join(f"line {each.line}: {each.message}" for each in record.problems[:5])
            await batches.store.forget_batch(batch_id)
            raise InvalidConfiguration(f"--input-file {files.input_file}: {told}")
        await asyncio.to_thread(_write_answers, batches, record, files.output_file)
    return record


async def _begin(
    batches: BatchRunner, files: BatchFiles, key: str, endpoint: str, digest: str
) -> str:
    """The batch of these requests, an old one or a new one."""
    store = batches.store
    for old in store.batches.values():
        if old.metadata == {"input": digest}:
            return old.batch_id
        problem = f"{files.folder} has answers to another input file; remove it to begin anew"
        raise InvalidConfiguration(problem)
    upload = store.begin_upload(key)
    try:
        for piece in _pieces(files.input_file):
            await upload.write(piece)
        file = await upload.finish(files.input_file.name, None)
    finally:
        await upload.end()
    now_ns = unix_time_ns()
    record = BatchRecord(
        batch_id=fresh_id("batch_"),
        tenant="",
        key=key,
        input_file_id=file.file_id,
        endpoint=endpoint,
        output_file_id=fresh_id("file-"),
        error_file_id=fresh_id("file-"),
        created_ns=now_ns,
        expires_s=now_ns // NS_PER_S + _LIFETIME_S,
        output_lifetime_s=_LIFETIME_S,
        metadata={"input": digest},
    )
    await store.add_batch(record)
    batches.wake()
    return record.batch_id


async def _ended(batches: BatchRunner, batch_id: str) -> BatchRecord:
    with progress_bars(True, MofNCompleteColumn()) as progress:
        bar = progress.add_task("requests", total=None)
        while not (record := batches.store.batches[batch_id]).status.is_final:
            counts = batches.counts(record)
            done = counts.completed + counts.failed
            progress.update(bar, total=counts.total or None, completed=done)
            await asyncio.sleep(_LOOK_S)
        counts = record.counts
        progress.update(bar, total=counts.total, completed=counts.completed + counts.failed)
    return record


def _write_answers(batches: BatchRunner, record: BatchRecord, output: Path) -> None:
    """In the order of the requests, whether they are answers or errors."""
    assert record.status is BatchStatus.COMPLETED
    file_ids = (record.output_file_id, record.error_file_id)
    there = [path for path in map(batches.store.data_path, file_ids) if path.exists()]
    places = sorted(place for at, path in enumerate(there) for place in _places(at, path))
    whole = output.with_name(f"{output.name}.part")
    files = [path.open("rb") for path in there]
    try:
        with whole.open("wb") as target:
            for _, at, start, length in places:
                files[at].seek(start)
                target.write(files[at].read(length))
    finally:
        for file in files:
            file.close()
    whole.replace(output)


def _places(at: int, path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Of each answer: the number of its request, the file, where it begins, how long it is."""
    start = 0
    with path.open("rb") as lines:
        for line in lines:
            number = answered_number(line)
            assert number is not None
            yield number, at, start, len(line)
            start += len(line)


def _endpoint_of(path: Path) -> str:
    """That of the first request. Raises `InvalidConfiguration`."""
    with path.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        endpoint: str = msgspec.convert(parse_line(first).url, Endpoint)
    except ValueError as error:
        raise InvalidConfiguration(f"--input-file {path}: the first request: {error}") from error
    return endpoint


def _digest_of(path: Path) -> str:
    digest = blake2b(digest_size=16)
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
