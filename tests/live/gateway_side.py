"""The other side of worker processes, in the test: a gateway machine over a real socket, and the
processes themselves."""

import asyncio
import os
import select
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tandem.cluster.gateway.machine import GatewayConfig, GatewayMachine
from tandem.config.cluster.workers import HealthConfig
from tandem.config.options import ServeOptions
from tandem.config.processes import CurveKeys, WorkerSetup, write_setup
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import Overloaded
from tandem.facts.fleet import Role
from tandem.facts.kv import MoveReport
from tandem.facts.request import Request
from tandem.live.channels.gateway_channel import GatewayChannel
from tandem.live.channels.keys import Admitted, AdmittedKeys, PeerRole, make_keys
from tandem.live.channels.sockets import GatewayKeys
from tandem.live.clock import now_ns
from tandem.live.mailbox import Mailboxes
from tandem.live.processes.setups import WORKER_PROCESS
from tandem.messages.cluster import MoveEnded, Registered
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    ClusterStatus,
    Deliver,
    DrainAsked,
    Fence,
    GatewayEvent,
    MessageFromWorker,
    OperationEnded,
    PeerGone,
    SendToWorker,
    TimePassed,
    UndrainAsked,
)
from tandem.messages.router import Reject, RequestSubmitted
from tandem.policy.dispatch.contract import Transfer
from tests.config.clusters import POOL, cluster_of_one
from tests.live.toy_cluster import gateway_config as toy_gateway_config

PATIENCE_S = 60.0
BLOCK_SIZE = 16
MODEL, REVISION = "tandem-mini", "main"
OPTIONS = ServeOptions(
    threads=1, kv_cache_memory="64MiB", max_num_seqs=8, max_num_batched_tokens=64
)
HEALTH = HealthConfig(report_interval_s=0.05, heartbeat_timeout_s=10.0)
WELCOME = Registered("g0", 50_000_000, 10_000_000_000, 20_000_000_000)
GATEWAY_PAIR, WORKER_PAIR = make_keys()
WORKER = Admitted(PeerRole.WORKER, WORKER_PAIR.public)
KEYS = CurveKeys(
    gateway_public=GATEWAY_PAIR.public,
    worker_public=WORKER_PAIR.public,
    worker_secret=WORKER_PAIR.secret,
)


def gateway_config(root: CacheRoot, transfer: Transfer) -> GatewayConfig:
    return toy_gateway_config(
        root, WELCOME, block_size=BLOCK_SIZE, transfer=transfer, served=(MODEL, REVISION)
    )


class GatewaySide:
    """Lives on one event loop. `gone` are the peers that were lost, with why."""

    def __init__(self, config: GatewayConfig) -> None:
        self.machine = GatewayMachine(config)
        self.gone: list[tuple[str, str]] = []
        self.failed_moves: list[MoveEnded] = []
        self.ended: dict[int, OperationEnded | AuditEnded] = {}
        self._channel: GatewayChannel | None = None
        self._events: list[GatewayEvent] = []
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._mailboxes = Mailboxes()
        self._changed = asyncio.Condition()
        self._operations = 0

    def open(self, listen: str = "tcp://127.0.0.1:0") -> str:
        keys = GatewayKeys(GATEWAY_PAIR, AdmittedKeys([WORKER]))
        self._channel = GatewayChannel(listen, keys, self._take)
        return self._channel.open()

    async def close(self) -> None:
        assert self._channel is not None
        if self._timer:
            self._timer.cancel()
        await self._channel.close(0.0)

    async def generate(self, request: Request) -> list[int]:
        """All tokens of the answer."""
        mailbox = self._mailboxes.open(request.request_id)
        self._take(RequestSubmitted(request, request.sampling.max_tokens))
        tokens: list[int] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    output = await mailbox.next_output()
                    tokens += output.tokens
                    if output.finish_reason is not None:
                        return tokens
        finally:
            self._mailboxes.close(request.request_id)

    async def until(self, condition) -> None:
        """Wait until the machine is so."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(condition)

    async def members(self, *names: str) -> None:
        """Wait until exactly these are known."""
        await self.until(lambda: sorted(w.worker for w in self.status().workers) == sorted(names))

    async def drain(self, worker: str, then_role: Role | None = None, leave: bool = False) -> str:
        """Wait for the end of the drain; the problem, if any."""
        self._operations += 1
        operation = self._operations
        self._take(DrainAsked(operation, worker, then_role, leave))
        await self.until(lambda: operation in self.ended)
        return self.ended[operation].problem

    async def undrain(self, worker: str) -> None:
        self._operations += 1
        operation = self._operations
        self._take(UndrainAsked(operation, worker))
        await self.until(lambda: operation in self.ended)
        assert self.ended[operation].problem == ""

    async def audit(self) -> AuditEnded:
        self._operations += 1
        operation = self._operations
        self._take(AuditAsked(operation))
        await self.until(lambda: operation in self.ended)
        ended = self.ended[operation]
        assert isinstance(ended, AuditEnded)
        return ended

    def status(self) -> ClusterStatus:
        return self.machine.status(now_ns())

    def peer_of(self, worker: str) -> str:
        return next(member.peer for member in self.machine.members if member.name == worker)

    def send(self, peer: str, message) -> None:
        assert self._channel is not None
        self._channel.send(peer, message)

    def _take(self, event: Any) -> None:
        assert isinstance(event, GatewayEvent)
        if isinstance(event, PeerGone):
            self.gone.append((event.peer, event.reason))
        match event:
            case MessageFromWorker(_, MoveEnded(report=MoveReport(arrived=False))):
                self.failed_moves.append(event.message)
        self._events.append(event)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._turn = None
        assert self._channel is not None
        events, self._events = self._events, []
        for effect in self.machine.handle_together(events, now_ns()):
            match effect:
                case SendToWorker(peer, message):
                    self._channel.send(peer, message)
                case Deliver(emission):
                    self._mailboxes.deliver(emission)
                case Reject(request_id, reason, retry_after_s):
                    self._mailboxes.fail(request_id, Overloaded(reason, retry_after_s))
                case Fence(peer, reason):
                    self.gone.append((peer, reason))
                    self._channel.drop(peer)
                case OperationEnded(operation_id) | AuditEnded(operation_id):
                    self.ended[operation_id] = effect
        self._set_timer()
        self._waker = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        wakeup_ns = self.machine.next_wakeup()
        if wakeup_ns is not None:
            delay_s = max(0, wakeup_ns - now_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._take, TimePassed())


class Alive:
    """A process that is not our child, to be waited for."""

    def __init__(self, process_id: int) -> None:
        self._descriptor = os.pidfd_open(process_id)

    def wait_for_end(self) -> None:
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        assert waiting.poll(PATIENCE_S * 1000)
        os.close(self._descriptor)


def ranks_of(process_id: int) -> list[int]:
    """The processes of a worker's other ranks: it may start a compiler, too."""
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    return [child for child in map(int, text.split()) if b"processes.follower" in _command(child)]


def _command(process_id: int) -> bytes:
    """Empty for one that has just ended."""
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class LoopThread:
    """An event loop that runs while the test does other things."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine) -> Any:
        """Wait for it, here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(2 * PATIENCE_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Workers:
    """Worker processes of one gateway; each writes a log into `folder`."""

    def __init__(self, folder: Path, *gateways: str) -> None:
        self.folder = folder
        self.gateways = gateways
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, role: str, **changes: Any) -> "subprocess.Popen[bytes]":
        setup = WorkerSetup(
            **{
                "worker": name,
                "pool": POOL,
                "role": role,
                "model": None,
                "options": OPTIONS,
                "gateways": self.gateways,
                "keys": KEYS,
                "cluster": cluster_of_one(health=HEALTH),
                **changes,
            }
        )
        file = self.folder / f"{name}.json"
        write_setup(setup, file)
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*WORKER_PROCESS, str(file)], stdout=log, stderr=log
            )
        return self.processes[name]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def print_logs(self) -> None:
        for name in self.processes:
            print(f"--- {name}", self.log(name).read_text(), sep="\n")

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
