"""Inbound KV transfers of a worker into reserved blocks, from other workers and from slower
tiers: orders, their ends, and when nothing writes to the blocks any more."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from tandem.cluster.audit import invariant
from tandem.cluster.node.fetches import Wanted, is_prefetch
from tandem.cluster.node.tiers import TierEvent, WorkerTiers
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.kv import MoveKv, MoveReport
from tandem.messages.cluster import FetchKv, MoveEnded
from tandem.messages.node import (
    EndMove,
    MoveFinished,
    NodeEffect,
    SendToGateway,
    StartMove,
)
from tandem.messages.worker import ImportBlocks, ImportDone

Order = MoveKv | FetchKv


@dataclass(slots=True)
class Move:
    """One order under way, from another worker or from a slower tier. `gateway` is empty once
    nobody waits for its end."""

    gateway: str
    order: Order
    stopped: bool = False


@dataclass(slots=True)
class Import:
    """A request's reserved blocks: the moves that write to them, and which tokens (first, end) have
    come. `outcome` is the event for the worker machine once they are quiet."""

    wanted: ImportBlocks
    moves: set[int] = field(default_factory=set)
    arrived: list[tuple[int, int]] = field(default_factory=list)
    outcome: ImportDone | None = None

    @property
    def covered_tokens(self) -> int:
        """KV of so many first tokens is there."""
        end_token = self.wanted.first_token
        for first, end in sorted(self.arrived):
            if first > end_token:
                break
            end_token = max(end_token, end)
        return end_token


Effects = list[NodeEffect]


class InboundTransfers:
    """Imports by request id; `moving` are the moves under way by the ids they have here. After
    every method some imports may be quiet (`take_quiet`)."""

    def __init__(self, worker: str, machine: WorkerMachine, tiers: WorkerTiers | None) -> None:
        self.moving: dict[int, Move] = {}
        self._worker = worker
        self._machine = machine
        self._block_size = machine.config.block_size
        self._tiers = tiers
        self._imports: dict[str, Import] = {}
        self._move_ids: dict[tuple[str, int], int] = {}
        self._moves = 0
        # Those with an outcome.
        self._ended: dict[str, None] = {}

    @property
    def request_ids(self) -> set[str]:
        return set(self._imports)

    @property
    def any_concluded(self) -> bool:
        """Whether some import ends as soon as nobody writes to its blocks any more."""
        return bool(self._ended)

    def blocks_reserved(self, wanted: ImportBlocks) -> None:
        """Blocks have been reserved."""
        assert wanted.request_id not in self._imports
        self._imports[wanted.request_id] = Import(wanted)

    def accept_order(self, gateway: str, order: Order, problem: str, now_ns: int) -> Effects:
        """Carry out what a gateway ordered, unless there is a `problem` or it makes no sense."""
        problem = problem or self._objection(gateway, order)
        if problem:
            report = MoveReport(arrived=False, problem=problem)
            return [SendToGateway(gateway, MoveEnded(self._worker, order.transfer_id, report))]
        move_id = self._moves
        self._moves += 1
        self.moving[move_id] = Move(gateway, order)
        self._move_ids[gateway, order.transfer_id] = move_id
        self._imports[order.request_id].moves.add(move_id)
        if isinstance(order, MoveKv):
            return [StartMove(move_id, order)]
        return self._fetch(move_id, order, now_ns) + self._end_fetches()

    def stop_transfer(self, gateway: str, transfer_id: int) -> Effects:
        """Nobody waits for this move any more: stops it if it was not stopped before."""
        move_id = self._move_ids.get((gateway, transfer_id))
        return self._stop(() if move_id is None else (move_id,))

    def disown(self, gateway: str) -> Effects:
        """The gateway is gone, or has begun anew: its moves are nobody's, and stopped."""
        mine = [move_id for move_id, move in self.moving.items() if move.gateway == gateway]
        for move_id in mine:
            move = self.moving[move_id]
            del self._move_ids[gateway, move.order.transfer_id]
            move.gateway = ""
        return self._stop(mine)

    def conclude_import(self, outcome: ImportDone) -> Effects:
        """This is how the import ends, once nobody writes to its blocks; the last outcome counts.
        Stops its moves. Unknown requests are ignored."""
        entry = self._imports.get(outcome.request_id)
        if entry is None:
            return []
        entry.outcome = outcome
        self._ended[outcome.request_id] = None
        return self._stop(sorted(entry.moves))

    def transfer_event(self, event: MoveFinished | TierEvent, now_ns: int) -> Effects:
        """Something that was asked for is done."""
        if isinstance(event, MoveFinished):
            return self._finished(event.move_id, event.report)
        assert self._tiers is not None
        return self._tiers.tier_event(event, now_ns) + self._end_fetches()

    def take_quiet(self) -> list[ImportDone]:
        """The events for the worker machine now: of the imports that have ended and whose blocks
        are quiet. They count no more KV than has come."""
        outcomes: list[ImportDone] = []
        if not self._ended:
            return outcomes
        quiet, self._ended = self._ended, {}
        for request_id in quiet:
            entry = self._imports[request_id]
            assert entry.outcome is not None
            if entry.moves:
                self._ended[request_id] = None
                continue
            del self._imports[request_id]
            outcome = entry.outcome
            tokens = min(outcome.tokens, entry.covered_tokens)
            outcomes.append(ImportDone(request_id, tokens, outcome.output_tokens))
        return outcomes

    def audit(self) -> None:
        """Assert that every move writes to blocks that are still reserved for it, and every fetch
        for an import."""
        by_import = {move_id for entry in self._imports.values() for move_id in entry.moves}
        invariant(by_import == self.moving.keys(), "every move writes for one import")
        invariant(set(self._move_ids.values()) <= by_import, "transfers name moves under way")
        taken = all(entry.outcome is None or entry.moves for entry in self._imports.values())
        invariant(taken, "imports that have ended and are quiet have been taken")
        if self._tiers is not None:
            self._tiers.audit()
            fetching = {
                move_id for move_id, move in self.moving.items() if isinstance(move.order, FetchKv)
            }
            fetches = {each for each in self._tiers.fetches.ids() if not is_prefetch(each)}
            invariant(fetches == fetching, "every fetch writes for an import")

    def _objection(self, gateway: str, order: Order) -> str:
        """Why an order must not be carried out; empty when it may be."""
        entry = self._imports.get(order.request_id)
        if entry is None or entry.outcome is not None:
            return f"{order.request_id} imports nothing here"
        if (gateway, order.transfer_id) in self._move_ids:
            return f"transfer {order.transfer_id} is under way already"
        wanted = entry.wanted
        if not wanted.first_token <= order.first_token < order.end_token <= wanted.end_token:
            return "those tokens are not to be imported"
        if isinstance(order, MoveKv) and order.target_blocks != self._targets(order):
            return "those blocks are not reserved for it"
        if isinstance(order, FetchKv) and order.first_token % self._block_size:
            return "slower tiers hold whole blocks"
        return ""

    def _targets(self, order: Order) -> tuple[int, ...]:
        """The reserved blocks that an order writes to."""
        wanted = self._imports[order.request_id].wanted
        start = (order.first_token - wanted.first_token) // self._block_size
        end = -(-(order.end_token - wanted.first_token) // self._block_size)
        return wanted.blocks[start:end]

    def _fetch(self, move_id: int, order: FetchKv, now_ns: int) -> Effects:
        assert self._tiers is not None
        sequence = self._machine.sequences.importing[order.request_id]
        # Only full blocks have names.
        end = min(order.end_token // self._block_size, len(sequence.chain))
        indices = range(order.first_token // self._block_size, end)
        names = tuple(sequence.block_name(index) for index in indices)
        blocks = self._targets(order)[: len(names)]
        return self._tiers.fetch(Wanted(move_id, names, blocks, order.tier), now_ns)

    def _stop(self, move_ids: Iterable[int]) -> Effects:
        effects: Effects = []
        for move_id in move_ids:
            move = self.moving[move_id]
            if move.stopped:
                continue
            move.stopped = True
            if isinstance(move.order, MoveKv):
                effects.append(EndMove(move_id))
            else:
                assert self._tiers is not None
                effects += self._tiers.end_fetch(move_id)
        return effects + self._end_fetches()

    def _end_fetches(self) -> Effects:
        effects: Effects = []
        for ended in self._tiers.take_ended() if self._tiers is not None else ():
            order = self.moving[ended.fetch_id].order
            whole = ended.report.tokens >= order.end_token - order.first_token
            effects += self._finished(ended.fetch_id, structs.replace(ended.report, arrived=whole))
        return effects

    def _finished(self, move_id: int, report: MoveReport) -> Effects:
        """A move is over: it writes no more."""
        move = self.moving.pop(move_id)
        order = move.order
        ordered_tokens = order.end_token - order.first_token
        tokens = ordered_tokens if report.arrived else min(report.tokens, ordered_tokens)
        entry = self._imports[order.request_id]
        entry.moves.remove(move_id)
        if tokens:
            entry.arrived.append((order.first_token, order.first_token + tokens))
        if not move.gateway:
            return []
        del self._move_ids[move.gateway, order.transfer_id]
        return [SendToGateway(move.gateway, MoveEnded(self._worker, order.transfer_id, report))]
