"""What each attack costs a server, measured from its outside and by the meters in its processes."""

import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attacks.clients import call
from tests.attacks.heavy_calls import CHAT, USER, Body, heavy_bodies, huge_bodies, long_answers
from tests.attacks.metered_server import MIB, PATIENCE_S, MeteredServer, metered_server, tiny_model

GATEWAY, WORKER = "gateway-process", "worker-process"
SPLIT = ("--prefill", "1", "--decode", "1", "--port", "0", "--threads", "1")
KV = ("--kv-cache-memory", "512MiB")
SHORT_TOKENS, LONG_TOKENS = 4096, 131_072
# Answers that long take the tiny model half a minute each.
ANSWER_TOKENS = 8192
# Of each body, of which the median counts: a machine has other things to do now and then. An answer
# is thousands of steps as it is.
TRIES = 3
HELLO: dict[str, Any] = {"messages": [USER], "max_tokens": 8, "temperature": 0}
AT_ONCE = 12
OFTEN = 3
SOCKETS, FILES = 5000, 1024
PROBES, PROBE_S = 100, 0.02
# Of a worker, and the metric that tells how many of them are taken.
SEATS, RUNNING = 64, "tandem:num_requests_running"
# Whose answers take that long has none.
QUIET_ASKS, QUIET_S = 5, 20.0


@dataclass(frozen=True)
class Cost:
    """`value` in `unit`, at most `limit`, if it has one."""

    attack: str
    value: float
    unit: str
    limit: float | None = None
    detail: str = ""

    @property
    def limit_shown(self) -> str:
        return "" if self.limit is None else f"{self.limit:,.4g} {self.unit}"

    @property
    def too_much(self) -> bool:
        return self.limit is not None and self.value > self.limit


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def post(port: int, path: str, body: bytes, key: str = "", patience_s: float = PATIENCE_S) -> int:
    """The answer's status; 0 where the connection broke or nothing came in time."""
    return call(port, path, body, key=key, patience_s=patience_s).status


def stalls(checkout: Path) -> list[Cost]:
    return [
        *_stalls(checkout, SHORT_TOKENS, SHORT_TOKENS),
        *_stalls(checkout, LONG_TOKENS, ANSWER_TOKENS),
    ]


def _stalls(checkout: Path, context_tokens: int, answer_tokens: int) -> list[Cost]:
    """The longest of the heaviest bodies, and of the heaviest answers."""
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder) / "tiny", context_tokens)
        command = ("serve", str(model), "--load-format", "dummy", *SPLIT, *KV)
        with metered_server(checkout, *command) as server:
            # The model ends none of them early.
            answers = long_answers(answer_tokens, ignore_eos=True)
            for name, bodies, tries in (
                (f"bodies, context of {context_tokens:,}", heavy_bodies(context_tokens), TRIES),
                (f"answers of {answer_tokens:,} tokens", answers, 1),
            ):
                worst = {GATEWAY: (0.0, ""), WORKER: (0.0, "")}
                for kind, body in bodies.items():
                    for role, stall_ms in _stalls_ms(server, kind, body, tries).items():
                        worst[role] = max(worst[role], (stall_ms, kind))
                costs += [
                    Cost(f"{name}: longest stall of a {role}", stall_ms, "ms", 20.0, kind)
                    for role, (stall_ms, kind) in worst.items()
                ]
    return costs


def _stalls_ms(server: MeteredServer, kind: str, body: Body, tries: int) -> dict[str, float]:
    """Medians of the tries, for each role."""
    measured: dict[str, list[float]] = {GATEWAY: [], WORKER: []}
    for _ in range(tries):
        server.forget_stalls()
        begin_s = time.perf_counter()
        status = post(server.port, *body)
        took_s = time.perf_counter() - begin_s
        for role, values in measured.items():
            values.append(server.stall_s(role) * 1e3)
    medians = {role: statistics.median(values) for role, values in measured.items()}
    note(
        f"{kind:32} {len(body[1]):>10,} B  {status}  {took_s:6.2f} s  "
        + "  ".join(f"{role} {[round(v, 1) for v in values]}" for role, values in measured.items())
    )
    return medians


def memory(checkout: Path) -> list[Cost]:
    """Everything at once, several times, at a gateway of the bundled model."""
    heavy = [*heavy_bodies(SHORT_TOKENS).values()]
    heavy += long_answers(SHORT_TOKENS, ignore_eos=True).values()
    attacks = heavy * OFTEN
    random.Random(0).shuffle(attacks)
    attacks[:0] = huge_bodies(CHAT)
    with metered_server(checkout, "serve", *SPLIT, *KV) as server:
        before_mib = server.peak_mib(GATEWAY)
        with ThreadPoolExecutor(AT_ONCE) as clients:
            statuses = list(clients.map(lambda attack: post(server.port, *attack), attacks))
        note(f"memory: {Counter(statuses)}")
        alive = post(server.port, CHAT, json.dumps(HELLO).encode())
        peak_mib = server.peak_mib(GATEWAY)
    return [
        Cost(
            f"{len(attacks)} heaviest bodies and answers, {AT_ONCE} at once: peak of the gateway",
            peak_mib,
            "MiB",
            1024.0,
            f"{before_mib:.0f} before; then a request: {alive}",
        )
    ]


def heads(checkout: Path) -> list[Cost]:
    """Request heads without end by somebody who has no key: of many fields, and of one."""
    costs = []
    many, one = b"x:y\r\n" * (MIB // 5), b"v" * MIB
    for attack, start, part, parts in (
        ("64 MiB of small header fields", b"", many, 64),
        ("one header field of 32 MiB", b"x:", one, 32),
    ):
        with metered_server(checkout, "serve", *SPLIT, *KV, "--api-key", "k" * 32) as server:
            before_mib = server.peak_mib(GATEWAY)
            server.forget_stalls()
            sent_mib = _send_head(server.port, start, part, parts)
            note(f"heads: {attack}, {sent_mib} MiB of it sent")
            more_mib = server.peak_mib(GATEWAY) - before_mib
            stall_ms = server.stall_s(GATEWAY) * 1e3
        costs += [
            Cost(f"{attack}, no key: memory of the gateway", more_mib, "MiB", 64.0),
            Cost(f"{attack}, no key: longest stall", stall_ms, "ms", 20.0),
        ]
    return costs


def _send_head(port: int, start: bytes, part: bytes, parts: int) -> int:
    """How many parts were sent when the server broke the connection, or all."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        try:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + start)
            for _ in range(parts):
                client.sendall(part)
                sent += 1
            client.sendall(b"\r\n\r\n")
            client.recv(1 << 16)
        except OSError as error:
            note(f"heads: {error}")
    return sent


def connections(checkout: Path) -> list[Cost]:
    """Idle sockets, more than the server has descriptors for."""
    with metered_server(checkout, "serve", *SPLIT, *KV, files=FILES) as server:
        idle = []
        try:
            for _ in range(SOCKETS):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", server.port))
                idle.append(client)
            statuses = [_probed(server.port) for _ in range(PROBES)]
        finally:
            for client in idle:
                client.close()
    note(f"connections: {Counter(statuses)}")
    missed = sum(status != 200 for status in statuses)
    attack = f"{SOCKETS:,} idle sockets on {FILES:,} files: probes of {PROBES} without a 200"
    return [Cost(attack, missed, "", 0.0)]


def _probed(port: int) -> int:
    time.sleep(PROBE_S)
    return call(port, "/health", patience_s=1.0).status


def tenants(checkout: Path) -> list[Cost]:
    """One key floods with all that it may ask; another asks now and then."""
    loud, quiet = "l" * 32, "q" * 32
    keys = ("--api-key", loud, "--api-key", quiet)
    # One worker for both phases: its seats are what they fight for.
    one = ("--workers", "1", "--port", "0", "--threads", "1")
    with metered_server(checkout, "serve", *one, *KV, *keys) as server:
        alone_s = [_answer_s(server.port, quiet) for _ in range(QUIET_ASKS)]
        with _flooded(server.port, loud):
            beside_s = [_answer_s(server.port, quiet) for _ in range(QUIET_ASKS)]
    note(
        f"tenants: alone {[round(s, 3) for s in alone_s]} beside {[round(s, 3) for s in beside_s]}"
    )
    return [
        Cost(
            "another key floods, 8 calls of n=64 at the highest priority: an answer of a quiet one",
            statistics.median(beside_s),
            "s",
            detail=f"alone {statistics.median(alone_s):.2g}",
        )
    ]


@contextmanager
def _flooded(port: int, key: str) -> Iterator[None]:
    """Eight clients ask anew, as often as they are answered."""
    asked = HELLO | {"n": 64, "max_tokens": 64, "priority": -(1 << 31), "ignore_eos": True}
    body = json.dumps(asked | {"temperature": 1}).encode()
    over = threading.Event()
    statuses: list[int] = []

    def flood() -> None:
        while not over.is_set():
            statuses.append(post(port, CHAT, body, key))

    clients = [threading.Thread(target=flood) for _ in range(8)]
    for client in clients:
        client.start()
    try:
        until_s = time.monotonic() + PATIENCE_S
        while _running(port) < SEATS:
            assert time.monotonic() < until_s, "the flood does not take the worker's seats"
            time.sleep(PROBE_S)
        yield
    finally:
        over.set()
        for client in clients:
            client.join()
        note(f"flood: {Counter(statuses)}")


def _running(port: int) -> float:
    """Requests that the worker answers just now."""
    lines = call(port, "/metrics", patience_s=5.0).body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(RUNNING))


def _answer_s(port: int, key: str) -> float:
    begin_s = time.perf_counter()
    post(port, CHAT, json.dumps(HELLO).encode(), key, QUIET_S)
    return min(QUIET_S, time.perf_counter() - begin_s)


COSTS: dict[str, Callable[[Path], list[Cost]]] = {
    "heads": heads,
    "connections": connections,
    "tenants": tenants,
    "memory": memory,
    "stalls": stalls,
}
