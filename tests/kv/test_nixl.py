"""NIXL between real processes: over whatever UCX prefers within a host, and over TCP."""

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import torch

from tandem.kv.connectors.contract import ConnectorError, Spans
from tandem.kv.connectors.nixl import NixlConnector, NixlDescription
from tandem.kv.connectors.nixl_agent import bindings
from tandem.kv.region import Region, SharedRegion
from tests.kv.nixl_exporter import Exporter, exporting
from tests.kv.split_workers import Split, SplitWorker, order_for
from tests.kv.transfer_ranks import SOURCE, Source, TransferRank

try:
    bindings()
except ConnectorError as missing:
    pytest.skip(str(missing), allow_module_level=True)

MIB = 1 << 20
END_S = 20.0


@dataclass
class Side:
    """A connector of this process, connected to an exporter as "peer"."""

    connector: NixlConnector
    exporter: Exporter
    own: SharedRegion
    handle: int

    def connect(self) -> None:
        try:
            self.connector.connect_peer("peer", self.exporter.description)
        except ConnectorError:
            # Over TCP, UCX now and then aborts a process whose last reader has left. Nothing here
            # can mend that (docs/cluster.md says what to use instead), nor is it what is tested.
            self.exporter.start_if_dead()
            self.connector.connect_peer("peer", self.exporter.description)

    def read(self, spans: Spans) -> int:
        return self.connector.begin_read("peer", spans, self.handle)

    def ends(self, count: int) -> dict[int, str]:
        found = []
        while len(found) < count:
            some = self.connector.poll_completions(END_S)
            assert some, f"{count - len(found)} handles did not end"
            found += some
        assert self.connector.poll_completions(0.0) == []
        assert len({completion.handle for completion in found}) == count
        return {completion.handle: completion.problem for completion in found}

    def read_all(self, spans: Spans) -> str:
        handle = self.read(spans)
        return self.ends(1)[handle]


def spans_of(*pieces: tuple[int, int, int]) -> Spans:
    """Pieces as (remote, local, length)."""
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return Spans(*columns)


def whole(size: int) -> Spans:
    return spans_of((0, 0, size))


def scattered(size: int, pieces: int, longest: int) -> Spans:
    """Pieces of any length and alignment; no two overlap at either end."""
    generator = np.random.default_rng(pieces)
    places = size // longest
    remote = generator.permutation(places)[:pieces].astype(np.int64) * longest
    local = generator.permutation(places)[:pieces].astype(np.int64) * longest
    lengths = generator.integers(1, longest, pieces)
    return Spans(remote + generator.integers(0, longest - lengths), local, lengths)


@contextmanager
def connected(exporter: Exporter) -> Iterator[Side]:
    own = SharedRegion.create(exporter.size, "reader")
    connector = NixlConnector("reader")
    handle = connector.register_region(own.region, exported=False)
    side = Side(connector, exporter, own, handle)
    side.connect()
    yield side
    connector.close_connector()


@pytest.fixture(scope="module", params=["any", "tcp"])
def exporter(request):
    with pytest.MonkeyPatch.context() as environment:
        if request.param != "any":
            environment.setenv("UCX_TLS", request.param)
        with exporting(16 * MIB) as running:
            yield running


@pytest.fixture
def side(exporter):
    with connected(exporter) as running:
        yield running


@pytest.fixture
def over_tcp(monkeypatch):
    """Where a copy needs both processes, so that one can be caught in the middle of it."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    with exporting(64 * MIB) as exporter, connected(exporter) as side:
        assert side.read_all(whole(1000)) == ""
        yield side


@pytest.mark.parametrize(("pieces", "longest"), [(900, 5_000), (7, 2 * MIB), (3_000, 700)])
def test_scattered_pieces_arrive_and_nothing_else_changes(side, pieces, longest):
    spans = scattered(side.exporter.size, pieces, longest)
    side.own.view[:] = 99
    wanted = side.own.view.copy()
    for remote, local, length in zip(spans.remote, spans.local, spans.lengths, strict=True):
        wanted[local : local + length] = side.exporter.content[remote : remote + length]
    assert side.read_all(spans) == ""
    assert (side.own.view == wanted).all()


def test_neighbours_and_empty_pieces(side):
    assert side.read_all(spans_of((0, 50, 10), (10, 60, 20), (7, 7, 0), (30, 80, 5))) == ""
    assert (side.own.view[50:85] == side.exporter.content[:35]).all()
    assert not side.own.view[85:].any()
    assert side.read_all(spans_of()) == ""


def test_writes_arrive(side):
    spans = scattered(side.exporter.size, 40, 100_000)
    for remote, local, length in zip(spans.remote, spans.local, spans.lengths, strict=True):
        side.own.view[local : local + length] = side.exporter.content[remote : remote + length]
    longest = int(spans.lengths.argmax())
    changed, place = int(spans.local[longest]), int(spans.remote[longest])
    before = zlib.crc32(side.exporter.content)
    # Changed and changed back, so that the exporter stays what others expect.
    for _ in range(2):
        side.own.view[changed] ^= 1
        handle = side.connector.begin_write("peer", spans, side.handle)
        assert side.ends(1) == {handle: ""}
        expected = side.exporter.content[place : place + 10].copy()
        expected[0] = side.own.view[changed]
        assert side.exporter.checksum(place, 10) == zlib.crc32(expected)
    assert side.exporter.checksum(0, side.exporter.size) == before


def test_many_tickets_end_once_each(side):
    handles = [side.read(scattered(side.exporter.size, 20 + n, 9_000)) for n in range(60)]
    assert side.ends(60) == dict.fromkeys(handles, "")


@pytest.mark.parametrize("piece", [(-8, 0, 16), (16 * MIB - 8, 0, 16), (0, 16 * MIB - 8, 16),
                                   (0, -1, 4), (0, 0, -4), (2**63 - 1, 0, 2**63 - 1)])  # fmt: skip
def test_what_lies_outside_is_a_problem_and_no_crash(side, piece):
    assert "outside" in side.read_all(spans_of(piece))
    assert side.read_all(whole(100)) == ""


def test_an_unknown_peer_is_a_problem(side):
    handle = side.connector.begin_read("stranger", whole(10), side.handle)
    assert "stranger" in side.ends(1)[handle]
    side.connector.disconnect_peer("stranger")
    side.connector.cancel_handle(12_345)
    assert side.connector.poll_completions(0.0) == []


def test_disconnecting_ends_what_is_open(side):
    handles = [side.read(whole(side.exporter.size)) for _ in range(8)]
    side.connector.disconnect_peer("peer")
    problems = side.ends(8)
    assert set(problems) == set(handles)
    assert "disconnected" in problems[handles[-1]]
    assert "not connected" in side.read_all(whole(10))
    side.connect()
    assert side.read_all(whole(10)) == ""


def test_a_cancelled_ticket_is_no_success(side):
    handles = [side.read(whole(side.exporter.size)) for _ in range(3)]
    side.connector.cancel_handle(handles[1])
    problems = side.ends(3)
    assert [problems[handle] for handle in handles] == ["", "cancelled", ""]


def test_closing_from_elsewhere_ends_everything(side):
    handles = [side.read(whole(side.exporter.size)) for _ in range(4)]
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


@pytest.mark.parametrize("description", [b"", b"\xc1", b"\x80", b"garbage" * 50])
def test_a_description_that_is_none(side, description):
    with pytest.raises(ConnectorError, match="other"):
        side.connector.connect_peer("other", description)


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
    handle = side.connector.begin_read("liar", spans_of((found.region_bytes, 0, 10)), side.handle)
    assert "could not" in side.ends(1)[handle]


def test_spoiled_metadata_is_refused(side):
    description = side.exporter.description.replace(b"nixlSerDes", b"nixlSerDas")
    with pytest.raises(ConnectorError, match="could not reach"):
        side.connector.connect_peer("other", description)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA")
def test_memory_of_another_device_is_refused(side):
    with pytest.raises(ConnectorError, match="cuda:0"):
        side.connector.register_region(Region(4096, 100, device="cuda:0"), exported=False)


def test_a_peer_killed_in_the_middle_ends_its_tickets(over_tcp):
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
    handle = side.read(whole(side.exporter.size))
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
    with exporting(MIB) as other:
        side.connector.connect_peer("other", other.description)
        side.exporter.stop()
        hanging = side.read(whole(side.exporter.size))
        handle = side.connector.begin_read("other", whole(MIB), side.handle)
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


def test_a_mover_reads_the_right_heads_from_two_ranks():
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
