"""Processes of the shared pool as a cluster starts them, and a gateway in the test that believes
what they say."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem.config.processes import CurveKeys, PoolNodeSetup, write_setup
from tandem.facts.fleet import Tier
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.tcp.stream import TcpLimits
from tandem.kv.tiers.pool.client import PoolClient, PoolClientTerms
from tandem.live.channels.gateway_channel import ChannelNews, GatewayChannel
from tandem.live.channels.keys import Admitted, AdmittedKeys, PeerRole, make_keys
from tandem.live.channels.sockets import GatewayKeys
from tandem.live.clock import now_ns
from tandem.live.processes.connectors import (
    block_secret,
    random_bytes,
    transfer_secret,
)
from tandem.messages.cluster import (
    Audit,
    Audited,
    PoolNodeGone,
    PoolNodeJoined,
    Registered,
    RegisterPoolNode,
    TiersReported,
)
from tandem.messages.gateway import MessageFromWorker, PeerGone
from tandem.messages.router import BlocksListed, BlocksReported
from tests.config.clusters import node_setup
from tests.kv.ending import closing
from tests.kv.tier_blocks import FORMAT
from tests.live.gateway_side import LoopThread

PATIENCE_S = 60.0
GATEWAY_PAIR, WORKER_PAIR = make_keys()
WORKER = Admitted(PeerRole.WORKER, WORKER_PAIR.public)
KEYS = CurveKeys(
    gateway_public=GATEWAY_PAIR.public,
    worker_public=WORKER_PAIR.public,
    worker_secret=WORKER_PAIR.secret,
)
WELCOME = Registered("g0", 50_000_000, 10_000_000_000, 20_000_000_000)
START = """
import sys
from pathlib import Path
from tandem.live.processes.shared_pool import run_pool_node
from tandem.config.processes import PoolNodeSetup, read_setup
run_pool_node(read_setup(PoolNodeSetup, Path(sys.argv[1])))
"""
TRANSFER = choose_transfer()
LIMITS = TcpLimits(connect_s=2.0, silence_s=2.0)


class PoolSide:
    """What a gateway knows of the pool: `held` by node, `hellos` by node."""

    def __init__(self) -> None:
        self.held: dict[str, set[bytes]] = {}
        self.hellos: dict[str, RegisterPoolNode] = {}
        self.figures: dict[str, TiersReported] = {}
        self.audited: dict[str, Audited] = {}
        self.changed = threading.Condition()
        self._numbers: dict[str, int] = {}
        self._peers: dict[str, str] = {}
        self._loop = LoopThread()
        self.endpoint = self._loop.run(self._open())

    async def _open(self) -> str:
        keys = GatewayKeys(GATEWAY_PAIR, AdmittedKeys([WORKER]))
        self._channel = GatewayChannel("tcp://127.0.0.1:0", keys, self._hear)
        return self._channel.open()

    def close(self) -> None:
        self._loop.run(self._channel.close(0.0))
        self._loop.close()

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (self.hellos, self.held)

    def until_held(self, node: str, digests: set[bytes]) -> None:
        """These, and nothing else, are said to be there."""
        self.until(lambda: self.held[node] == digests)

    def say(self, node: str, message: Any) -> None:
        async def send() -> None:
            self._channel.send(self._peers[node], message)

        self._loop.run(send())

    def audit(self, node: str) -> Audited:
        self.audited.pop(node, None)
        self.say(node, Audit())
        self.until(lambda: node in self.audited)
        return self.audited[node]

    def _hear(self, news: ChannelNews) -> None:
        with self.changed:
            match news:
                case MessageFromWorker(peer, message):
                    self._take(peer, message)
                case PeerGone(peer):
                    for node in [n for n, p in self._peers.items() if p == peer]:
                        self._lose(node)
            self.changed.notify_all()

    def _take(self, peer: str, message: object) -> None:
        match message:
            case RegisterPoolNode():
                self._channel.send(peer, WELCOME)
                for other, register in self.hellos.items():
                    if other != message.worker:
                        self._channel.send(peer, _joined(register))
                        self._channel.send(self._peers[other], _joined(message))
                self._peers[message.worker] = peer
                self.hellos[message.worker] = message
            case BlocksListed(node, tier, hashes, number):
                assert tier is Tier.REMOTE
                self.held[node], self._numbers[node] = set(hashes), number
            case BlocksReported(node, tier, changes):
                assert tier is Tier.REMOTE
                assert changes.sequence_number == self._numbers[node]
                self._numbers[node] += 1
                held = self.held[node]
                assert held >= set(changes.removed)
                held -= set(changes.removed)
                assert not held & set(changes.stored)
                held |= set(changes.stored)
            case TiersReported(node):
                self.figures[node] = message
            case Audited(node):
                self.audited[node] = message

    def _lose(self, node: str) -> None:
        register = self.hellos.pop(node)
        del self._peers[node], self.held[node]
        for other in self._peers.values():
            self._channel.send(other, PoolNodeGone(node, register.incarnation))


def _joined(register: RegisterPoolNode) -> PoolNodeJoined:
    return PoolNodeJoined(register.worker, register.incarnation, register.address)


class PoolNodes:
    """Processes; each writes a log into `folder`."""

    def __init__(self, folder: Path, side: PoolSide) -> None:
        self.folder = folder
        self.side = side
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def setup(self, node: str, **changes: Any) -> PoolNodeSetup:
        usual = {
            "node": node,
            "gateways": (self.side.endpoint,),
            "keys": KEYS,
        }
        kept = node_setup(FORMAT, 400 * FORMAT.block_bytes, changes)
        return PoolNodeSetup(**{**usual, **kept})

    def start(self, node: str, **changes: Any) -> "subprocess.Popen[bytes]":
        setup = self.setup(node, **changes)
        file = self.folder / f"{node}.json"
        write_setup(setup, file)
        with (self.folder / f"{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [sys.executable, "-c", START, str(file)], stdout=log, stderr=log
            )
        return self.processes[node]

    @contextmanager
    def client(self, *nodes: str) -> Iterator[PoolClient]:
        """As a worker has one, once the gateway knows these."""
        setup = self.setup("nobody")
        secrets = transfer_secret(setup), block_secret(setup)
        terms = PoolClientTerms(
            FORMAT, *secrets, TRANSFER, random_bytes, now_ns, LIMITS, retry_s=1.0
        )
        with closing(PoolClient(terms)) as client:
            self.join(client, *nodes)
            yield client

    def end(self, node: str, how: int) -> int:
        process = self.processes[node]
        process.send_signal(how)
        return process.wait(PATIENCE_S)

    def join(self, client: PoolClient, *nodes: str) -> None:
        """Once the gateway knows them."""
        self.side.until(lambda: set(nodes) <= self.side.held.keys())
        for node in nodes:
            register = self.side.hellos[node]
            client.connect_pool_node(node, register.incarnation, register.address)

    def kill_all(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@contextmanager
def pool_nodes(folder: Path) -> Iterator[PoolNodes]:
    side = PoolSide()
    nodes = PoolNodes(folder, side)
    try:
        yield nodes
    finally:
        for node in nodes.processes:
            print(f"--- {node}", (folder / f"{node}.log").read_text(), sep="\n")
        nodes.kill_all()
        side.close()
