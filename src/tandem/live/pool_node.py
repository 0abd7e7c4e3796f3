"""A process of the shared pool around its machine: channels, stores, clients and clock.

The machine runs on the event loop alone. A client's thread asks by putting an event into the inbox,
and waits for the effect that answers it; bytes never pass through the loop. What the machine orders
to be read goes to the stores from the loop, so a block is still there though the next effect
forgets it.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from tandem.cluster.shared_pool.driver import PoolNodePorts, perform
from tandem.cluster.shared_pool.machine import PoolNodeMachine
from tandem.facts.errors import EngineFailed
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.threads import StepThread
from tandem.kv.tiers.contract import Kept, Row
from tandem.kv.tiers.pool.client import PoolClient
from tandem.kv.tiers.pool.protocol import Verdict, batch_blocks
from tandem.kv.tiers.pool.stores import PoolStores
from tandem.kv.tiers.rows import allocated_rows
from tandem.live.driver import Driver, EventInbox
from tandem.live.node import Channel, Channels
from tandem.messages.gateway import TimePassed
from tandem.messages.node import BlocksFetched, Leave
from tandem.messages.pool_node import (
    AnswerOffer,
    BlocksAsked,
    BlocksOffered,
    BlocksReceived,
    FetchHeld,
    PoolNodeEvent,
    ReplicaEnded,
    SendReplica,
)

T = TypeVar("T")
PoolInbox = EventInbox[PoolNodeEvent]


@dataclass(frozen=True, slots=True)
class _Reader:
    """A client's thread that waits for blocks, and where it wants them."""

    rows: Sequence[Row]
    blocks: Future[int]


class LivePoolCoordinator:
    """Where clients' threads meet the machine (`kv.tiers.pool.server.PoolCoordinator`)."""

    def __init__(self, inbox: PoolInbox, stores: PoolStores) -> None:
        self._inbox = inbox
        self._stores = stores
        self._ids = count()
        self._offers: dict[int, Future[AnswerOffer]] = {}
        self._readers: dict[int, _Reader] = {}
        self._keeps: dict[int, Future[Kept]] = {}
        self._closed = False

    def offer_blocks(self, names: Sequence[BlockName]) -> Sequence[Verdict]:
        offer_id, future = next(self._ids), Future[AnswerOffer]()
        self._offers[offer_id] = future
        self._inbox.enqueue_threadsafe(BlocksOffered(offer_id, tuple(names)))
        answer = self._wait(future, self._offers, offer_id)
        verdict_of = dict.fromkeys(answer.wanted, Verdict.WANTED)
        verdict_of |= dict.fromkeys(answer.held, Verdict.HELD)
        return [verdict_of.get(name.digest, Verdict.UNWANTED) for name in names]

    def keep_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Sequence[Verdict]:
        keep_id, future = next(self._ids), Future[Kept]()
        self._keeps[keep_id] = future

        def ended(kept: Kept) -> None:
            self._inbox.enqueue_threadsafe(BlocksReceived(tuple(names), kept.digests))
            del self._keeps[keep_id]
            if future.set_running_or_notify_cancel():
                future.set_result(kept)

        self._stores.keep_blocks(names, rows, ended)
        try:
            held = set(future.result().digests)
        except CancelledError as error:
            raise ConnectorError("this process of the shared pool has failed") from error
        return [Verdict.HELD if name.digest in held else Verdict.UNWANTED for name in names]

    def give_up_blocks(self, names: Sequence[BlockName]) -> None:
        self._inbox.enqueue_threadsafe(BlocksReceived(tuple(names)))

    def read_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> int:
        fetch_id, reader = next(self._ids), _Reader(rows, Future[int]())
        self._readers[fetch_id] = reader
        self._inbox.enqueue_threadsafe(BlocksAsked(fetch_id, tuple(names)))
        return self._wait(reader.blocks, self._readers, fetch_id)

    def answer_offer(self, answer: AnswerOffer) -> None:
        """On the event loop."""
        self._offers.pop(answer.offer_id).set_result(answer)

    def fetch_held(self, order: FetchHeld) -> None:
        """On the event loop."""
        reader = self._readers.pop(order.fetch_id)

        def ended(event: BlocksFetched) -> None:
            self._inbox.enqueue_threadsafe(event)
            reader.blocks.set_result(event.blocks)

        if order.names:
            rows = reader.rows[: len(order.names)]
            self._stores.read_kept_blocks(order.fetch_id, order.names, order.tiers, rows, ended)
        else:
            ended(BlocksFetched(order.fetch_id, 0))

    def close(self, *, failed: bool = False) -> None:
        """On the event loop, when the machine answers no more: nobody waits for it any longer, nor,
        where the process `failed`, for its stores."""
        self._closed = True
        for kept in list(self._keeps.values()) if failed else ():
            kept.cancel()
        for future in list(self._offers.values()):
            future.cancel()
        for reader in list(self._readers.values()):
            reader.blocks.cancel()

    def _wait(self, future: Future[T], asked: Mapping[int, object], number: int) -> T:
        # What the machine has answered still comes: a store is writing to the reader's rows.
        if self._closed and number in asked:
            future.cancel()
        try:
            return future.result()
        except CancelledError as error:
            raise ConnectorError("this process of the shared pool is leaving") from error


class Replicas:
    """Brings blocks to other processes of the pool, one order after the other."""

    def __init__(
        self, stores: PoolStores, client: PoolClient, block_format: BlockFormat, inbox: PoolInbox
    ) -> None:
        self.client = client
        self._stores = stores
        self._inbox = inbox
        self._rows = allocated_rows(
            batch_blocks(block_format.block_bytes), block_format.block_bytes
        )
        self._thread = StepThread("kv replicas", self._failed)
        self._thread.start_worker()

    def send_replica(self, order: SendReplica) -> None:
        """Ends with `ReplicaEnded`."""
        first = 0

        def step() -> bool:
            nonlocal first
            end = first + len(self._rows)
            tiers, names = order.tiers[first:end], order.names[first:end]
            came = self._read(tiers, names)
            kept = self.client.put_blocks_to(order.node, names[:came], list(self._rows[:came]))
            first = end
            if end < len(order.names) and came == len(names) and not kept.problem:
                return False
            self._inbox.enqueue_threadsafe(ReplicaEnded(order.node))
            return True

        self._thread.post(step)

    def connect_pool_node(self, node: str, incarnation: str, address: str) -> None:
        self.client.connect_pool_node(node, incarnation, address)

    def disconnect_pool_node(self, node: str, incarnation: str) -> None:
        self.client.disconnect_pool_node(node, incarnation)

    def close(self, patience_s: float) -> None:
        self.client.close_store()
        self._thread.stop_worker()
        self._thread.join_worker(patience_s)

    def _read(self, tiers: Sequence[Tier], names: Sequence[BlockName]) -> int:
        if not names:
            return 0
        future = Future[int]()
        rows = list(self._rows[: len(names)])
        self._stores.read_kept_blocks(
            0, names, tiers, rows, lambda event: future.set_result(event.blocks)
        )
        return future.result()

    def _failed(self) -> None:
        self._inbox.fail(EngineFailed("copies to other processes of the shared pool failed"))


class PoolNode:
    """Use `run` once, on the event loop that the channels and the inbox live on."""

    def __init__(
        self, machine: PoolNodeMachine, inbox: PoolInbox, stores: PoolStores, replicas: Replicas
    ) -> None:
        self.machine = machine
        self.coordinator = LivePoolCoordinator(inbox, stores)
        self._inbox = inbox
        self._stores = stores
        self._replicas = replicas

    async def run(self, channels: Mapping[str, Channel]) -> Leave:
        """Until the machine leaves, with a channel for each gateway by its name. What the machine
        raises, or the inbox was failed with, is raised."""
        for channel in channels.values():
            channel.open()
        ports = PoolNodePorts(Channels(channels), self.coordinator, self._stores, self._replicas)
        driver = Driver(
            self.machine, self._inbox, lambda effects, _: perform(effects, ports), TimePassed()
        )
        failed = True
        try:
            left = await driver.run()
            failed = False
        finally:
            self.coordinator.close(failed=failed)
        return left
