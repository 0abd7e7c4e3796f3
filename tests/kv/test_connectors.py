"""Laws of every connector, between real processes: all bytes or a problem, and each handle ends."""

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tandem.kernels.transfer.choose import choose_transfer
from tandem.kernels.transfer.contract import Transfer
from tandem.kv.connectors.contract import Connector, ConnectorError, Spans
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.region import Region, SharedRegion
from tests.kv.exporter import Exporter, exporting, make_connector

MIB = 1 << 20
NAMES = ["shm", "tcp"]
END_S = 20.0


class Gate:
    """A copying face that waits for as long as the gate is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self._real = choose_transfer()

    def face(self) -> Transfer:
        return replace(self._real, copy_spans=self.copy_spans)

    def copy_spans(self, target_address: int, source_address: int, **pieces) -> None:
        assert self.open.wait(END_S)
        self._real.copy_spans(target_address, source_address, **pieces)


@dataclass
class Side:
    """A connector of this process, connected to an exporter as "peer". `ended` are the problems
    of all handles that have ended, in the order in which they did."""

    connector: Connector
    exporter: Exporter
    own: SharedRegion
    handle: int
    gate: Gate
    ended: dict[int, str]

    def read(self, spans: Spans) -> int:
        return self.connector.begin_read("peer", spans, self.handle)

    def until_ended(self, count: int) -> dict[int, str]:
        while len(self.ended) < count:
            completions = self.connector.poll_completions(END_S)
            assert completions, f"{count - len(self.ended)} handles did not end"
            for completion in completions:
                assert completion.handle not in self.ended
                self.ended[completion.handle] = completion.problem
        return self.ended

    def read_all(self, spans: Spans) -> str:
        handle = self.read(spans)
        return self.until_ended(len(self.ended) + 1)[handle]

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """No read of more than the system buffers ends in here."""
        self.gate.open.clear()
        self.exporter.stop()
        try:
            yield
        finally:
            self.exporter.go_on()
            self.gate.open.set()


@contextmanager
def connected(exporter: Exporter) -> Iterator[Side]:
    own, gate = SharedRegion.create(exporter.bytes, "reader"), Gate()
    connector = make_connector(exporter.name)
    if exporter.name == "shm":
        connector.close_connector()
        connector = ShmConnector(gate.face())
    handle = connector.register_region(own.region, exported=False)
    connector.connect_peer("peer", exporter.description)
    yield Side(connector, exporter, own, handle, gate, {})
    connector.close_connector()


def whole(bytes: int) -> Spans:
    zero = np.zeros(1, dtype=np.int64)
    return Spans(zero, zero, np.array([bytes], dtype=np.int64))


def scattered(seed: int, bytes: int, pieces: int, longest: int) -> Spans:
    """Pieces of any length and alignment; no two overlap at either end."""
    generator = np.random.default_rng(seed)
    slots = bytes // longest
    remote = generator.permutation(slots)[:pieces].astype(np.int64) * longest
    local = generator.permutation(slots)[:pieces].astype(np.int64) * longest
    lengths = generator.integers(0, longest, pieces)
    return Spans(remote + generator.integers(0, longest - lengths), local, lengths)


@pytest.fixture(scope="module", params=NAMES)
def exporter(request):
    with exporting(request.param, 16 * MIB) as running:
        yield running


@pytest.fixture
def side(exporter):
    with connected(exporter) as connected_side:
        yield connected_side


def test_a_name(side, exporter):
    assert side.connector.name == exporter.name


@pytest.mark.parametrize(("pieces", "longest"), [(900, 5_000), (7, 2 * MIB), (3_000, 700)])
def test_scattered_pieces_arrive_and_nothing_else_changes(side, pieces, longest):
    spans = scattered(pieces, side.exporter.bytes, pieces, longest)
    side.own.view[:] = 99
    wanted = side.own.view.copy()
    for remote, local, length in zip(spans.remote, spans.local, spans.lengths, strict=True):
        wanted[local : local + length] = side.exporter.content[remote : remote + length]
    assert side.read_all(spans) == ""
    assert (side.own.view == wanted).all()


def test_writes_arrive(side):
    if side.connector.name == "shm":
        pytest.skip("its peers only read: tests/attacks/test_peer_memory.py")
    spans = scattered(5, side.exporter.bytes, 40, 100_000)
    # Written back as they were, so that the exporter stays what others expect.
    for remote, local, length in zip(spans.remote, spans.local, spans.lengths, strict=True):
        side.own.view[local : local + length] = side.exporter.content[remote : remote + length]
    changed = int(spans.local[int(spans.lengths.argmax())])
    place = int(spans.remote[int(spans.lengths.argmax())])
    before = side.exporter.checksum(0, side.exporter.bytes)
    assert before == zlib.crc32(side.exporter.content)
    for difference in (1, 1):
        side.own.view[changed] ^= difference
        handle = side.connector.begin_write("peer", spans, side.handle)
        assert side.until_ended(handle)[handle] == ""
        expected = side.exporter.content[place : place + 10].copy()
        expected[0] = side.own.view[changed]
        assert side.exporter.checksum(place, 10) == zlib.crc32(expected)
    assert side.exporter.checksum(0, side.exporter.bytes) == before


def test_many_tickets_end_once_each(side):
    handles = [side.read(scattered(n, side.exporter.bytes, 20, 9_000)) for n in range(60)]
    assert side.until_ended(60) == dict.fromkeys(handles, "")
    assert side.connector.poll_completions(0.0) == []


def test_nothing_to_read_is_soon_done(side):
    none = np.zeros(0, dtype=np.int64)
    assert side.read_all(Spans(none, none, none)) == ""


@pytest.mark.parametrize("piece", [(-8, 0, 16), (16 * MIB - 8, 0, 16), (0, 16 * MIB - 8, 16),
                                   (0, -1, 4), (0, 0, -4), (2**63 - 1, 0, 2**63 - 1)])  # fmt: skip
def test_what_lies_outside_is_a_problem_and_no_crash(side, piece):
    remote, local, lengths = (np.array([value], dtype=np.int64) for value in piece)
    assert "outside" in side.read_all(Spans(remote, local, lengths))
    assert side.read_all(whole(100)) == ""


def test_an_unknown_peer_is_a_problem(side):
    handle = side.connector.begin_read("stranger", whole(10), side.handle)
    assert "stranger" in side.until_ended(1)[handle]
    side.connector.disconnect_peer("stranger")
    side.connector.cancel_handle(12_345)
    assert side.connector.poll_completions(0.0) == []


def test_disconnecting_ends_what_is_open(side):
    with side.stalled():
        handles = [side.read(whole(side.exporter.bytes)) for _ in range(8)]
        side.connector.disconnect_peer("peer")
        side.until_ended(7)
    problems = side.until_ended(8)
    assert problems == dict.fromkeys(handles, "disconnected from peer")
    assert "not connected" in side.read_all(whole(10))
    side.connector.connect_peer("peer", side.exporter.description)
    assert side.read_all(whole(10)) == ""


def test_a_cancelled_ticket_ends_and_the_others_go_on(side):
    with side.stalled():
        handles = [side.read(whole(side.exporter.bytes)) for _ in range(4)]
        side.connector.cancel_handle(handles[2])
        side.connector.cancel_handle(handles[2])
        assert side.until_ended(1) == {handles[2]: "cancelled"}
        side.connector.cancel_handle(handles[0])
    problems = side.until_ended(4)
    assert problems == dict.fromkeys(handles, "") | dict.fromkeys(
        [handles[0], handles[2]], "cancelled"
    )
    assert (side.own.view == side.exporter.content).all()


def test_closing_from_elsewhere_ends_everything(side):
    with side.stalled():
        handles = [side.read(whole(side.exporter.bytes)) for _ in range(8)]
        closing = threading.Thread(target=side.connector.close_connector)
        closing.start()
        side.until_ended(7)
    problems = side.until_ended(8)
    closing.join(END_S)
    assert not closing.is_alive()
    assert problems == dict.fromkeys(handles, "the connector was closed")
    assert side.read_all(whole(10)) == "the connector was closed"


@pytest.mark.parametrize("description", [b"", b"\xc1", b"\x80", b"garbage" * 50])
def test_a_description_that_is_none(side, description):
    with pytest.raises(ConnectorError):
        side.connector.connect_peer("other", description)


def test_memory_of_another_device_is_refused(side):
    with pytest.raises(ConnectorError, match="cuda:0"):
        side.connector.register_region(Region(4096, 100, device="cuda:0"), exported=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_owner_never_hangs_or_crashes_a_reader(name):
    with exporting(name, 64 * MIB) as exporter, connected(exporter) as side:
        assert side.read_all(whole(1000)) == ""
        with side.stalled():
            handles = [side.read(whole(exporter.bytes)) for _ in range(4)]
            exporter.kill()
        problems = side.until_ended(5)
        if name == "shm":
            # The memory is there for as long as somebody maps it.
            assert not any(problems.values())
            assert (side.own.view == exporter.content).all()
        else:
            assert all(problems[handle] for handle in handles)
            assert side.read_all(whole(10))
        with pytest.raises(ConnectorError):
            side.connector.connect_peer("again", exporter.description)
