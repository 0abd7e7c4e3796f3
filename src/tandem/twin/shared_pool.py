"""The shared pool of a simulated cluster: its processes, each around the machine that runs live,
and the way to them that a worker has."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from tandem.cluster.shared_pool.driver import PoolNodePorts, perform
from tandem.cluster.shared_pool.machine import PoolNodeMachine
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName, placement
from tandem.messages.cluster import ToGateway
from tandem.messages.gateway import TimePassed
from tandem.messages.node import BlocksFetched, BlocksKept, CopyBlocks, GatewayConnected
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
from tandem.twin.event_queue import Timer
from tandem.twin.message_bus import MessageBus
from tandem.twin.network.paths import path_between_pool_processes, path_between_tiers
from tandem.twin.process import Process
from tandem.twin.tier_stores import SimulatedStore
from tandem.twin.transfers import Transfers

NOBODY = "no process of the pool is there"
NO_ANSWER = "the process of the pool does not answer"
# Whoever offers gets the answer, or None.
Answered = Callable[[AnswerOffer | None], object]
Offered = Callable[[tuple[bytes, ...], str], object]


class SimulatedPoolNode(Process[PoolNodeEvent]):
    """One start of a process of the shared pool. `store` is its memory. Clients ask it with
    `offer` and `ask`, and get the answers within the instant."""

    def __init__(
        self,
        machine: PoolNodeMachine,
        bus: MessageBus,
        transfers: Transfers,
        block_bytes: float,
        siblings: Mapping[str, "SimulatedPoolNode"],
    ) -> None:
        super().__init__(machine.registration.worker, machine.registration.incarnation, bus)
        self.machine = machine
        self.store = SimulatedStore()
        self._transfers = transfers
        self._block_bytes = block_bytes
        self._siblings = siblings
        self._ids = count()
        self._offers: dict[int, tuple[Sequence[BlockName], Answered]] = {}
        # Offers for whose answer nobody waits any more.
        self._late: dict[int, Sequence[BlockName]] = {}
        self._asked: dict[int, Callable[[FetchHeld | None], object]] = {}
        self._ports = PoolNodePorts(self, self, self, self)
        self._timer = Timer(bus.queue, lambda _: self.receive(TimePassed()))

    def take_mail(self, now_ns: int) -> None:
        if self.hangs or not self.alive:
            return
        events, self.mail = self.mail, []
        for event in events:
            if isinstance(event, GatewayConnected):
                self.bus.open_channel(event.gateway, self)
        perform(self.machine.handle_together(events, now_ns), self._ports)
        self._timer.set(self.machine.next_wakeup())

    def resumed(self, now_ns: int) -> None:  # noqa: ARG002
        self.receive(TimePassed())

    def send_heartbeat(self, now_ns: int) -> None:
        """Report to the gateways now."""
        if not self.hangs:
            perform(self.machine.report(now_ns), self._ports)

    def hang(self, until_ns: int | None, now_ns: int) -> None:
        super().hang(until_ns, now_ns)
        for ask_id in (*self._offers, *self._asked):
            self._expire(ask_id)

    def die(self) -> None:
        """The process is no more; whoever waits for an answer sees that."""
        self.alive = False
        self.mail.clear()
        for ask_id in (*self._offers, *self._asked):
            self._give_up(ask_id)

    def offer(self, names: Sequence[BlockName], answered: Answered) -> None:
        """Somebody has these blocks. What is wanted of them is to be told of with `received`; None:
        there is no answer."""
        offer_id = next(self._ids)
        self._offers[offer_id] = names, answered
        self.receive(BlocksOffered(offer_id, tuple(names)))
        if self.hangs:
            self._expire(offer_id)

    def received(self, names: Sequence[BlockName], *, arrived: bool) -> None:
        """Blocks that were wanted have come, or will not."""
        kept = self.store.put(names) if arrived and self.store.up else ()
        self.receive(BlocksReceived(tuple(names), kept))

    def ask(
        self, names: Sequence[BlockName], answered: Callable[[FetchHeld | None], object]
    ) -> None:
        """Somebody wants these. How reading what is held ends is to be told of with `receive`;
        None: there is no answer."""
        fetch_id = next(self._ids)
        self._asked[fetch_id] = answered
        self.receive(BlocksAsked(fetch_id, tuple(names)))
        if self.hangs:
            self._expire(fetch_id)

    def _expire(self, ask_id: int) -> None:
        """Whoever asked waits as long as for a transfer."""
        self._transfers.after_timeout(lambda: self._give_up(ask_id))

    def _give_up(self, ask_id: int) -> None:
        if (offer := self._offers.pop(ask_id, None)) is not None:
            self._late[ask_id], answered = offer
            answered(None)
        elif (asked := self._asked.pop(ask_id, None)) is not None:
            asked(None)

    def send_to_gateway(self, gateway: str, message: ToGateway) -> None:
        self.bus.to_gateway(self, gateway, message)

    def answer_offer(self, answer: AnswerOffer) -> None:
        offer = self._offers.pop(answer.offer_id, None)
        if offer is not None:
            offer[1](answer)
        else:
            # Nobody waits for that any more.
            names = self._late.pop(answer.offer_id)
            unwanted = tuple(name for name in names if name.digest in answer.wanted)
            if unwanted:
                self.receive(BlocksReceived(unwanted))

    def fetch_held(self, order: FetchHeld) -> None:
        answered = self._asked.pop(order.fetch_id, None)
        if answered is not None:
            answered(order)
        else:
            self.receive(BlocksFetched(order.fetch_id, 0))

    def copy_between_tiers(self, order: CopyBlocks) -> None:
        """There is only the memory."""
        self.receive(BlocksKept(order.copy_id, order.target, (), "there is no such tier"))

    def forget_in_tier(self, tier: Tier, digests: tuple[bytes, ...]) -> None:  # noqa: ARG002
        self.store.discard(digests)

    def connect_pool_node(self, node: str, incarnation: str, address: str) -> None:
        """Links are there from the start."""

    def disconnect_pool_node(self, node: str, incarnation: str) -> None:
        """What is sent to it is lost."""

    def send_replica(self, order: SendReplica) -> None:
        sibling = self._siblings.get(order.node)
        held = [name for name in order.names if name.digest in self.store.blocks]
        if sibling is None or not held:
            self.receive(ReplicaEnded(order.node))
            return

        def answered(answer: AnswerOffer | None) -> None:
            digests = answer.wanted if answer is not None else ()
            wanted = [name for name in held if name.digest in digests]
            if not wanted:
                self.receive(ReplicaEnded(order.node))
                return

            def ended(arrived: bool, _seconds: float) -> None:
                sibling.received(wanted, arrived=arrived)
                self.receive(ReplicaEnded(order.node))

            way = path_between_pool_processes(self.name, sibling.name)
            moved_bytes = len(wanted) * self._block_bytes
            self._transfers.start("to replica", moved_bytes, way, ended, urgent=False)

        sibling.offer(held, answered)


@dataclass(slots=True)
class PoolRead:
    """Blocks on their way from the pool: the first `blocks` have come; the next one was `missing`,
    `corrupt`, or there was a `problem`."""

    names: Sequence[BlockName]
    blocks: int = 0
    missing: bool = False
    corrupt: bool = False
    problem: str = ""
    cancelled: bool = False
    parts: int = 0
    transfers: list[int] = field(default_factory=list)
    cancel: Callable[[], None] = lambda: None

    def ends_at(
        self, index: int, *, missing: bool = False, corrupt: bool = False, problem: str = ""
    ) -> None:
        if index < self.blocks:
            self.blocks, self.missing, self.corrupt = index, missing, corrupt
            self.problem = problem


@dataclass(slots=True)
class Offer:
    """Blocks offered to the pool: `kept` lie there now."""

    parts: int
    kept: list[bytes] = field(default_factory=list)
    problem: str = ""


class SimulatedPoolClient:
    """One worker's. It knows the processes that its gateways have told it of; which one has a
    chain, both sides know by its name. `processes` are those that are up."""

    def __init__(
        self,
        worker: str,
        block_bytes: float,
        processes: Mapping[str, SimulatedPoolNode],
        transfers: Transfers,
    ) -> None:
        self._worker = worker
        self._block_bytes = block_bytes
        self._processes = processes
        self._transfers = transfers
        self._connected: dict[str, str] = {}

    def connect_pool_node(self, node: str, incarnation: str, address: str) -> None:  # noqa: ARG002
        self._connected[node] = incarnation

    def disconnect_pool_node(self, node: str, incarnation: str) -> None:  # noqa: ARG002
        self._connected.pop(node, None)

    def offer(self, names: Sequence[BlockName], ended: Offered) -> None:
        """Bring the pool what it wants of these; ends with what it has of them, and a problem."""
        groups = self._by_process(names)
        offer = Offer(len(groups))
        if not groups:
            ended((), NOBODY)
        for process, rows in groups:
            self._offer_to(process, [names[row] for row in rows], offer, ended)

    def read(
        self,
        names: Sequence[BlockName],
        kind: str,
        ended: Callable[[PoolRead], object],
        *,
        urgent: bool,
    ) -> PoolRead:
        """Bring these from the pool, counted under `kind`."""
        groups = self._by_process(names)
        read = PoolRead(names, len(names), parts=len(groups))
        read.cancel = lambda: self._cancel(read)
        reachable = {row for _, rows in groups for row in rows}
        for row in range(len(names)):
            if row not in reachable:
                read.ends_at(row, problem=NOBODY)
        if not groups:
            ended(read)
        for process, rows in groups:
            self._read_from(process, rows, read, kind, ended, urgent=urgent)
        return read

    def _by_process(self, names: Sequence[BlockName]) -> list[tuple[SimulatedPoolNode, list[int]]]:
        groups: dict[str, list[int]] = {}
        owners: dict[bytes, str] = {}
        for row, name in enumerate(names):
            if name.first not in owners and self._connected:
                owners[name.first] = placement(name.first, self._connected)[0]
            if name.first in owners:
                groups.setdefault(owners[name.first], []).append(row)
        found = [(self._processes.get(owner), rows) for owner, rows in groups.items()]
        return [
            (process, rows)
            for process, rows in found
            if process is not None and process.incarnation == self._connected[process.name]
        ]

    def _offer_to(
        self,
        process: SimulatedPoolNode,
        names: Sequence[BlockName],
        offer: Offer,
        ended: Offered,
    ) -> None:
        def part_over(kept: Iterable[bytes], problem: str = "") -> None:
            offer.kept += kept
            offer.problem = offer.problem or problem
            offer.parts -= 1
            if not offer.parts:
                ended(tuple(offer.kept), offer.problem)

        def answered(answer: AnswerOffer | None) -> None:
            if answer is None:
                part_over((), NO_ANSWER)
                return
            digests = set(answer.wanted)
            wanted = [name for name in names if name.digest in digests]
            if not process.store.up:
                process.received(wanted, arrived=False)
                part_over((), "the pool is down")
                return
            if not wanted:
                part_over(answer.held)
                return

            def moved(arrived: bool, _seconds: float) -> None:
                sound = arrived and process.store.up and process.alive
                process.received(wanted, arrived=sound)
                kept = [name.digest for name in wanted] if sound else []
                part_over((*answer.held, *kept), "" if sound else "the transfer was lost")

            way = path_between_tiers(self._worker, Tier.HOST, Tier.REMOTE, process.name)
            moved_bytes = len(wanted) * self._block_bytes
            self._transfers.start("to remote", moved_bytes, way, moved, urgent=False)

        process.offer(names, answered)

    def _read_from(
        self,
        process: SimulatedPoolNode,
        rows: Sequence[int],
        read: PoolRead,
        kind: str,
        ended: Callable[[PoolRead], object],
        *,
        urgent: bool,
    ) -> None:
        names = [read.names[row] for row in rows]

        def part_over() -> None:
            read.parts -= 1
            if not read.parts and not read.cancelled:
                ended(read)

        def answered(held: FetchHeld | None) -> None:
            if held is None:
                read.ends_at(rows[0], problem=NO_ANSWER)
                part_over()
                return
            found = process.store.first_missing(held.names)
            gone = tuple(name.digest for name in held.names[found : found + 1])
            if found < len(names):
                read.ends_at(rows[found], missing=True)
                self._transfers.miss(kind)
            if not process.store.up:
                read.ends_at(rows[0], problem="the pool is down")
            if not found or not process.store.up or read.cancelled:
                process.receive(BlocksFetched(held.fetch_id, 0, missing=gone))
                part_over()
                return

            def moved(arrived: bool, seconds: float) -> None:
                sound = process.store.first_corrupt(names[:found]) if arrived else 0
                bad = tuple(name.digest for name in names[sound:found][:1]) if arrived else ()
                if not arrived:
                    read.ends_at(rows[0], problem="the transfer was lost")
                elif bad:
                    read.ends_at(rows[sound], corrupt=True)
                    self._transfers.miss(kind)
                    process.store.discard(bad)
                fetched = BlocksFetched(
                    held.fetch_id, sound, round(sound * self._block_bytes), seconds, bad, gone
                )
                process.receive(fetched)
                part_over()

            way = path_between_tiers(self._worker, Tier.REMOTE, Tier.DEVICE, process.name)
            moved_bytes = found * self._block_bytes
            transfer = self._transfers.start(kind, moved_bytes, way, moved, urgent=urgent)
            read.transfers.append(transfer)

        process.ask(names, answered)

    def _cancel(self, read: PoolRead) -> None:
        """Nobody waits for it any more; what the processes are owed they are told."""
        read.cancelled = True
        for transfer in read.transfers:
            self._transfers.give_up(transfer)
