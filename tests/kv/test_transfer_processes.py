"""KV goes from process to process through real connectors, also when the source dies or hangs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

from tandem.facts.kv import KvExport
from tandem.kv.transfer.config import TransferConfig
from tests.kv.ending import closing
from tests.kv.exporter import Child, make_connector
from tests.kv.exporting_worker import ORDER, TOKENS
from tests.kv.split_workers import Split, SplitWorker, model_kv
from tests.kv.transfer_ranks import SOURCE, TransferRank

VALUES = model_kv(TOKENS, Split(), seed=3)


class ExportingWorker(Child):
    def __init__(self, names: str, ranks: int = 1) -> None:
        super().__init__("tests.kv.exporting_worker", names, ranks)
        self.export = msgspec.msgpack.decode(bytes.fromhex(self.first_line), type=KvExport)


@contextmanager
def reading(
    export: KvExport, names: str, split: Split, config: TransferConfig | None = None
) -> Iterator[TransferRank]:
    """The KV transfer engine of the one rank of a worker in this process."""
    connectors = [make_connector(name) for name in names.split(",")]
    reader = TransferRank(
        SplitWorker(split, 2), 0, connectors, config or TransferConfig(), now_ns=time.monotonic_ns
    )
    reader.transfers.add_source(*SOURCE, export)
    with closing(reader):
        yield reader


@pytest.fixture(scope="module")
def exporter() -> Iterator[ExportingWorker]:
    with ExportingWorker("shm,tcp", ranks=2) as exporter:
        yield exporter


@pytest.mark.parametrize("name", ["shm", "tcp"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kv_arrives_from_the_ranks_of_another_process(exporter, name, dtype):
    with reading(exporter.export, name, Split(dtype=dtype)) as reader:
        expected = reader.worker.expected(ORDER, VALUES)[0]
        report = reader.move(1, ORDER)
        assert (report.arrived, report.problem, report.connector) == (True, "", name)
        assert torch.equal(reader.worker.pools[0], expected)
        assert report.moved_bytes > TOKENS * 4 * 2 * 4 * 3 * 4


def test_the_own_preference_decides(exporter):
    for names in ("shm,tcp", "tcp,shm"):
        with reading(exporter.export, names, Split()) as reader:
            assert reader.move(1, ORDER).connector == names.split(",")[0]


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_a_source_that_is_killed(name):
    """What is read from a dead process through its memory is still right; other ways end soon."""
    with ExportingWorker(name) as exporter, reading(exporter.export, name, Split()) as reader:
        expected = reader.worker.expected(ORDER, VALUES)[0]
        assert reader.move(1, ORDER).arrived
        exporter.kill()
        report = reader.move(2, ORDER)
        assert report.arrived == (name == "shm")
        assert bool(report.problem) == (name == "tcp")
        assert torch.equal(reader.worker.pools[0], expected)
        reader.transfers.forget_source(*SOURCE)
        assert "nothing is known" in reader.move(3, ORDER).problem


def test_a_source_that_hangs():
    config = TransferConfig(timeout_s=0.3, cancel_s=0.3)
    with (
        ExportingWorker("tcp") as exporter,
        reading(exporter.export, "tcp", Split(), config) as reader,
    ):
        assert reader.move(1, ORDER).arrived
        exporter.stop()
        report = reader.move(2, ORDER)
        assert report.problem == "not done after 0.3 s"
        assert report.seconds < 5
