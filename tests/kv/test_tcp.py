"""The port towards everybody: wrong secrets, garbage, crumbs, silence and standstill."""

import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.tcp import protocol as frames
from tandem.kv.connectors.tcp.connector import TcpConnector, TcpDescription
from tandem.kv.connectors.tcp.stream import (
    PeerAddress,
    Stream,
    StreamEnded,
    TcpLimits,
    listening_socket,
    prove_to_server,
)
from tandem.kv.region import SharedRegion
from tests.kv.ending import closing
from tests.kv.exporter import END_S, SECRET, Exporter, connected, content, spans_of, whole

MIB = 1 << 20
BYTES = 8 * MIB
CONTENT, EVERYTHING = content(BYTES), whole(BYTES)
PATIENT = TcpLimits(connect_s=END_S, silence_s=END_S, idle_s=END_S)
# For those that wait for somebody who will never move.
IMPATIENT = TcpLimits(connect_s=0.3, silence_s=0.3, idle_s=END_S)


def make_tcp(secret: bytes = SECRET, host: str = "127.0.0.1", limits: TcpLimits = PATIENT):
    # Chance adds nothing here: every side has its own counter.
    counter = iter(range(1, 1_000_000))
    return TcpConnector(
        host, secret, entropy=lambda count: next(counter).to_bytes(count, "big"), limits=limits
    )


@contextmanager
def serving(limits: TcpLimits = PATIENT, host: str = "127.0.0.1") -> Iterator[TcpConnector]:
    shared = SharedRegion.create(BYTES, "served")
    shared.view[:] = CONTENT
    with closing(make_tcp(limits=limits, host=host)) as connector:
        connector.register_region(shared.region, exported=True)
        yield connector


@pytest.fixture(scope="module")
def server():
    with serving() as connector:
        yield connector


class Served:
    """What a connector of this process exports."""

    name, bytes, content = "tcp", BYTES, CONTENT

    def __init__(self, connector: TcpConnector) -> None:
        self.description = connector.describe_endpoint()


def read_by_a_new_client(server: TcpConnector, secret: bytes = SECRET) -> None:
    """Connect as a stranger would, and read everything."""
    with connected(Served(server), make_tcp(secret)) as side:
        assert side.read_all(EVERYTHING) == ""
        assert (side.own.view == CONTENT).all()


def way_to(server: TcpConnector) -> PeerAddress:
    found = msgspec.msgpack.decode(server.describe_endpoint(), type=TcpDescription)
    credentials = frames.Credentials(SECRET, found.incarnation)
    return PeerAddress(
        "peer", (found.host, found.port), credentials, lambda count: bytes(count), PATIENT
    )


def address_of(server: TcpConnector) -> tuple[str, int]:
    return way_to(server).address


@contextmanager
def proven(server: TcpConnector) -> Iterator[Stream]:
    """A connection over which the proofs have been exchanged."""
    with closing(Stream(socket.create_connection(address_of(server), END_S))) as stream:
        prove_to_server(stream, way_to(server))
        yield stream


def test_the_secret_opens_and_another_does_not(server):
    read_by_a_new_client(server)
    with pytest.raises(ConnectorError, match="does not answer as it should"):
        read_by_a_new_client(server, b"another secret of some length")
    assert SECRET not in server.describe_endpoint()
    assert "what only" not in repr(frames.Credentials(SECRET, b""))


def test_a_short_secret_is_none():
    with pytest.raises(ConnectorError, match="at least 16"):
        make_tcp(b"short")


def test_another_start_of_the_process_is_another_peer(server):
    """A port is soon used again; blocks of the new process are not those that were announced."""
    truth = msgspec.msgpack.decode(server.describe_endpoint(), type=TcpDescription)
    other = msgspec.structs.replace(truth, incarnation=bytes(16))
    with closing(make_tcp()) as client, pytest.raises(ConnectorError, match="as it should"):
        client.connect_peer("peer", msgspec.msgpack.encode(other))


def test_proofs_are_of_one_side_and_one_conversation():
    credentials = frames.Credentials(SECRET, bytes(16))
    one, other = bytes(32), bytes([1] * 32)
    answer = frames.answer(credentials, one, other)
    proof = frames.check_answer(credentials, one, answer)
    frames.check_proof(credentials, one, other, proof)
    for server_nonce, data in [(other, answer), (one, answer[:-1] + b"?"), (one, bytes(72))]:
        with pytest.raises(frames.BadFrame):
            frames.check_answer(credentials, server_nonce, data)
    # Handing the client's own proof back proves nothing.
    with pytest.raises(frames.BadFrame):
        frames.check_proof(credentials, one, other, answer[-32:])


def ends_soon(server: TcpConnector, data: bytes) -> None:
    """The server closes a connection over which this came."""
    with socket.create_connection(address_of(server), END_S) as connection:
        try:
            connection.sendall(data)
            end_sending(connection)
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            # Closed with bytes unread: an end as well.
            return


def end_sending(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        # The other side has hung up already.
        assert error.errno == errno.ENOTCONN


@settings(max_examples=40)
@given(st.binary(max_size=300))
def test_garbage_for_a_proof_ends_the_connection(server, data):
    ends_soon(server, data)


def test_after_garbage_others_are_served(server):
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), frames.MAGIC * 20, b""):
        ends_soon(server, data)
    read_by_a_new_client(server)


def head(kind: int, count: int, total: int, *table: int) -> bytes:
    return struct.pack("<B3xIQ", kind, count, total) + struct.pack(f"<{len(table)}q", *table)


BAD_REQUESTS = {
    "kind": head(3, 1, 10, 0, 10),
    "no spans": head(1, 0, 10),
    "too many spans": head(1, frames.FRAME_SPANS + 1, 10),
    "no bytes": head(1, 1, 0, 0, 0),
    "too many bytes": head(1, 1, frames.FRAME_BYTES + 1, 0, frames.FRAME_BYTES + 1),
    "beyond the end": head(1, 1, 16, BYTES - 8, 16),
    "before the begin": head(1, 1, 16, -8, 16),
    "a write": head(2, 1, 16, 0, 16) + bytes(16),
    "negative length": head(1, 2, 8, 0, 16, 0, -8),
    "overflow": head(1, 1, 16, 2**63 - 8, 16),
    "lie about the sum": head(1, 2, 100, 0, 16, 16, 16),
    "part of a table": head(1, 2, 32, 0, 16)[:-3],
    "part of a head": head(1, 2, 32)[:5],
}


@pytest.mark.parametrize("bad", BAD_REQUESTS)
def test_a_bad_request_ends_the_connection(bad):
    partly = bad.startswith("part of")
    with serving(IMPATIENT if partly else PATIENT) as server:
        with proven(server) as stream:
            stream.send_bytes([memoryview(BAD_REQUESTS[bad])], END_S)
            with pytest.raises(StreamEnded, match=r"closed|broke"):
                stream.receive_message(1, END_S)
        if not partly:
            read_by_a_new_client(server)


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=200))
def test_any_request_gets_bytes_or_an_end(server, data):
    connection = socket.create_connection(address_of(server), END_S)
    with closing(Stream(connection)) as stream:
        prove_to_server(stream, way_to(server))
        stream.send_bytes([memoryview(data)], END_S)
        end_sending(connection)
        with pytest.raises(StreamEnded):
            while True:
                stream.receive_message(1, END_S)


def answering(respond: Callable[[socket.socket], object]) -> bytes:
    """Something on a port that treats its one client so. Gives a description of it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            connection.settimeout(END_S)
            try:
                respond(connection)
                # Until the client has enough.
                while connection.recv(1000):
                    pass
            except ConnectionError:
                return

    threading.Thread(target=serve, daemon=True).start()
    port = listening.getsockname()[1]
    return msgspec.msgpack.encode(TcpDescription("127.0.0.1", port, bytes(16), BYTES))


def crumbs(connection: socket.socket) -> None:
    """One byte at a time, each well before the client loses patience."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(0.01)
    for byte in frames.greeting(bytes(32)):
        connection.sendall(bytes([byte]))
        with suppress(TimeoutError):
            connection.recv(1)
    connection.settimeout(END_S)


def ignore(connection: socket.socket) -> None:
    """Say nothing at all."""


@pytest.mark.parametrize(
    ("respond", "problem"),
    [
        (ignore, "silent for 0.3 s"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request" * 9), "something else"),
        (lambda connection: connection.sendall(frames.greeting(bytes(32))), "silent"),
        (lambda connection: connection.sendall(frames.MAGIC + bytes(99)), "does not know"),
        (lambda connection: connection.shutdown(socket.SHUT_RDWR), r"closed|broke|Transport"),
        (crumbs, "crumbs"),
    ],
)
def test_what_answers_otherwise_is_no_peer(respond, problem):
    client = make_tcp(limits=IMPATIENT)
    with closing(client), pytest.raises(ConnectorError, match=problem):
        client.connect_peer("peer", answering(respond))


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    description = msgspec.msgpack.encode(TcpDescription("127.0.0.1", port, bytes(16), BYTES))
    with closing(make_tcp()) as client, pytest.raises(ConnectorError, match="cannot be reached"):
        client.connect_peer("peer", description)


def test_a_port_that_is_taken_is_reported():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConnectorError, match="cannot listen"),
    ):
        listening_socket(*taken.getsockname())


def test_a_peer_that_stands_still_ends_all_its_reads_and_comes_back():
    limits = replace(PATIENT, silence_s=0.3)
    with Exporter("tcp", BYTES) as exporter, connected(exporter, make_tcp(limits=limits)) as side:
        exporter.stop()
        handles = [side.read(EVERYTHING) for _ in range(5)]
        problems = side.ends(5)
        assert sorted(problems) == handles
        assert all("silent for 0.3 s" in problem for problem in problems.values())
        exporter.go_on()
        # In parts, each of which the peer can well answer in time.
        for start in range(0, BYTES, MIB):
            assert side.read_all(spans_of((start, start, MIB))) == ""
        assert (side.own.view == exporter.content).all()


# Asks for more than any buffer between the two takes.
UNREAD = memoryview(head(1, 1, 4 * MIB, 0, 4 * MIB) * 8)


def test_a_client_that_does_not_listen_holds_its_place_for_a_time():
    with serving(replace(PATIENT, connections=1)) as server, proven(server) as stream:
        stream.send_bytes([UNREAD], END_S)
        with pytest.raises(ConnectorError):
            read_by_a_new_client(server)


def test_a_client_that_does_not_listen_is_dropped():
    """It holds the only place that there is, until it has been silent for long enough."""
    with (
        serving(replace(PATIENT, silence_s=0.3, connections=1)) as server,
        proven(server) as stream,
    ):
        stream.send_bytes([UNREAD], END_S)
        for _ in range(100_000):
            with suppress(ConnectorError):
                read_by_a_new_client(server)
                break
        else:
            pytest.fail("the place was never free")
        with pytest.raises(StreamEnded):
            stream.receive_message(8 * 4 * MIB, END_S)


def test_nobody_writes_to_the_memory_of_another(server):
    with proven(server) as stream:
        stream.send_bytes([memoryview(head(2, 1, 16, 0, 16) + bytes(16))], END_S)
        with pytest.raises(StreamEnded, match=r"closed|broke"):
            stream.receive_message(1, END_S)
    read_by_a_new_client(server)


def test_a_connection_idle_for_too_long_is_made_anew():
    with (
        serving(replace(PATIENT, idle_s=0.05)) as server,
        connected(Served(server), make_tcp()) as side,
    ):
        for _ in range(2):
            # One that begins to be idle later has been ended: so has the client's.
            with proven(server) as stream, pytest.raises(StreamEnded, match="closed"):
                stream.receive_message(1, END_S)
            assert side.read_all(EVERYTHING) == ""


def test_closing_hangs_up():
    with serving() as server, proven(server) as stream:
        stream.send_bytes([UNREAD], END_S)
        server.close_connector()
        with pytest.raises(StreamEnded):
            stream.receive_message(8 * 4 * MIB, END_S)
        with closing(make_tcp()) as client, pytest.raises(ConnectorError):
            client.connect_peer("peer", server.describe_endpoint())


def test_over_the_newer_protocol_of_the_internet():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        with serving(host="::1") as server:
            read_by_a_new_client(server)
    except ConnectorError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("host", ["kv.example", "0.0.0.0", "::", ""])
def test_peers_get_an_address_that_leads_somewhere(host):
    with pytest.raises(ConnectorError, match="peers cannot be told"):
        TcpConnector(host, SECRET, entropy=bytes)
    description = msgspec.msgpack.encode(TcpDescription(host, 1, bytes(16), BYTES))
    with closing(make_tcp()) as client, pytest.raises(ConnectorError, match="is said to be at"):
        client.connect_peer("peer", description)


def test_strangers_hold_places_against_nobody():
    """Whoever proves nothing may stay for long, but makes room, the oldest first."""
    with serving(replace(PATIENT, connections=2)) as server, ExitStack() as opened:
        strangers = []
        for _ in range(3):
            connection = socket.create_connection(address_of(server), END_S)
            strangers.append(opened.enter_context(connection))
            assert len(connection.recv(frames.GREETING_BYTES)) == frames.GREETING_BYTES
        assert strangers[0].recv(1) == b""
        read_by_a_new_client(server)
        assert strangers[1].recv(1) == b""


def test_who_has_proved_himself_keeps_his_place():
    with (
        serving(replace(PATIENT, connections=1)) as server,
        connected(Served(server), make_tcp()) as side,
    ):
        assert side.read_all(EVERYTHING) == ""
        with socket.create_connection(address_of(server), END_S) as stranger:
            assert stranger.recv(1) == b""
        assert side.read_all(EVERYTHING) == ""
