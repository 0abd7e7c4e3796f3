"""What shared memory alone can get wrong: another process in the place of the one meant."""

import os
import tempfile

import msgspec
import numpy as np
import pytest

from tandem.kv.connectors.contract import ConnectorError, Spans
from tandem.kv.connectors.shm import ShmConnector, ShmDescription, host_identity, start_of
from tandem.kv.region import Region, SharedRegion, mapped


@pytest.fixture
def shared():
    return SharedRegion.create(1 << 20, "test")


@pytest.fixture
def connector(shared):
    made = ShmConnector()
    made.register_region(shared.region, exported=True)
    yield made
    made.close_connector()


def described(connector: ShmConnector) -> ShmDescription:
    return msgspec.msgpack.decode(connector.describe_endpoint(), type=ShmDescription)


def changed(connector: ShmConnector, **fields: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(described(connector), **fields))


def test_a_process_reaches_its_own_memory(connector, shared):
    shared.view[500_000:] = 8
    connector.connect_peer("self", connector.describe_endpoint())
    zero, half = np.zeros(1, np.int64), np.full(1, 500_000, np.int64)
    connector.begin_read("self", Spans(half, zero, half), 0)
    assert [completion.problem for completion in connector.poll_completions(10)] == [""]
    assert (shared.view == 8).all()


def test_only_the_very_process_and_memory_that_was_meant(connector):
    truth = described(connector)
    other = SharedRegion.create(1 << 20, "other")
    for fields, problem in [
        ({"host": "elsewhere"}, "another host"),
        ({"start": truth.start + 1}, "not the one that was meant"),
        ({"process_id": 2**22 + 1}, "cannot be mapped"),
        ({"descriptor": 987_654}, "cannot be mapped"),
        ({"descriptor": other.region.descriptor}, "something else"),
        ({"bytes": truth.bytes + 1}, "something else"),
        ({"version": 2}, "no known way"),
    ]:
        with pytest.raises(ConnectorError, match=problem):
            connector.connect_peer("peer", changed(connector, **fields))


def test_memory_that_could_shrink_is_not_mapped(connector):
    """A shrinking file would kill whoever reads its end."""
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 1 << 20)
    fields = {"descriptor": descriptor, "inode": os.fstat(descriptor).st_ino}
    with pytest.raises(ConnectorError, match="something else"):
        connector.connect_peer("peer", changed(connector, **fields))
    os.close(descriptor)


# A file in a tmpfs can be asked for its seals like memory, one on a disk cannot.
@pytest.mark.parametrize("folder", [tempfile.gettempdir(), "/dev/shm"])
def test_what_is_not_a_memory_file_is_not_mapped(connector, folder):
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.truncate(1 << 20)
        fields = {"descriptor": file.fileno(), "inode": os.fstat(file.fileno()).st_ino}
        with pytest.raises(ConnectorError, match="something else"):
            connector.connect_peer("peer", changed(connector, **fields))


def test_memory_without_a_file_is_no_export(shared):
    connector = ShmConnector()
    with pytest.raises(ConnectorError, match="file descriptor"):
        connector.register_region(Region(shared.region.address, 100), exported=True)
    connector.close_connector()


def test_a_mapping_outlives_the_connection(connector, shared):
    view = mapped(shared.region.descriptor, 1 << 20)
    connector.connect_peer("self", connector.describe_endpoint())
    connector.disconnect_peer("self")
    shared.view[3] = 9
    assert view[3] == 9


def test_a_reader_may_look_for_himself(connector, shared):
    connector.connect_peer("self", connector.describe_endpoint())
    memory = connector.memory_of("self")
    assert len(memory) == 1 << 20
    connector.disconnect_peer("self")
    with pytest.raises(ConnectorError, match="not connected to self"):
        connector.memory_of("self")
    shared.view[5] = 77
    assert memory[5] == 77


def test_start_and_host_are_those_of_the_system():
    assert start_of(os.getpid()) >= start_of(1) >= 0
    assert host_identity() == host_identity()
    with pytest.raises(OSError, match="No such"):
        start_of(2**22 + 1)
