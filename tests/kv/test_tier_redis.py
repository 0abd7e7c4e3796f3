"""What a Redis may do to those who keep blocks in it: fill up, hang, die, come back empty."""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import pytest
import redis

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import choose_transfer
from tandem.kv.tiers.block_records import HEADER_BYTES
from tandem.kv.tiers.contract import Found, Kept
from tandem.kv.tiers.redis import RedisStore
from tandem.kv.tiers.redis_client import Breaker, RedisConfig
from tests.kv.ending import closing
from tests.kv.tier_blocks import (
    FORMAT,
    PATIENCE_S,
    RedisServer,
    contents,
    digests,
    name,
    names,
    redis_server,
    rows,
    whole,
)
from tests.waiting import until

# Short, so that tests are; a machine under load still answers in that time.
SILENCE_S = 0.3
PASSWORD = "open-sesame"
SECRET = b"what only the cluster knows"


def opened(url: str, capacity: int = 20, format: BlockFormat = FORMAT, **options):
    given = {"silence_s": SILENCE_S, "retry_s": 0.05, "most_retry_s": 0.1} | options
    config = RedisConfig(url, capacity, **given)
    return closing(RedisStore(config, format, choose_transfer(), time.monotonic_ns, secret=SECRET))


@pytest.fixture
def server(tmp_path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def store(server) -> Iterator[RedisStore]:
    with opened(server.url) as store:
        yield store


@pytest.fixture
def client(server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        yield client


def put(store: RedisStore, named: Sequence[BlockName]) -> Kept:
    return store.put_blocks(named, contents(named))


def recovered(store: RedisStore, named: Sequence[BlockName]) -> Kept:
    """As soon as the server is asked again."""

    def kept() -> Kept | None:
        found = put(store, named)
        return None if found.problem else found

    return until(kept, PATIENCE_S)


def on_server(store: RedisStore, client: redis.Redis) -> list[int]:
    """Which of the first blocks the server has."""
    return [n for n in range(12) if client.exists(store._key(name(n).digest))]


def test_blocks_outlive_the_process_in_the_order_they_were_stored(server):
    order = [name(3, tenant="A"), name(1), name(2)]
    with opened(server.url) as store:
        assert store.stored_blocks() == ()
        put(store, order)
    with opened(server.url) as store:
        assert store.stored_blocks() == tuple(order)
        put(store, [name(9)])
    with opened(server.url, 2) as store:
        # What is too much is given up, the oldest first.
        assert store.stored_blocks() == (name(2), name(9))
        assert store.get_blocks([name(3)], rows(1)) == Found(0, missing=(name(3).digest,))


def test_owners_and_formats_are_kept_apart(server, client):
    others = [
        opened(server.url, owner="pool-1"),
        opened(server.url, owner="*[a]-?"),
        opened(server.url, format=BlockFormat(b"x" * 16, FORMAT.block_bytes)),
    ]
    with opened(server.url) as store:
        put(store, names(2))
        for other in others:
            with other as apart:
                assert apart.stored_blocks() == ()
                assert apart.get_blocks(names(1), rows(1)).blocks == 0
                put(apart, [name(7)])
                assert apart.stored_blocks() == (name(7),)
        assert store.stored_blocks() == tuple(names(2))
    keys = client.keys()
    assert len(keys) == 5
    assert all(key.startswith(b"tandem:") for key in keys)


def test_damaged_values_never_come_out(store, client):
    put(store, names(8))
    keys = [store._key(one.digest) for one in names(8)]
    value = client.get(keys[1])
    damaged = [
        value[:5],
        value + b"x",
        value[:-1] + bytes([value[-1] ^ 1]),
        client.get(keys[2]),
        b"\0" + value[1:],
        value[:HEADER_BYTES] + bytes(FORMAT.block_bytes),
        b"",
    ]
    for wrong in damaged:
        client.set(keys[1], wrong)
        room = rows(8)
        assert store.get_blocks(names(8), room) == Found(1, corrupt=(name(1).digest,))
        assert whole(names(1), room[:1])
        assert client.exists(keys[1]) == 0
    client.hset(keys[1], "something", "else")
    assert store.get_blocks(names(8), rows(8)) == Found(1, missing=(name(1).digest,))


def test_what_the_server_dropped_is_missing(store, client):
    put(store, names(3))
    client.flushall()
    assert store.get_blocks(names(3), rows(3)) == Found(0, missing=(name(0).digest,))


def test_a_full_server_refuses_and_the_rest_can_be_read(tmp_path):
    options = ("--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
    format = BlockFormat(FORMAT.root, 100_000)
    with redis_server(tmp_path, *options) as server, opened(server.url, format=format) as store:
        blocks = names(20)
        bytes_of = [row.repeat(34)[:100_000].copy() for row in contents(blocks)]
        kept = store.put_blocks(blocks, bytes_of)
        stored = blocks[: len(kept.digests)]
        assert 0 < len(stored) < 20
        assert kept.digests == digests(stored)
        assert "maxmemory" in kept.problem
        room = rows(len(stored), 100_000)
        assert store.get_blocks(stored, room) == Found(len(stored))
        assert all((a == b).all() for a, b in zip(room, bytes_of, strict=False))
        store.forget_blocks(digests(stored[:5]))
        assert store.put_blocks(blocks[-2:], bytes_of[-2:]) == Kept(digests(blocks[-2:]))


def test_a_server_that_is_killed_and_comes_back_empty(server, store):
    put(store, names(3))
    server.kill()
    found = store.get_blocks(names(3), rows(3))
    assert (found.blocks, found.missing, found.corrupt) == (0, (), ())
    assert found.problem.startswith("redis: ")
    # Left alone now: no call is made, no time is lost.
    assert put(store, names(3)).problem == found.problem
    store.forget_blocks(digests(names(3)))
    server.start()
    assert recovered(store, names(2)) == Kept(digests(names(2)))
    assert store.get_blocks(names(3), rows(3)) == Found(2, missing=(name(2).digest,))


def test_a_server_that_restarted_meanwhile_is_no_trouble(server, store):
    put(store, names(3))
    server.kill()
    server.start()
    assert store.get_blocks(names(3), rows(3)) == Found(0, missing=(name(0).digest,))
    assert put(store, names(3)) == Kept(digests(names(3)))


@pytest.mark.parametrize("call", ["put", "get", "forget", "listing"])
def test_a_server_that_hangs_costs_its_time_once(server, call):
    with opened(server.url, retry_s=60, most_retry_s=60) as store:
        put(store, names(3))
        with server.hanging():
            for bound_s in (10 * SILENCE_S, 0.1):
                begun_s = time.monotonic()
                if call == "put":
                    assert put(store, names(9)).problem
                elif call == "get":
                    assert store.get_blocks(names(3), rows(3)).problem
                elif call == "forget":
                    store.forget_blocks(digests(names(3)))
                else:
                    assert store.stored_blocks() == ()
                assert time.monotonic() - begun_s < bound_s


def test_what_was_forgotten_in_vain_is_forgotten_later(server, store, client):
    put(store, names(4))
    with server.hanging():
        store.forget_blocks(digests(names(3)))
    # One of them is stored anew before that.
    assert recovered(store, [name(9), name(1)]).digests == digests([name(9), name(1)])
    assert on_server(store, client) == [1, 3, 9]


def test_what_was_stored_though_its_answer_was_lost_is_forgotten(server, store, client):
    put(store, names(1))
    with server.hanging():
        assert put(store, names(4)[1:]).problem
        # It has no time to store one of them after all.
        assert put(store, [name(1)]).digests == ()
    until(lambda: client.dbsize() == 4)
    recovered(store, [name(9)])
    assert on_server(store, client) == [0, 9]


def test_no_late_answer_is_taken_for_another(server, store):
    """After a time-out the connection is not used again."""
    blocks = names(6)
    put(store, blocks)
    for turn in range(4):
        with server.hanging():
            assert store.get_blocks(blocks[:3], rows(3)).problem
        recovered(store, [name(10 + turn)])
        room = rows(3)
        assert store.get_blocks(blocks[3:], room) == Found(3)
        assert whole(blocks[3:], room)


def test_nobody_is_there(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with opened(f"redis://127.0.0.1:{port}/0") as store:
        assert store.stored_blocks() == ()
        assert "refused" in store.problem
        assert "refused" in put(store, names(1)).problem


@contextmanager
def slowed(port: int, bytes_per_s: float) -> Iterator[int]:
    """Forwards what a server sends, at that speed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def forward(source: socket.socket, target: socket.socket, rate: float) -> None:
            with source, target:
                while data := source.recv(1 + int(rate / 50)):
                    target.sendall(data)
                    time.sleep(len(data) / rate)

        def accept() -> None:
            while True:
                try:
                    near, _ = listening.accept()
                except OSError:
                    return
                far = socket.create_connection(("127.0.0.1", port))
                ways = ((near, far, 1e9), (far, near, bytes_per_s))
                for way in ways:
                    Thread(target=_quietly, args=(forward, *way), daemon=True).start()

        Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _quietly(work, *arguments) -> None:
    try:
        work(*arguments)
    except OSError:
        return


def test_a_slow_server_gives_what_comes_in_time(server):
    with opened(server.url, capacity=100) as store:
        put(store, names(40))
    with (
        slowed(server.port, 100_000) as port,
        opened(f"redis://127.0.0.1:{port}/0", call_s=0.2, trip_bytes=7_000) as store,
    ):
        room, begun_s = rows(40), time.monotonic()
        found = store.get_blocks(names(40), room)
        assert time.monotonic() - begun_s < 2
        assert 0 < found.blocks < 40
        assert found.problem == "redis: took too long"
        assert whole(names(found.blocks), room[: found.blocks])


def test_passwords_are_used_and_never_shown(tmp_path):
    with redis_server(tmp_path, "--requirepass", PASSWORD) as server:
        url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"
        config = RedisConfig(url, 20)
        assert PASSWORD not in repr(config)
        with opened(url) as store:
            assert put(store, names(1)) == Kept(digests(names(1)))
            assert PASSWORD not in repr(store)
        with opened(url.replace(PASSWORD, "wrong-" + PASSWORD)) as store:
            problem = put(store, names(1)).problem
            assert "redis: " in problem
            assert PASSWORD not in problem


def test_over_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no certificate can be made here")
    secure = RedisServer(0, tmp_path, ()).port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        secure = probe.getsockname()[1]
    options = ["--tls-port", str(secure), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with redis_server(tmp_path, *options):
        trusted = f"rediss://127.0.0.1:{secure}/0?ssl_ca_certs={certificate}"
        with opened(trusted, silence_s=2) as store:
            assert put(store, names(2)) == Kept(digests(names(2)))
            assert store.get_blocks(names(2), rows(2)) == Found(2)
        with opened(f"rediss://127.0.0.1:{secure}/0") as store:
            assert "certificate" in put(store, names(1)).problem.lower()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *((url, "expected redis://") for url in ("", "127.0.0.1:6379", "http://127.0.0.1")),
        (f"redis://:{PASSWORD}@h:x", "expected redis://"),
        *(
            (f"redis://127.0.0.1:1/0?{option}", "options as redis-py has them")
            for option in ("bogus=1", "ssl_cert_reqs=none", "protocol=7", f"secret={PASSWORD}")
        ),
    ],
)
def test_a_wrong_url_or_option_is_refused_in_one_line(url, words):
    with pytest.raises(InvalidConfiguration, match=words) as refused:
        opened(url)
    assert "\n" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Gives this answer to whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(connection: socket.socket) -> None:
            with connection:
                while connection.recv(1 << 16):
                    connection.sendall(answer)

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                Thread(target=_quietly, args=(serve, connection), daemon=True).start()

        Thread(target=_quietly, args=(accept,), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "answer",
    [
        b"+OK\r\n" * 9,
        b":abc\r\n" * 9,
        b"*-1\r\n" * 9,
        b"-ASK\r\n" * 9,
        b"*1\r\n" * 5000,
        b"HTTP/1.1",
    ],
)
def test_what_is_no_answer_of_a_server_is_trouble_and_no_more(answer):
    with (
        answering(answer) as port,
        opened(f"redis://127.0.0.1:{port}/0", silence_s=0.05, retry_s=1e-6) as store,
    ):
        assert store.stored_blocks() == ()
        found = store.get_blocks(names(3), rows(3))
        assert not found.blocks
        assert found.problem or found.missing or found.corrupt
        put(store, names(3))
        store.forget_blocks(digests(names(3)))


def test_a_closed_store_leaves_no_connection(server, client):
    with opened(server.url) as store:
        put(store, names(1))
        assert len(client.client_list()) == 2
    until(lambda: len(client.client_list()) == 1)


def test_without_the_client_library(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidConfiguration, match=r"pip install 'tandem\[redis\]'"):
        opened("redis://127.0.0.1:1/0")


def test_a_breaker_waits_longer_each_time_and_then_tries_once():
    breaker, now_ns = Breaker(1.0, 30.0), 0
    assert not breaker.open(now_ns)
    for wait_s in (1, 2, 4, 8, 16, 30, 30):
        breaker.failed("gone", now_ns)
        assert breaker.open(now_ns)
        assert breaker.open(now_ns + wait_s * 10**9 - 1)
        now_ns += wait_s * 10**9
        assert not breaker.open(now_ns)
    breaker.worked()
    breaker.failed("again", now_ns)
    assert breaker.problem == "again"
    assert not breaker.open(now_ns + 10**9)
