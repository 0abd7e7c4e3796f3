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
from tandem.kv.mover import KvMover
from tandem.kv.mover_config import MoverCalls, MoverConfig, MoverMemory
from tests.kv.exporter import ROOT, make_connector
from tests.kv.moving import SOURCE, TRANSFER
from tests.kv.publisher import ORDER, TOKENS
from tests.kv.split_workers import Split, SplitWorker, model_kv

END_S = 20.0
VALUES = model_kv(TOKENS, Split(), seed=3)


class Publisher:
    def __init__(self, names: str, ranks: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kv.publisher", names, str(ranks)],
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
def publishing(names: str, ranks: int = 1) -> Iterator[Publisher]:
    publisher = Publisher(names, ranks)
    try:
        yield publisher
    finally:
        publisher.kill()
        assert publisher.process.stdin and publisher.process.stdout
        publisher.process.stdin.close()
        publisher.process.stdout.close()


class Reader:
    """The mover of the one rank of a worker in this process."""

    def __init__(self, names: str, split: Split, config: MoverConfig) -> None:
        self.worker = SplitWorker(split, 2)
        self.ended: SimpleQueue[MoveReport] = SimpleQueue()
        calls = MoverCalls(
            lambda _, report: self.ended.put(report), print, Event().set, time.monotonic_ns
        )
        memory = MoverMemory(self.worker.regions[0], self.worker.export, 0, TRANSFER)
        connectors = [make_connector(name) for name in names.split(",")]
        self.mover = KvMover(memory, connectors, config, calls)

    def move(self, move_id: int) -> MoveReport:
        self.mover.start(move_id, ORDER)
        return self.ended.get(timeout=END_S)


@contextmanager
def reading(
    export: KvExport, names: str, split: Split, config: MoverConfig | None = None
) -> Iterator[Reader]:
    reader = Reader(names, split, config or MoverConfig())
    reader.mover.connect(*SOURCE, export)
    try:
        yield reader
    finally:
        reader.mover.close()


@pytest.fixture(scope="module")
def publisher() -> Iterator[Publisher]:
    with publishing("shm,tcp", ranks=2) as publisher:
        yield publisher


@pytest.mark.parametrize("name", ["shm", "tcp"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kv_arrives_from_the_ranks_of_another_process(publisher, name, dtype):
    with reading(publisher.export, name, Split(dtype=dtype)) as reader:
        expected = reader.worker.expected(ORDER, VALUES)[0]
        report = reader.move(1)
        assert (report.arrived, report.problem, report.connector) == (True, "", name)
        assert torch.equal(reader.worker.pools[0], expected)
        assert report.moved_bytes > TOKENS * 4 * 2 * 4 * 3 * 4


def test_the_own_preference_decides(publisher):
    for names in ("shm,tcp", "tcp,shm"):
        with reading(publisher.export, names, Split()) as reader:
            assert reader.move(1).connector == names.split(",")[0]


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_a_source_that_is_killed(name):
    """What is read from a dead process through its memory is still right; other ways end soon."""
    with publishing(name) as publisher, reading(publisher.export, name, Split()) as reader:
        expected = reader.worker.expected(ORDER, VALUES)[0]
        assert reader.move(1).arrived
        publisher.kill()
        report = reader.move(2)
        assert report.arrived == (name == "shm")
        assert bool(report.problem) == (name == "tcp")
        assert torch.equal(reader.worker.pools[0], expected)
        reader.mover.forget(*SOURCE)
        assert "nothing is known" in reader.move(3).problem


def test_a_source_that_hangs():
    config = MoverConfig(timeout_s=0.3, cancel_s=0.3)
    with (
        publishing("tcp") as publisher,
        reading(publisher.export, "tcp", Split(), config) as reader,
    ):
        assert reader.move(1).arrived
        publisher.stop()
        report = reader.move(2)
        assert report.problem == "not done after 0.3 s"
        assert report.seconds < 5
