"""KV goes from process to process through real connectors, also when the source dies or hangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event

import msgspec
import pytest
import torch

from tandem.facts.kv_export import KvExport, MoveReport
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferMemory
from tandem.kv.transfer.engine import KvTransferEngine
from tests.kv.exporter import ROOT, make_connector
from tests.kv.exporting_worker import ORDER, TOKENS
from tests.kv.split_workers import Split, SplitWorker, model_kv
from tests.kv.transfer_ranks import SOURCE, TRANSFER

END_S = 20.0
VALUES = model_kv(TOKENS, Split(), seed=3)


class ExportingWorker:
    def __init__(self, names: str, ranks: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kv.exporting_worker", names, str(ranks)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self.process.stdout
        line = bytes.fromhex(self.process.stdout.readline())
        self.export = msgspec.msgpack.decode(line, type=KvExport)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def publishing(names: str, ranks: int = 1) -> Iterator[ExportingWorker]:
    exporter = ExportingWorker(names, ranks)
    try:
        yield exporter
    finally:
        exporter.kill()
        assert exporter.process.stdin and exporter.process.stdout
        exporter.process.stdin.close()
        exporter.process.stdout.close()


class ReadingWorker:
    """The transfers of the one rank of a worker in this process."""

    def __init__(self, names: str, split: Split, config: TransferConfig) -> None:
        self.worker = SplitWorker(split, 2)
        self.ended: SimpleQueue[MoveReport] = SimpleQueue()
        calls = TransferCalls(
            lambda _, report: self.ended.put(report), print, Event().set, time.monotonic_ns
        )
        memory = TransferMemory(self.worker.regions[0], self.worker.export, 0, TRANSFER)
        connectors = [make_connector(name) for name in names.split(",")]
        self.transfers = KvTransferEngine(memory, connectors, config, calls)

    def move(self, move_id: int) -> MoveReport:
        self.transfers.start_transfer(move_id, ORDER)
        return self.ended.get(timeout=END_S)


@contextmanager
def reading(
    export: KvExport, names: str, split: Split, config: TransferConfig | None = None
) -> Iterator[ReadingWorker]:
    reader = ReadingWorker(names, split, config or TransferConfig())
    reader.transfers.add_source(*SOURCE, export)
    try:
        yield reader
    finally:
        reader.transfers.stop_transfers()


@pytest.fixture(scope="module")
def exporter() -> Iterator[ExportingWorker]:
    with publishing("shm,tcp", ranks=2) as exporter:
        yield exporter


@pytest.mark.parametrize("name", ["shm", "tcp"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kv_arrives_from_the_ranks_of_another_process(exporter, name, dtype):
    with reading(exporter.export, name, Split(dtype=dtype)) as reader:
        expected = reader.worker.expected(ORDER, VALUES)[0]
        report = reader.move(1)
        assert (report.arrived, report.problem, report.connector) == (True, "", name)
        assert torch.equal(reader.worker.pools[0], expected)
        assert report.moved_bytes > TOKENS * 4 * 2 * 4 * 3 * 4


def test_the_own_preference_decides(exporter):
    for names in ("shm,tcp", "tcp,shm"):
        with reading(exporter.export, names, Split()) as reader:
            assert reader.move(1).connector == names.split(",")[0]


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_a_source_that_is_killed(name):
    """What is read from a dead process through its memory is still right; other ways end soon."""
    with publishing(name) as exporter, reading(exporter.export, name, Split()) as reader:
        expected = reader.worker.expected(ORDER, VALUES)[0]
        assert reader.move(1).arrived
        exporter.kill()
        report = reader.move(2)
        assert report.arrived == (name == "shm")
        assert bool(report.problem) == (name == "tcp")
        assert torch.equal(reader.worker.pools[0], expected)
        reader.transfers.forget_source(*SOURCE)
        assert "nothing is known" in reader.move(3).problem


def test_a_source_that_hangs():
    config = TransferConfig(timeout_s=0.3, cancel_s=0.3)
    with (
        publishing("tcp") as exporter,
        reading(exporter.export, "tcp", Split(), config) as reader,
    ):
        assert reader.move(1).arrived
        exporter.stop()
        report = reader.move(2)
        assert report.problem == "not done after 0.3 s"
        assert report.seconds < 5
