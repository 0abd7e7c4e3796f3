"""NIXL between real processes: over whatever UCX prefers within a host, and over TCP."""

import threading

import msgspec
import pytest
import torch

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.nixl import NixlConnector, NixlDescription
from tandem.kv.connectors.nixl_agent import bindings
from tandem.kv.region import Region, SharedRegion
from tests.kv.exporter import END_S, Exporter, connected, spans_of, whole
from tests.kv.split_workers import Split, SplitWorker, order_for
from tests.kv.transfer_ranks import SOURCE, Source, TransferRank

try:
    bindings()
except ConnectorError as missing:
    pytest.skip(str(missing), allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(scope="module")
def exporter():
    with Exporter("nixl", 16 * MIB) as running:
        yield running


@pytest.fixture
def side(exporter):
    with connected(exporter) as running:
        yield running


@pytest.fixture
def over_tcp(monkeypatch):
    """Where a copy needs both processes, so that one can be caught in the middle of it."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    with Exporter("nixl", 64 * MIB) as exporter, connected(exporter) as side:
        assert side.read_all(whole(1000)) == ""
        yield side


def test_disconnecting_ends_what_is_open(side):
    handles = [side.read(whole(side.exporter.bytes)) for _ in range(8)]
    side.connector.disconnect_peer("peer")
    problems = side.ends(8)
    assert set(problems) == set(handles)
    assert "disconnected" in problems[handles[-1]]
    assert "not connected" in side.read_all(whole(10))
    side.connect()
    assert side.read_all(whole(10)) == ""


def test_a_cancelled_read_is_no_success(side):
    handles = [side.read(whole(side.exporter.bytes)) for _ in range(3)]
    side.connector.cancel_handle(handles[1])
    problems = side.ends(3)
    assert [problems[handle] for handle in handles] == ["", "cancelled", ""]


def test_closing_from_elsewhere_ends_everything(side):
    handles = [side.read(whole(side.exporter.bytes)) for _ in range(4)]
    closing = threading.Thread(target=side.connector.close_connector)
    closing.start()
    problems = side.ends(4)
    closing.join()
    assert problems[handles[-1]] == "the connector was closed"
    assert side.read_all(whole(10)) == "the connector was closed"


def test_a_worker_reads_its_own_memory():
    """Both ends in one process, as when a request returns to where it came from."""
    memory = SharedRegion.create(MIB, "memory")
    memory.view[:1000] = 7
    connector = NixlConnector("alone")
    handle = connector.register_region(memory.region, exported=True)
    connector.connect_peer("self", connector.describe_endpoint())
    handle = connector.begin_read("self", spans_of((0, 5000, 1000)), handle)
    assert connector.poll_completions(END_S)[0].handle == handle
    assert (memory.view[5000:6000] == 7).all()
    connector.close_connector()


@pytest.mark.parametrize("field", [{"address": -1}, {"region_bytes": 1 << 63}, {"device": "gpu"}])
def test_a_description_with_an_impossible_value(side, field):
    found = msgspec.msgpack.decode(side.exporter.description, type=NixlDescription)
    description = msgspec.msgpack.encode(msgspec.structs.replace(found, **field))
    with pytest.raises(ConnectorError, match="no known way"):
        side.connector.connect_peer("other", description)


def test_memory_that_the_peer_did_not_register_is_a_problem(side):
    found = msgspec.msgpack.decode(side.exporter.description, type=NixlDescription)
    longer = msgspec.structs.replace(found, region_bytes=found.region_bytes + MIB)
    side.connector.connect_peer("liar", msgspec.msgpack.encode(longer))
    handle = side.connector.begin_read(
        "liar", spans_of((found.region_bytes, 0, 10)), side.region_id
    )
    assert "could not" in side.ends(1)[handle]


def test_corrupt_metadata_is_refused(side):
    description = side.exporter.description.replace(b"nixlSerDes", b"nixlSerDas")
    with pytest.raises(ConnectorError, match="could not reach"):
        side.connector.connect_peer("other", description)


def test_a_peer_killed_in_the_middle_ends_its_reads(over_tcp):
    side = over_tcp
    side.exporter.stop()
    handles = [side.read(spans_of((part * 8 * MIB, 0, 8 * MIB))) for part in range(4)]
    assert side.connector.poll_completions(0.05) == []
    side.exporter.kill()
    problems = side.ends(4)
    assert all(problems[handle] for handle in handles)
    assert side.read_all(whole(10))
    with pytest.raises(ConnectorError, match="could not reach"):
        side.connector.connect_peer("peer", side.exporter.description)


def test_nothing_is_written_after_a_hung_peer_was_cut_off(over_tcp):
    side = over_tcp
    side.exporter.stop()
    handle = side.read(whole(side.exporter.bytes))
    side.connector.cancel_handle(handle)
    # UCX cannot take it back: until it is cut off, the peer may still answer.
    assert side.connector.poll_completions(0.05) == []
    side.connector.disconnect_peer("peer")
    assert side.ends(1) == {handle: "cancelled"}
    side.own.view[:] = 0
    side.exporter.go_on()
    # It leaves when told to, or UCX ends it: either way it has been awake.
    side.exporter.process.stdin.close()
    side.exporter.process.wait(END_S)
    assert not side.own.view.any()


def test_other_peers_are_read_while_one_hangs(over_tcp):
    side = over_tcp
    with Exporter("nixl", MIB) as other:
        side.connector.connect_peer("other", other.description)
        side.exporter.stop()
        hanging = side.read(whole(side.exporter.bytes))
        handle = side.connector.begin_read("other", whole(MIB), side.region_id)
        assert side.ends(1) == {handle: ""}
        assert (side.own.view[:MIB] == other.content).all()
        side.connector.disconnect_peer("peer")
        assert "disconnected" in side.ends(1)[hanging]


class NixlNet:
    """Makes memory of this process known, each region by a connector of its own."""

    def __init__(self):
        self.connectors = []

    def export(self, region: Region) -> bytes:
        connector = NixlConnector(f"source-{len(self.connectors)}")
        connector.register_region(region, exported=True)
        self.connectors.append(connector)
        return connector.describe_endpoint()

    def close(self):
        for connector in self.connectors:
            connector.close_connector()


def test_an_engine_reads_the_right_heads_from_two_ranks():
    net = NixlNet()
    source = Source(Split(2, kv_heads=2), net, ("nixl",))
    target = SplitWorker(Split(1, kv_heads=2), 2)
    order = order_for(source.worker.split, target.split, 3, 23)
    source.announce(order)
    expected = target.expected(order, source.values)
    transfers = TransferRank(target, 0, [NixlConnector("target")])
    transfers.transfers.add_source(*SOURCE, source.export)
    report = transfers.move(7, order)
    assert (report.arrived, report.problem, report.connector) == (True, "", "nixl")
    assert torch.equal(target.pools[0], expected[0])
    transfers.close()
    net.close()


def test_where_it_is_not_installed():
    with pytest.raises(ConnectorError, match=r"pip install 'tandem\[nixl\]'"):
        bindings(("nixl_of_nobody",))
