"""A worker of the same user gets hold of another's KV memory: it can read it, and nothing else."""

import ctypes
import json
import mmap
import os
import subprocess
import sys

import pytest

from tandem.kv.connectors.cuda_ipc import CudaIpcConnector
from tandem.kv.connectors.nixl import NixlConnector
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp.connector import TcpConnector
from tandem.kv.region import SharedRegion
from tests.kv.ending import closing

BYTES = 1 << 16

# What a peer can do that knows the process and the descriptor, as every peer is told.
PEER = """
import fcntl, json, mmap, os, sys
place, size = sys.argv[1], int(sys.argv[2])
done = {}
def attempt(name, act):
    try:
        act()
        done[name] = ""
    except (OSError, ValueError) as error:
        done[name] = type(error).__name__
reading = os.open(place, os.O_RDONLY)
writing = os.open(place, os.O_RDWR)
again = os.open(f"/proc/self/fd/{reading}", os.O_RDWR)
both = mmap.PROT_READ | mmap.PROT_WRITE
attempt("read", lambda: mmap.mmap(reading, size, mmap.MAP_SHARED, mmap.PROT_READ)[0])
attempt("map to write", lambda: mmap.mmap(writing, size, mmap.MAP_SHARED, both))
attempt("map a new descriptor", lambda: mmap.mmap(again, size, mmap.MAP_SHARED, both))
attempt("write", lambda: os.pwrite(writing, b"spoilt", 0))
attempt("punch a hole", lambda: os.posix_fallocate(writing, 0, 2 * size))
attempt("shrink", lambda: os.ftruncate(writing, 0))
attempt("grow", lambda: os.ftruncate(writing, 2 * size))
attempt("seal", lambda: fcntl.fcntl(writing, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE))
print(json.dumps(done))
"""


@pytest.fixture
def shared():
    with closing(SharedRegion.create(BYTES, "attacked")) as region:
        region.view[:] = 7
        yield region


def test_another_process_can_read_and_nothing_else(shared):
    place = f"/proc/{os.getpid()}/fd/{shared.region.descriptor}"
    command = [sys.executable, "-c", PEER, place, str(BYTES)]
    done = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert done.pop("read") == ""
    assert all(done.values()), done
    assert set(shared.view.tolist()) == {7}
    # The owner goes on writing.
    shared.view[0] = 8
    assert shared.view[0] == 8


@pytest.fixture
def connector(shared):
    with closing(ShmConnector()) as made:
        made.register_region(shared.region, exported=True)
        made.connect_peer("peer", made.describe_endpoint())
        yield made


def test_a_mapping_of_a_peer_cannot_be_made_writable(connector, shared):
    memory = connector.memory_of("peer")
    assert not memory.flags.writeable
    change = ctypes.CDLL(None, use_errno=True).mprotect
    change.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    both = mmap.PROT_READ | mmap.PROT_WRITE
    assert change(memory.ctypes.data, BYTES, both) == -1
    assert memory[5] == shared.view[5] == 7


def test_no_connector_has_a_way_to_write():
    for connector in (ShmConnector, TcpConnector, NixlConnector, CudaIpcConnector):
        assert not [name for name in dir(connector) if "write" in name]
