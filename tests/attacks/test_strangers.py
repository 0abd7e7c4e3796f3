"""Strangers at the port: endless heads, connections that say nothing, floods of them, and what is
hardly HTTP. All of it before anybody looks at a key."""

import asyncio
import gzip
import json
import resource
import socket
from contextlib import ExitStack, suppress

import httpx2
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ConnectionLimits
from tandem.api.connections.gate import MOST_CONNECTIONS, ConnectionGate
from tandem.live.processes.member_health import MemberHealth, serve_health
from tandem.text.model import TextModel
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.api.server import serving
from tests.attacks.raw_client import (
    Told,
    ask,
    connected,
    head,
    is_closed,
    pour,
    read_answer,
)
from tests.text.tiny_checkpoint import write_checkpoint

MIB = 1 << 20
# What is on its way when the server closes lies in the buffers of two sockets.
ON_THE_WAY_BYTES = 24 * MIB
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
CHAT_PATH = "/v1/chat/completions"
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture
def generator(text):
    return ScriptedGenerator(text)


@pytest.fixture
def port_with(generator, text):
    """Starts a server with these limits, with a key; gives its port."""
    with ExitStack() as undo:

        def start(**limits) -> int:
            app = build_app(generator, text, ApiConfig(api_keys=("key",)))
            return undo.enter_context(serving(app, ConnectionLimits(**limits)))

        yield start


@pytest.fixture(scope="module")
def port(text):
    with serving(build_app(ScriptedGenerator(text), text, ApiConfig(api_keys=("key",)))) as port:
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
    assert told.status == 431
    assert told.error["code"] == "head_too_large"
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
    body = b" " * 5000
    large = head(CHAT_PATH, JSON, f"Content-Length: {len(body)}", method="POST") + body
    with connected(port) as connection:
        for _ in range(2):
            connection.sendall(large)
            assert read_answer(connection).status == 401
        connection.sendall(head("/health") * 10)
        assert read_answer(connection).status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX"], ids=["nothing", "a part"])
def test_a_head_that_does_not_come_is_not_waited_for(port_with, sent):
    with connected(port_with(head_timeout_s=0.2)) as connection:
        connection.sendall(sent)
        told = read_answer(connection)
        assert told.status == (408 if sent else 0)
        assert not sent or told.error["code"] == "head_timeout"
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
    with ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(connected(port))
        for path in ("/health", "/ready", "/metrics"):
            for _ in range(5):
                assert ask(port, head(path)).status == 200
        refused = ask(port, head("/v1/models", "Authorization: Bearer key"))
        assert refused.status == 503
        assert refused.headers["retry-after"] in ("1", "2")
        assert refused.error["code"] == "too_many_connections"
        other = ask(port, head("/v1/models", "Authorization: Bearer key"), "127.0.0.2")
        assert other.status == 200


def test_probes_are_answered_where_every_place_is_at_work(port_with, generator):
    generator.script = Script(hold_after=1)
    port = port_with(connections=3, connections_per_address=3)
    body = json.dumps(CHAT).encode()
    ours = "Authorization: Bearer key"
    long_call = head(CHAT_PATH, JSON, ours, f"Content-Length: {len(body)}", method="POST") + body
    with ExitStack() as streams:
        for _ in range(3):
            streams.enter_context(connected(port)).sendall(long_call)
        generator.wait_until_running(3)
        told = ask(port, head("/health"))
        assert (told.status, told.headers["connection"]) == (200, "close")
        assert ask(port, head("/v1/models", ours)).error["code"] == "too_many_connections"
    generator.wait_until_running(0)
    assert ask(port, head("/v1/models", ours)).status == 200


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
    assert told.status == 400
    assert told.error["code"] == "invalid_http"
    assert told.headers["connection"] == "close"


def test_nonsense_after_a_request_is_no_answer_to_it(port_with, generator):
    generator.script = Script(hold_after=1)
    port = port_with()
    body = json.dumps(CHAT | {"stream": True}).encode()
    ours = "Authorization: Bearer key"
    call = head(CHAT_PATH, JSON, ours, f"Content-Length: {len(body)}", method="POST") + body
    with connected(port) as connection:
        connection.sendall(call + b"\x00\x00\r\n\r\n")
        rest = b""
        with suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                rest += part
        assert b" 400 " not in rest
    generator.wait_until_running(0)


def test_thousands_of_requests_in_one_packet_are_not_kept(port_with, generator):
    generator.script = Script(hold_after=1)
    port, body, ours = port_with(), json.dumps(CHAT).encode(), "Authorization: Bearer key"
    call = head(CHAT_PATH, JSON, ours, f"Content-Length: {len(body)}", method="POST") + body
    with connected(port) as connection:
        connection.sendall(call + head("/health") * 1000)
        assert is_closed(connection)
    generator.wait_until_running(0)
    # Who leaves with requests behind the one that runs leaves that one, too.
    with connected(port) as connection:
        connection.sendall(call + head("/health") * 3)
        generator.wait_until_running(1)
    generator.wait_until_running(0)
    # Also where they come later.
    with connected(port) as connection:
        connection.sendall(call)
        generator.wait_until_running(1)
        connection.sendall(head("/health") * 3)
    generator.wait_until_running(0)


def test_other_protocols_are_not_spoken(port):
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    assert ask(port, head("/health", *upgrade, key)).status == 200


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")


@pytest.mark.parametrize("declared", [True, False], ids=["body", "no body"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one packet", "two"])
def test_what_follows_an_upgrade_is_no_request(port, declared, at_once):
    smuggled = head("/v1/models", "Authorization: Bearer key")
    length = (f"Content-Length: {len(smuggled)}",) if declared else ()
    first = head(CHAT_PATH, JSON, *UPGRADE, *length, method="POST")
    with connected(port) as connection:
        if at_once:
            connection.sendall(first + smuggled)
            told = read_answer(connection)
        else:
            connection.sendall(first)
            told = read_answer(connection)
            with suppress(ConnectionError):
                connection.sendall(smuggled)
        assert (told.status, told.headers["connection"]) == (401, "close")
        assert read_answer(connection).status == 0


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_a_body_with_an_upgrade_is_read(port_with, framing):
    body, ours = json.dumps(CHAT).encode(), "Authorization: Bearer key"
    if framing == "length":
        declared = f"Content-Length: {len(body)}"
    else:
        declared, body = "Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    call = head(CHAT_PATH, JSON, ours, *UPGRADE, declared, method="POST")
    port = port_with()
    smuggled = head("/v1/models", ours)
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
    body = json.dumps(CHAT).encode()
    end = b"0\r\nAuthorization: Bearer key\r\nX-Tier: gold\r\n\r\n"
    assert ask(port, call + b"%x\r\n%s\r\n" % (len(body), body) + end).status == 401


def test_unfinished_heads_of_all_connections_are_bounded(port_with, monkeypatch):
    monkeypatch.setattr("tandem.api.connections.gate.UNFINISHED_BYTES", 256 << 10)
    port = port_with(head_timeout_s=1000.0)
    unfinished = b"GET /health HTTP/1.1\r\nX: " + b"v" * (60 << 10)
    with ExitStack() as undo:
        flood = [undo.enter_context(connected(port)) for _ in range(8)]
        small = undo.enter_context(connected(port))
        small.sendall(head("/health")[:-2])
        for connection in flood:
            connection.sendall(unfinished)
        for connection in flood[:4]:
            assert is_closed(connection)
        for connection in (small, *flood[4:]):
            connection.sendall(b"\r\n" if connection is small else b"\r\n\r\n")
        assert read_answer(small).status == 200


def test_the_body_of_a_refused_request_is_not_kept(port_with, monkeypatch):
    made = []

    def remember(cycle, *args, **kwargs) -> None:
        made.append(cycle)
        init(cycle, *args, **kwargs)

    init = RequestResponseCycle.__init__
    monkeypatch.setattr(RequestResponseCycle, "__init__", remember)
    with connected(port_with()) as connection:
        call = head(CHAT_PATH, JSON, f"Content-Length: {48 << 10}", method="POST")
        connection.sendall(call + b" " * (48 << 10))
        assert read_answer(connection).status == 401
        # The connection stays; its next request is served.
        connection.sendall(head("/health"))
        assert read_answer(connection).status == 200
        assert [len(cycle.body) for cycle in made] == [0, 0]


def test_what_waits_behind_an_answer_is_bounded_in_sum(port_with, generator, monkeypatch):
    monkeypatch.setattr("tandem.api.connections.gate.UNFINISHED_BYTES", 256 << 10)
    generator.script = Script(hold_after=1)
    port, body, ours = port_with(), json.dumps(CHAT).encode(), "Authorization: Bearer key"
    call = head(CHAT_PATH, JSON, ours, f"Content-Length: {len(body)}", method="POST") + body
    behind = head(CHAT_PATH, JSON, f"Content-Length: {60 << 10}", method="POST") + b" " * (60 << 10)
    unfinished = b"GET /health HTTP/1.1\r\nX: " + b"v" * (60 << 10)
    with ExitStack() as undo:
        flood = [undo.enter_context(connected(port)) for _ in range(8)]
        for place, connection in enumerate(flood[:3], 1):
            connection.sendall(call)
            generator.wait_until_running(place)
            connection.sendall(behind)
        # Whoever has held much for longest goes, and its call with it.
        for connection in flood[3:]:
            connection.sendall(unfinished)
        assert all(map(is_closed, flood[:3]))
    generator.wait_until_running(0)


def test_small_heads_behind_an_answer_count_as_what_they_take(port_with, generator, monkeypatch):
    monkeypatch.setattr("tandem.api.connections.gate.UNFINISHED_BYTES", 256 << 10)
    generator.script = Script(hold_after=1)
    port, body, ours = port_with(), json.dumps(CHAT).encode(), "Authorization: Bearer key"
    call = head(CHAT_PATH, JSON, ours, f"Content-Length: {len(body)}", method="POST") + body
    with connected(port) as connection:
        connection.sendall(call)
        generator.wait_until_running(1)
        connection.sendall(head("/health", *["a:"] * 90) * 20)
        assert is_closed(connection)
    generator.wait_until_running(0)


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
    body = gzip.compress(json.dumps(CHAT).encode())
    ours = ("Authorization: Bearer key", JSON, f"Content-Length: {len(body)}")
    port = port_with()
    for encoding in ("gzip", "identity, br", "x" * 9999):
        call = head(CHAT_PATH, *ours, f"Content-Encoding: {encoding}", method="POST")
        told = ask(port, call + body)
        assert (told.status, told.error["code"]) == (415, "unsupported_content_encoding")
    plain = json.dumps(CHAT).encode()
    ours = (*ours[:2], f"Content-Length: {len(plain)}", "Content-Encoding: identity")
    assert ask(port, head(CHAT_PATH, *ours, method="POST") + plain).status == 200


def test_the_health_port_of_a_worker_has_the_same_bounds():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def attack() -> list[Told]:
        told = [pour(port, b"GET /health HTTP/1.1\r\nX: ", b"v" * 65536, 64 * MIB)]
        with ExitStack() as idle:
            for _ in range(200):
                idle.enter_context(connected(port))
            told += [ask(port, head(path)) for path in ("/health", "/ready", "/health")]
        return told

    async def main() -> list[Told]:
        serving = asyncio.create_task(serve_health(MemberHealth("w"), port))
        while True:
            try:
                await asyncio.to_thread(lambda: connected(port).close())
                break
            except ConnectionError:
                await asyncio.sleep(0)
        told = await asyncio.to_thread(attack)
        serving.cancel()
        await asyncio.wait([serving])
        return told

    poured, *probes = asyncio.run(main())
    assert (poured.status, poured.sent_bytes < ON_THE_WAY_BYTES) == (431, True)
    assert [probe.status for probe in probes] == [200, 503, 200]
