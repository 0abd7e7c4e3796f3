"""The other side of worker processes, in the test: a gateway over a real socket; and the processes
themselves."""

import asyncio
import os
import select
import subprocess
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.config.options import ServeOptions
from tandem.config.processes import GatewaySetup, PoolNodeSetup, WorkerSetup, write_setup
from tandem.facts.blocks import CacheRoot
from tandem.facts.health import Health
from tandem.facts.kv import MoveReport
from tandem.facts.request import Request
from tandem.facts.serving import ModelCard
from tandem.live.channels.gateway_channel import ChannelNews, GatewayChannel
from tandem.live.clock import now_ns
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.operators import OperatorClient
from tandem.live.gateway.terms import GatewayTerms
from tandem.live.processes.setups import WORKER_PROCESS
from tandem.messages.cluster import MoveEnded, Registered
from tandem.messages.gateway import ClusterStatus, MessageFromWorker
from tandem.messages.operator import AuditReported
from tandem.policy.dispatch.contract import Transfer
from tests.config.clusters import POOL, cluster_of_one
from tests.live.ends import GATEWAY_KEYS, KEYS, NODE_KEYS, PATIENCE_S
from tests.live.toy_cluster import gateway_config as toy_gateway_config
from tests.live.toy_cluster import read, until

BLOCK_SIZE = 16
MODEL, REVISION = "tandem-mini", "main"
# Ranks of one layer add in another order, which tips no draw in fp32, but some in bfloat16.
OPTIONS = ServeOptions(
    threads=1,
    arithmetic="float32",
    kv_cache_memory="64MiB",
    max_num_seqs=8,
    max_num_batched_tokens=64,
)
HEALTH = Health(report_interval_s=0.05, heartbeat_timeout_s=10.0)
TERMS = Registered("g0", 50_000_000, 10_000_000_000, 20_000_000_000)


def gateway_config(root: CacheRoot, transfer: Transfer) -> GatewayConfig:
    return toy_gateway_config(
        root, TERMS, block_size=BLOCK_SIZE, transfer=transfer, served=(MODEL, REVISION)
    )


class GatewaySide(Gateway):
    """Lives on one event loop."""

    def __init__(self, config: GatewayConfig) -> None:
        card = ModelCard((MODEL,), 1 << 20, 1 << 20, (), 0)
        # As unlike that of a gateway before it as process ids are.
        super().__init__(card, GatewayMachine(config), GatewayTerms(f"{now_ns():x}"))
        self.failed_moves: list[MoveEnded] = []
        self.endpoint = ""

    async def open(self, listen: str = "tcp://127.0.0.1:0") -> str:
        channel = GatewayChannel(listen, GATEWAY_KEYS, self.enqueue)
        self.endpoint = channel.open()
        await self.start(channel)
        return self.endpoint

    def enqueue(self, news: ChannelNews) -> None:
        match news:
            case MessageFromWorker(_, MoveEnded(report=MoveReport(arrived=False)) as ended):
                self.failed_moves.append(ended)
        super().enqueue(news)

    async def ask(self, request: Request) -> list[int]:
        """All tokens of the answer."""
        return await read(self, request)

    async def members(self, *names: str) -> None:
        """Wait until exactly these are known."""
        await until(lambda: sorted(w.worker for w in self.status().workers) == sorted(names))

    async def drain(self, worker: str, **wanted: Any) -> None:
        """Wait for the end of the drain."""
        await self._operate(lambda client: client.drain(worker, **wanted))

    async def undrain(self, worker: str) -> None:
        await self._operate(lambda client: client.undrain(worker))

    async def audit(self) -> AuditReported:
        return await self._operate(lambda client: client.audit())

    def status(self) -> ClusterStatus:
        return self.machine.status(now_ns())

    async def _operate(self, question: Callable[[OperatorClient], Any]) -> Any:
        with OperatorClient(self.endpoint, NODE_KEYS, PATIENCE_S) as client:
            return await asyncio.to_thread(question, client)


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


class Processes:
    """Processes of one cluster; each writes a log into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(
        self,
        name: str,
        command: tuple[str, ...],
        setup: WorkerSetup | PoolNodeSetup | GatewaySetup,
    ) -> "subprocess.Popen[bytes]":
        """Start it; the last word of its command names the file with its set-up."""
        file = self.folder / f"{name}.setup.json"
        write_setup(setup, file)
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen([*command, str(file)], stdout=log, stderr=log)
        return self.processes[name]

    def end(self, name: str, how: int) -> int:
        """Its exit status after this signal."""
        self.processes[name].send_signal(how)
        return self.processes[name].wait(PATIENCE_S)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def print_logs(self) -> None:
        for name in self.processes:
            print(f"--- {name}", self.log(name).read_text(), sep="\n")

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


class Workers(Processes):
    """Worker processes of one gateway."""

    def __init__(self, folder: Path, *gateways: str) -> None:
        super().__init__(folder)
        self.gateways = gateways

    def start(self, name: str, role: str, **changes: Any) -> "subprocess.Popen[bytes]":
        fields = {
            "worker": name,
            "pool": POOL,
            "role": role,
            "model": None,
            "options": OPTIONS,
            "gateways": self.gateways,
            "keys": KEYS.of_worker(),
            "cluster": cluster_of_one(health=HEALTH),
        }
        return self.launch(name, WORKER_PROCESS, WorkerSetup(**fields | changes))
