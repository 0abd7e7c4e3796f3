"""Strangers at the port: endless heads, connections that say nothing, floods of them, and what is
hardly HTTP. All of it before anybody looks at a key."""

import asyncio
import gzip
import json
import resource
from contextlib import ExitStack, suppress

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ConnectionLimits
from tandem.api.connections.gate import MOST_CONNECTIONS, ConnectionGate
from tandem.live.processes.member_health import MemberHealth, serve_health
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.api.server import serving
from tests.attacks.clients import (
    JSON,
    Answer,
    ask,
    ask_on,
    connected,
    crowd,
    head,
    is_closed,
    posted,
    pour,
    read_answer,
    received,
)
from tests.kv.tier_blocks import free_port

MIB = 1 << 20
# What is on its way when the server closes lies in the buffers of two sockets.
ON_THE_WAY_BYTES = 24 * MIB
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
CHAT_PATH = "/v1/chat/completions"
BODY = json.dumps(CHAT).encode()
# The only key of the servers here.
KEYS, OURS = ApiConfig(api_keys=("key",)), "Authorization: Bearer key"
CALL = posted(CHAT_PATH, BODY, JSON, OURS)


@pytest.fixture
def port_with(generator, text):
    """Starts a server with these limits; gives its port."""
    with ExitStack() as undo:

        def start(**limits) -> int:
            app = build_app(generator, text, KEYS)
            return undo.enter_context(serving(app, ConnectionLimits(**limits)))

        yield start


@pytest.fixture
def holding_port(port_with, generator):
    """Of a server that answers each call with a token, and no more before its client leaves; at
    the end of the test none of them may run. What is unfinished is bounded more closely."""
    generator.script = Script(hold_after=1)
    yield port_with()
    generator.wait_until_running(0)


@pytest.fixture
def few_unfinished_bytes(monkeypatch):
    """In all connections together."""
    monkeypatch.setattr("tandem.api.connections.gate.UNFINISHED_BYTES", 256 << 10)


@pytest.fixture(scope="module")
def port(text):
    with serving(build_app(ScriptedGenerator(text), text, KEYS)) as port:
        yield port


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /health HTTP/1.1\r\n", b"X-Field: " + b"v" * 1000 + b"\r\n"),
        (b"GET /health HTTP/1.1\r\nX-Field: ", b"v" * 65536),
        (b"GET /health HTTP/1.1\r\n", b"n" * 65536),
        (b"GET /", b"p" * 65536),
        (b"GET /health HTTP/1.1\r\n", b"a:\r\n" * 1000),
        (b"", b"\r\n" * 1000),
    ],
    ids=["fields", "one value", "one name", "path", "tiny fields", "empty lines"],
)
def test_a_head_without_end_is_refused_at_once(port, start, piece):
    told = pour(port, start, piece, 64 * MIB)
    assert told.sent_bytes < ON_THE_WAY_BYTES
    assert told.refusal == (431, "head_too_large")
    assert told.headers["connection"] == "close"


@pytest.mark.parametrize(
    "piece", [b"X-Trailer: " + b"v" * 1000 + b"\r\n", b"v" * 65536], ids=["fields", "one"]
)
def test_trailers_and_chunk_extensions_without_end_are_cut(port, piece):
    start = head(CHAT_PATH, JSON, "Transfer-Encoding: chunked", method="POST")
    for end in (b"0\r\nX-Trailer: ", b"1;"):
        assert pour(port, start + end, piece, 64 * MIB).sent_bytes < ON_THE_WAY_BYTES


def test_bytes_and_fields_are_counted_exactly(port_with):
    port = port_with(head_bytes=1024, head_fields=10)
    # Host is one of them.
    fields = [f"X-{index}: v" for index in range(10)]
    assert ask(port, head("/health", *fields[:9])).status == 200
    assert "10 fields" in ask(port, head("/health", *fields)).error["message"]
    filler = 1024 - len(head("/health", "X: "))
    assert ask(port, head("/health", "X: " + "v" * filler)).status == 200
    assert ask(port, head("/health", "X: " + "v" * (filler + 1))).status == 431
    # A body counts to no head, nor does the request before.
    large = posted(CHAT_PATH, b" " * 5000, JSON)
    with connected(port) as connection:
        for _ in range(2):
            assert ask_on(connection, large).status == 401
        assert ask_on(connection, head("/health") * 10).status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX"], ids=["nothing", "a part"])
def test_a_head_that_does_not_come_is_not_waited_for(port_with, sent):
    with connected(port_with(head_timeout_s=0.2)) as connection:
        told = ask_on(connection, sent)
        assert told.refusal == (408, "head_timeout") if sent else told.status == 0
        assert is_closed(connection)


def test_dripping_bytes_buy_no_time(port_with):
    port = port_with(head_timeout_s=0.2)
    # A head without end, and a body that nobody wants any more.
    refused = head(CHAT_PATH, JSON, "Content-Length: 100000", method="POST")
    for start in (b"GET /health HTTP/1.1\r\nX: ", refused):
        with connected(port) as connection:
            connection.settimeout(0.01)
            connection.sendall(start)
            for _ in range(2000):
                try:
                    connection.sendall(b"x")
                    if not connection.recv(1 << 16):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("it was never closed")


def test_300_idle_sockets_starve_neither_probes_nor_other_addresses(port_with):
    port = port_with(connections=100, connections_per_address=20, gives_way_s=60.0)
    with crowd(port, 300):
        for path in ("/health", "/ready", "/metrics"):
            for _ in range(5):
                assert ask(port, head(path)).status == 200
        refused = ask(port, head("/v1/models", OURS))
        assert refused.refusal == (503, "too_many_connections")
        assert refused.headers["retry-after"] in ("1", "2")
        assert ask(port, head("/v1/models", OURS), "127.0.0.2").status == 200


def test_probes_are_answered_where_every_place_is_at_work(port_with, generator):
    generator.script = Script(hold_after=1)
    port = port_with(connections=3, connections_per_address=3)
    with crowd(port, 3) as streams:
        for connection in streams:
            connection.sendall(CALL)
        generator.wait_until_running(3)
        told = ask(port, head("/health"))
        assert (told.status, told.headers["connection"]) == (200, "close")
        assert ask(port, head("/v1/models", OURS)).error["code"] == "too_many_connections"
    generator.wait_until_running(0)
    assert ask(port, head("/v1/models", OURS)).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST " + CHAT_PATH.encode() + b" HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        head(CHAT_PATH, JSON, "Transfer-Encoding: chunked", method="POST") + b"zz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["zeros", "words", "version", "field", "length", "two lengths", "chunk", "TLS"],
)
def test_what_is_no_http_is_told_in_the_shape_of_every_error(port, data):
    told = ask(port, data)
    assert told.refusal == (400, "invalid_http")
    assert told.headers["connection"] == "close"


def test_nonsense_after_a_request_is_no_answer_to_it(holding_port):
    call = posted(CHAT_PATH, json.dumps(CHAT | {"stream": True}).encode(), JSON, OURS)
    with connected(holding_port) as connection:
        connection.sendall(call + b"\x00\x00\r\n\r\n")
        assert b" 400 " not in received(connection)


def test_thousands_of_requests_in_one_packet_are_not_kept(holding_port, generator):
    with connected(holding_port) as connection:
        connection.sendall(CALL + head("/health") * 1000)
        assert is_closed(connection)
    generator.wait_until_running(0)
    # Who leaves with requests behind the one that runs leaves that one, too.
    with connected(holding_port) as connection:
        connection.sendall(CALL + head("/health") * 3)
        generator.wait_until_running(1)
    generator.wait_until_running(0)
    # Also where they come later.
    with connected(holding_port) as connection:
        connection.sendall(CALL)
        generator.wait_until_running(1)
        connection.sendall(head("/health") * 3)


def test_other_protocols_are_not_spoken(port):
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    assert ask(port, head("/health", *upgrade, key)).status == 200


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")


@pytest.mark.parametrize("declared", [True, False], ids=["body", "no body"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one packet", "two"])
def test_what_follows_an_upgrade_is_no_request(port, declared, at_once):
    smuggled = head("/v1/models", OURS)
    length = (f"Content-Length: {len(smuggled)}",) if declared else ()
    first = head(CHAT_PATH, JSON, *UPGRADE, *length, method="POST")
    with connected(port) as connection:
        told = ask_on(connection, first + smuggled if at_once else first)
        if not at_once:
            with suppress(ConnectionError):
                connection.sendall(smuggled)
        assert (told.status, told.headers["connection"]) == (401, "close")
        assert read_answer(connection).status == 0


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_with_an_upgrade_is_read(port_with, framing):
    if framing == "length":
        declared, body = f"Content-Length: {len(BODY)}", BODY
    else:
        declared, body = "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    call = head(CHAT_PATH, JSON, OURS, *UPGRADE, declared, method="POST")
    port = port_with()
    smuggled = head("/v1/models", OURS)
    for pieces in ([call + body + smuggled], [call, body[:9], body[9:]], [*map(bytes, zip(call))]):
        with connected(port) as connection:
            for piece in pieces:
                connection.sendall(piece)
            if len(pieces) > 3:
                connection.sendall(body)
            told = read_answer(connection)
            assert (told.status, told.headers["connection"]) == (200, "close")
            assert read_answer(connection).status == 0


def test_trailers_are_no_headers(port):
    # A proxy that checks headers does not see them.
    call = head(CHAT_PATH, JSON, "Transfer-Encoding: chunked", method="POST")
    end = f"0\r\n{OURS}\r\nX-Tier: gold\r\n\r\n".encode()
    assert ask(port, call + b"%x\r\n%s\r\n" % (len(BODY), BODY) + end).status == 401


UNFINISHED = b"GET /health HTTP/1.1\r\nX: " + b"v" * (60 << 10)


def test_unfinished_heads_of_all_connections_are_bounded(port_with, few_unfinished_bytes):
    port = port_with(head_timeout_s=1000.0)
    with crowd(port, 8) as flood, connected(port) as small:
        small.sendall(head("/health")[:-2])
        for connection in flood:
            connection.sendall(UNFINISHED)
        assert all(map(is_closed, flood[:4]))
        for connection in flood[4:]:
            connection.sendall(b"\r\n\r\n")
        assert ask_on(small, b"\r\n").status == 200


def test_the_body_of_a_refused_request_is_not_kept(port_with, monkeypatch):
    made = []

    def remember(cycle, *args, **kwargs) -> None:
        made.append(cycle)
        init(cycle, *args, **kwargs)

    init = RequestResponseCycle.__init__
    monkeypatch.setattr(RequestResponseCycle, "__init__", remember)
    with connected(port_with()) as connection:
        assert ask_on(connection, posted(CHAT_PATH, b" " * (48 << 10), JSON)).status == 401
        # The connection stays; its next request is served.
        assert ask_on(connection, head("/health")).status == 200
        assert [len(cycle.body) for cycle in made] == [0, 0]


def test_what_waits_behind_an_answer_is_bounded_in_sum(
    few_unfinished_bytes, holding_port, generator
):
    behind = posted(CHAT_PATH, b" " * (60 << 10), JSON)
    with crowd(holding_port, 8) as flood:
        for place, connection in enumerate(flood[:3], 1):
            connection.sendall(CALL)
            generator.wait_until_running(place)
            connection.sendall(behind)
        # Whoever has held much for longest goes, and its call with it.
        for connection in flood[3:]:
            connection.sendall(UNFINISHED)
        assert all(map(is_closed, flood[:3]))


def test_small_heads_behind_an_answer_count_as_what_they_take(
    few_unfinished_bytes, holding_port, generator
):
    with connected(holding_port) as connection:
        connection.sendall(CALL)
        generator.wait_until_running(1)
        connection.sendall(head("/health", *["a:"] * 90) * 20)
        assert is_closed(connection)


def test_many_files_do_not_mean_as_many_connections(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (524_288, 524_288))
    assert ConnectionGate(ConnectionLimits())._capacity().normal == MOST_CONNECTIONS
    assert ConnectionGate(ConnectionLimits(connections=100_000))._capacity().normal == 100_000


def test_after_a_fault_of_ours_a_pooled_connection_is_not_reset(port_with, generator):
    generator.script = Script(failure=ZeroDivisionError("secret"))
    url, ours = f"http://127.0.0.1:{port_with()}", {"Authorization": "Bearer key"}
    with httpx2.Client(base_url=url, headers=ours) as client:
        for _ in range(5):
            fault = client.post(CHAT_PATH, json=CHAT)
            assert (fault.status_code, fault.headers["connection"]) == (500, "close")
            assert "secret" not in fault.text
            assert client.get("/v1/models").status_code == 200


def test_a_compressed_body_is_told_as_such(port_with):
    port, body = port_with(), gzip.compress(BODY)
    for encoding in ("gzip", "identity, br", "x" * 9999):
        told = ask(port, posted(CHAT_PATH, body, JSON, OURS, f"Content-Encoding: {encoding}"))
        assert told.refusal == (415, "unsupported_content_encoding")
    plain = posted(CHAT_PATH, BODY, JSON, OURS, "Content-Encoding: identity")
    assert ask(port, plain).status == 200


async def test_the_health_port_of_a_worker_has_the_same_bounds():
    port = free_port()

    def attack() -> list[Answer]:
        told = [pour(port, b"GET /health HTTP/1.1\r\nX: ", b"v" * 65536, 64 * MIB)]
        with crowd(port, 200):
            told += [ask(port, head(path)) for path in ("/health", "/ready", "/health")]
        return told

    serving = asyncio.create_task(serve_health(MemberHealth("w"), port))
    while True:
        try:
            await asyncio.to_thread(lambda: connected(port).close())
            break
        except ConnectionError:
            await asyncio.sleep(0)
    poured, *probes = await asyncio.to_thread(attack)
    serving.cancel()
    await asyncio.wait([serving])
    assert (poured.status, poured.sent_bytes < ON_THE_WAY_BYTES) == (431, True)
    assert [probe.status for probe in probes] == [200, 503, 200]
