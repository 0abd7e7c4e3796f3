"""Processes of the shared pool as a cluster starts them, and a gateway in the test that believes
what they report."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem.config.processes import PoolNodeSetup
from tandem.facts.fleet import Tier
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.tcp.stream import TcpLimits
from tandem.kv.tiers.pool.client import PoolClient, PoolClientTerms
from tandem.live.channels.gateway_channel import ChannelNews, GatewayChannel
from tandem.live.clock import now_ns
from tandem.live.processes.connectors import block_secret, random_bytes, transfer_secret
from tandem.live.processes.setups import POOL_PROCESS
from tandem.messages.cluster import (
    Audit,
    Audited,
    PoolNodeGone,
    PoolNodeJoined,
    RegisterPoolNode,
    TiersReported,
)
from tandem.messages.gateway import MessageFromWorker, PeerGone
from tandem.messages.router import BlocksListed, BlocksReported
from tests.config.clusters import node_setup
from tests.kv.ending import closing
from tests.kv.tier_blocks import FORMAT
from tests.live.ends import GATEWAY_KEYS, KEYS, PATIENCE_S
from tests.live.gateway_side import TERMS, LoopThread, Processes

TRANSFER = choose_transfer()
LIMITS = TcpLimits(connect_s=2.0, silence_s=2.0)


class PoolSide:
    """What a gateway knows of the pool: `held` and `registered` by node."""

    def __init__(self) -> None:
        self.held: dict[str, set[bytes]] = {}
        self.registered: dict[str, RegisterPoolNode] = {}
        self.figures: dict[str, TiersReported] = {}
        self.audited: dict[str, Audited] = {}
        self.changed = threading.Condition()
        self._numbers: dict[str, int] = {}
        self._peers: dict[str, str] = {}
        self._loop = LoopThread()
        self.endpoint = self._loop.run(self._open())

    async def _open(self) -> str:
        self._channel = GatewayChannel("tcp://127.0.0.1:0", GATEWAY_KEYS, self._receive)
        return self._channel.open()

    def close(self) -> None:
        self._loop.run(self._channel.close(0.0))
        self._loop.close()

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            happened = self.changed.wait_for(condition, PATIENCE_S)
            held = {node: len(digests) for node, digests in self.held.items()}
            assert happened, (self.registered, held)

    def until_held(self, node: str, digests: set[bytes]) -> None:
        """These, and nothing else, are reported to be there."""
        self.until(lambda: self.held[node] == digests)

    def until_settled(self, node: str, digests: set[bytes]) -> None:
        """These are there, and none is on its way from one tier to another: those that wait longer
        than the next ones take to come are given up."""

        def settled() -> bool:
            tiers = self.figures[node].tiers if node in self.figures else ()
            return sum(tier.blocks for tier in tiers) == len(digests)

        self.until_held(node, digests)
        self.until(settled)

    def send(self, node: str, message: Any) -> None:
        async def on_loop() -> None:
            self._channel.send(self._peers[node], message)

        self._loop.run(on_loop())

    def audit(self, node: str) -> Audited:
        self.audited.pop(node, None)
        self.send(node, Audit())
        self.until(lambda: node in self.audited)
        return self.audited[node]

    def _receive(self, news: ChannelNews) -> None:
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
                self._channel.send(peer, TERMS)
                for other, register in self.registered.items():
                    if other != message.worker:
                        self._channel.send(peer, _joined(register))
                        self._channel.send(self._peers[other], _joined(message))
                self._peers[message.worker] = peer
                self.registered[message.worker] = message
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
        register = self.registered.pop(node)
        del self._peers[node], self.held[node]
        for other in self._peers.values():
            self._channel.send(other, PoolNodeGone(node, register.incarnation))


def _joined(register: RegisterPoolNode) -> PoolNodeJoined:
    return PoolNodeJoined(register.worker, register.incarnation, register.address)


class PoolNodes(Processes):
    """Processes of the shared pool of one gateway."""

    def __init__(self, folder: Path, side: PoolSide) -> None:
        super().__init__(folder)
        self.side = side

    def setup(self, node: str, **changes: Any) -> PoolNodeSetup:
        kept = node_setup(FORMAT, 400 * FORMAT.block_bytes, changes)
        usual = {"node": node, "gateways": (self.side.endpoint,), "keys": KEYS.of_worker()}
        return PoolNodeSetup(**usual | kept)

    def start(self, node: str, **changes: Any) -> "subprocess.Popen[bytes]":
        return self.launch(node, POOL_PROCESS, self.setup(node, **changes))

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

    def join(self, client: PoolClient, *nodes: str) -> None:
        """Once the gateway knows them."""
        self.side.until(lambda: set(nodes) <= self.side.held.keys())
        for node in nodes:
            register = self.side.registered[node]
            client.connect_pool_node(node, register.incarnation, register.address)


@contextmanager
def pool_nodes(folder: Path) -> Iterator[PoolNodes]:
    side = PoolSide()
    nodes = PoolNodes(folder, side)
    try:
        yield nodes
    finally:
        nodes.print_logs()
        nodes.kill_all()
        side.close()
