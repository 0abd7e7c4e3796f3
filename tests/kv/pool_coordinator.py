"""A process of the shared pool without a machine, in the test's own process: it wants everything
that it does not have."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.tcp.protocol import Credentials
from tandem.kv.connectors.tcp.stream import TcpLimits, listening_socket
from tandem.kv.tiers.block_records import BlockTags
from tandem.kv.tiers.contract import Row
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.pool.client import PoolClient, PoolClientTerms
from tandem.kv.tiers.pool.protocol import Verdict, incarnation_proof
from tandem.kv.tiers.pool.server import PoolServer, PoolTerms
from tests.kv.ending import closing
from tests.kv.tier_blocks import FORMAT

SECRET = b"what only the cluster knows"
PATIENT = TcpLimits(connect_s=20.0, silence_s=20.0, idle_s=20.0)
TRANSFER = choose_transfer()
TAGS = BlockTags(SECRET, FORMAT, TRANSFER)
_counter = itertools.count(1)


def entropy(count: int) -> bytes:
    # Chance adds nothing here: every nonce is another number.
    return next(_counter).to_bytes(count, "big")


class MemoryCoordinator:
    """`coming` are wanted and neither kept nor given up; `keeps` counts blocks that were sent."""

    def __init__(self, block_format: BlockFormat = TAGS.stored, blocks: int = 4096) -> None:
        self.store = HostStore(block_format, blocks, TRANSFER)
        self.held: set[bytes] = set()
        self.coming: set[bytes] = set()
        self.changed = threading.Condition()
        self.keeps = 0
        self.most_together = 0

    def offer_blocks(self, names: Sequence[BlockName]) -> Sequence[Verdict]:
        with self.changed:
            return [self._judged(name) for name in names]

    def keep_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Sequence[Verdict]:
        with self.changed:
            self.keeps += len(names)
            kept = set(self.store.put_blocks(names, rows).digests)
            self.held |= kept
            self._done(names)
            return [Verdict.HELD if name.digest in kept else Verdict.UNWANTED for name in names]

    def give_up_blocks(self, names: Sequence[BlockName]) -> None:
        with self.changed:
            self._done(names)

    def read_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> int:
        with self.changed:
            self.most_together = max(self.most_together, len(names))
            return self.store.get_blocks(names, rows).blocks

    def until(self, condition) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 20.0)

    def _judged(self, name: BlockName) -> Verdict:
        if name.digest in self.held:
            return Verdict.HELD
        if name.digest in self.coming:
            return Verdict.UNWANTED
        self.coming.add(name.digest)
        return Verdict.WANTED

    def _done(self, names: Sequence[BlockName]) -> None:
        self.coming -= {name.digest for name in names}
        self.changed.notify_all()


class ServedNode:
    def __init__(self, name: str, server: PoolServer, coordinator: MemoryCoordinator) -> None:
        self.name = name
        self.incarnation = f"{name}-start"
        self.server = server
        self.coordinator = coordinator
        self.address = f"127.0.0.1:{server.port}"

    def join(self, client: PoolClient) -> None:
        client.connect_pool_node(self.name, self.incarnation, self.address)


@contextmanager
def served(
    name: str = "pool-0",
    block_format: BlockFormat = FORMAT,
    *,
    limits: TcpLimits = PATIENT,
    buffers: int = 4,
) -> Iterator[ServedNode]:
    tags = BlockTags(SECRET, block_format, TRANSFER)
    coordinator = MemoryCoordinator(tags.stored)
    credentials = Credentials(SECRET, incarnation_proof(f"{name}-start"))
    terms = PoolTerms(tags, credentials, entropy, limits, buffers)
    server = PoolServer(listening_socket("127.0.0.1", 0), terms, coordinator)
    try:
        yield ServedNode(name, server, coordinator)
    finally:
        server.stop_serving(20.0)


@contextmanager
def client_of(
    *nodes: ServedNode,
    block_format: BlockFormat = FORMAT,
    secret: bytes = SECRET,
    limits: TcpLimits = PATIENT,
    retry_s: float = 1000.0,
    call_s: float = 60.0,
    now_ns=time.monotonic_ns,
) -> Iterator[PoolClient]:
    terms = PoolClientTerms(
        block_format, secret, SECRET, TRANSFER, entropy, now_ns, limits, retry_s, call_s
    )
    with closing(PoolClient(terms)) as client:
        for node in nodes:
            node.join(client)
        yield client
