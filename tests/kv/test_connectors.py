"""Laws of every connector, between real processes: all bytes or a problem, and each handle ends."""

import importlib.util
import threading

import pytest
import torch

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.nixl_agent import PACKAGES
from tandem.kv.region import Region
from tests.kv.exporter import END_S, Exporter, after_copy, connected, scattered, spans_of, whole

MIB = 1 << 20
NAMES = ["shm", "tcp"]
HAS_NIXL = any(importlib.util.find_spec(package) for package in PACKAGES)
NIXL = [
    pytest.param(way, marks=pytest.mark.skipif(not HAS_NIXL, reason="needs NIXL"))
    for way in ("nixl", "nixl over tcp")
]


@pytest.fixture(scope="module", params=[*NAMES, *NIXL])
def exporter(request):
    """NIXL over whatever UCX prefers within a host, and over TCP."""
    name, _, transport = request.param.partition(" over ")
    with pytest.MonkeyPatch.context() as environment:
        if transport == "tcp":
            environment.setenv("UCX_TLS", transport)
        with Exporter(name, 16 * MIB) as running:
            yield running


@pytest.fixture
def side(exporter):
    with connected(exporter) as connected_side:
        yield connected_side


# Connectors whose reads do not end while the peer stands still. What NIXL reads within a host does
# not need its peer: tests/kv/test_nixl.py.
stalling = pytest.mark.parametrize("exporter", NAMES, indirect=True)


def test_a_name(side, exporter):
    assert side.connector.name == exporter.name


@pytest.mark.parametrize(("pieces", "longest"), [(900, 5_000), (7, 2 * MIB), (3_000, 700)])
def test_scattered_pieces_arrive_and_nothing_else_changes(side, pieces, longest):
    spans = scattered(side.exporter.bytes, pieces, longest)
    side.own.view[:] = 99
    wanted = after_copy(spans, side.exporter.content, side.own.view)
    assert side.read_all(spans) == ""
    assert (side.own.view == wanted).all()


def test_neighbours_and_empty_pieces(side):
    assert side.read_all(spans_of((0, 50, 10), (10, 60, 20), (7, 7, 0), (30, 80, 5))) == ""
    assert (side.own.view[50:85] == side.exporter.content[:35]).all()
    assert not side.own.view[85:].any()
    assert side.read_all(spans_of()) == ""


def test_many_reads_end_once_each(side):
    handles = [side.read(scattered(side.exporter.bytes, 20 + n, 9_000)) for n in range(60)]
    assert side.ends(60) == dict.fromkeys(handles, "")


@pytest.mark.parametrize("piece", [(-8, 0, 16), (16 * MIB - 8, 0, 16), (0, 16 * MIB - 8, 16),
                                   (0, -1, 4), (0, 0, -4), (2**63 - 1, 0, 2**63 - 1)])  # fmt: skip
def test_what_lies_outside_is_a_problem_and_no_crash(side, piece):
    assert "outside" in side.read_all(spans_of(piece))
    assert side.read_all(whole(100)) == ""


def test_an_unknown_peer_is_a_problem(side):
    handle = side.read(whole(10), "stranger")
    assert "stranger" in side.ends(1)[handle]
    side.connector.disconnect_peer("stranger")
    side.connector.cancel_handle(12_345)
    assert side.connector.poll_completions(0.0) == []


@stalling
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


@stalling
def test_a_cancelled_read_ends_and_the_others_go_on(side):
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


@stalling
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
    with pytest.raises(ConnectorError, match="other"):
        side.connector.connect_peer("other", description)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA")
def test_memory_of_another_device_is_refused(side):
    with pytest.raises(ConnectorError, match="cuda:0"):
        side.connector.register_region(Region(4096, 100, device="cuda:0"), exported=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_owner_never_hangs_or_crashes_a_reader(name):
    with Exporter(name, 64 * MIB) as exporter, connected(exporter) as side:
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
