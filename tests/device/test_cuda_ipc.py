"""CUDA IPC between two processes: on a GPU where there is one, and on a stand-in for the driver's
library, which proves what is ours: calls, offsets, handles."""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.cuda_driver import LIBRARY
from tandem.kv.connectors.cuda_ipc import CudaIpcConnector, CudaIpcDescription
from tandem.kv.region import Region
from tests.device.gpu_memory import Exporter, GpuMemory
from tests.kv.exporter import Side, after_copy, content, scattered, spans_of

SIZE = 768 << 10
STAND_IN = Path(__file__).with_name("cuda_stand_in.cpp")


@pytest.fixture(
    scope="module", params=["stand-in", *(["cuda"] if torch.cuda.is_available() else [])]
)
def library(request, tmp_path_factory):
    if request.param == "cuda":
        return LIBRARY
    built = tmp_path_factory.mktemp("cuda") / "libcuda_stand_in.so"
    command = ["g++", "-shared", "-fPIC", "-O1", "-std=c++17", "-o", built, STAND_IN]
    subprocess.run(command, check=True, timeout=60)
    return str(built)


@pytest.fixture(scope="module")
def exporter(library):
    with Exporter(SIZE, library) as running:
        yield running


@dataclass
class CudaSide(Side):
    own: GpuMemory


@pytest.fixture
def side(exporter, library):
    own = GpuMemory(SIZE, library)
    connector = CudaIpcConnector(0, library)
    handle = connector.register_region(own.region, exported=False)
    connector.connect_peer("peer", exporter.description)
    yield CudaSide(connector, exporter, own, handle)
    connector.close_connector()


@pytest.mark.parametrize(("pieces", "longest"), [(300, 2_000), (5, 150_000)])
def test_scattered_pieces_arrive_and_nothing_else_changes(side, pieces, longest):
    spans = scattered(SIZE, pieces, longest)
    before = np.full(SIZE, 99, dtype=np.uint8)
    side.own.put(before)
    wanted = after_copy(spans, content(SIZE), before)
    assert side.read_all(spans) == ""
    assert (side.own.get() == wanted).all()


def test_host_memory_can_be_the_own_end(side):
    host = torch.zeros(1000, dtype=torch.uint8)
    handle = side.connector.register_region(Region(host.data_ptr(), 1000), exported=False)
    handle = side.connector.begin_read("peer", spans_of((5000, 0, 1000)), handle)
    assert side.ends(1) == {handle: ""}
    assert (host.numpy() == content(SIZE)[5000:6000]).all()


@pytest.mark.parametrize("piece", [(-8, 0, 16), (SIZE - 8, 0, 16), (0, SIZE - 8, 16), (0, 0, -4)])
def test_what_lies_outside_is_a_problem(side, piece):
    assert "outside" in side.read_all(spans_of(piece))
    assert side.read_all(spans_of((0, 0, 100))) == ""


def test_every_ticket_ends_once(side):
    handles = [side.read(scattered(SIZE, 20 + n, 9_000)) for n in range(30)]
    side.connector.cancel_handle(handles[-1])
    problems = side.ends(30)
    assert problems == dict.fromkeys(handles[:-1], "") | {handles[-1]: "cancelled"}


def test_disconnecting_ends_what_is_open(side, library):
    handles = [side.read(spans_of((0, 0, SIZE))) for _ in range(4)]
    side.connector.disconnect_peer("peer")
    assert side.ends(4) == dict.fromkeys(handles, "disconnected from peer")
    if library != LIBRARY:
        assert ctypes.CDLL(library).stand_in_mappings() == 0
    assert "not connected" in side.read_all(spans_of((0, 0, 10)))
    side.connector.connect_peer("peer", side.exporter.description)
    assert side.read_all(spans_of((0, 0, 10))) == ""


def test_closing_ends_what_is_open_and_may_be_done_twice(side):
    handle = side.read(spans_of((0, 0, SIZE)))
    side.connector.close_connector()
    assert side.ends(1) == {handle: "the connector was closed"}
    side.connector.close_connector()
    assert side.read_all(spans_of((0, 0, 10))) == "the connector was closed"


def test_memory_stays_readable_after_its_owner_was_killed(library):
    exporter = Exporter(SIZE, library)
    own = GpuMemory(SIZE, library)
    connector = CudaIpcConnector(0, library)
    handle = connector.register_region(own.region, exported=False)
    connector.connect_peer("peer", exporter.description)
    side = CudaSide(connector, exporter, own, handle)
    exporter.close()
    assert side.read_all(spans_of((0, 0, SIZE))) == ""
    assert (own.get() == content(SIZE)).all()
    connector.disconnect_peer("peer")
    with pytest.raises(ConnectorError):
        connector.connect_peer("peer", exporter.description)
    connector.close_connector()


def test_what_cannot_be_reached_is_refused(side, library):
    memory = GpuMemory(1000, library)
    side.connector.register_region(memory.region, exported=True)
    with pytest.raises(ConnectorError, match="this very process"):
        side.connector.connect_peer("self", side.connector.describe_endpoint())
    found = msgspec.msgpack.decode(side.exporter.description, type=CudaIpcDescription)
    elsewhere = msgspec.structs.replace(found, host="elsewhere")
    with pytest.raises(ConnectorError, match="another host"):
        side.connector.connect_peer("far", msgspec.msgpack.encode(elsewhere))
    for garbage in (
        b"",
        b"\xc1",
        msgspec.msgpack.encode(msgspec.structs.replace(found, offset=-1)),
    ):
        with pytest.raises(ConnectorError, match="no known way"):
            side.connector.connect_peer("other", garbage)


def test_only_memory_of_its_gpu_is_exported(side):
    with pytest.raises(ConnectorError, match="not of cpu"):
        side.connector.register_region(Region(4096, 100), exported=True)


def test_a_gpu_that_is_not_there(library):
    with pytest.raises(ConnectorError, match="cuDeviceGet"):
        CudaIpcConnector(63, library)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA")
def test_without_a_driver_it_says_so():
    with pytest.raises(ConnectorError, match="needs the driver of a GPU"):
        CudaIpcConnector()
