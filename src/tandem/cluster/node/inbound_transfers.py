"""Inbound KV transfers of a worker into reserved blocks, from other workers and from slower
tiers: orders, their ends, and when nothing writes to the blocks any more."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tandem.cluster.audit import invariant
from tandem.cluster.node.fetches import Wanted
from tandem.cluster.node.tiers import TierEvent, WorkerTiers
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.kv_export import MoveKv, MoveReport
from tandem.messages.cluster import FetchKv, MoveEnded
from tandem.messages.node import (
    EndFetch,
    EndMove,
    MoveFinished,
    NodeEffect,
    SendToGateway,
    StartMove,
)
from tandem.messages.worker import ImportBlocks, ImportDone

Order = MoveKv | FetchKv
End = EndMove | EndFetch


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
    come. `outcome` is what the machine will be told once they are quiet."""

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


class Imports:
    """By request id; `moving` are the moves under way by the ids they have here."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.moving: dict[int, Move] = {}
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

    def objection(self, gateway: str, order: Order) -> str:
        """Why an order must not be carried out; empty when it may be."""
        entry = self._imports.get(order.request_id)
        if entry is None or entry.outcome is not None:
            return f"{order.request_id} imports nothing here"
        if (gateway, order.transfer_id) in self._move_ids:
            return f"transfer {order.transfer_id} is under way already"
        wanted = entry.wanted
        if not wanted.first_token <= order.first_token < order.end_token <= wanted.end_token:
            return "those tokens are not to be imported"
        if isinstance(order, MoveKv) and order.target_blocks != self.targets(order):
            return "those blocks are not reserved for it"
        if isinstance(order, FetchKv) and order.first_token % self.block_size:
            return "slower tiers hold whole blocks"
        return ""

    def targets(self, order: Order) -> tuple[int, ...]:
        """The reserved blocks that an order writes to."""
        wanted = self._imports[order.request_id].wanted
        start = (order.first_token - wanted.first_token) // self.block_size
        end = -(-(order.end_token - wanted.first_token) // self.block_size)
        return wanted.blocks[start:end]

    def start_transfer(self, gateway: str, order: Order) -> int:
        """An order without objection is carried out from now on. Gives the id of the move."""
        move_id = self._moves
        self._moves += 1
        self.moving[move_id] = Move(gateway, order)
        self._move_ids[gateway, order.transfer_id] = move_id
        self._imports[order.request_id].moves.add(move_id)
        return move_id

    def stop_transfer(self, gateway: str, transfer_id: int) -> list[End]:
        """Nobody waits for this move any more: stops it if it was not stopped before."""
        move_id = self._move_ids.get((gateway, transfer_id))
        return [] if move_id is None else self._stopping((move_id,))

    def disown(self, gateway: str) -> list[End]:
        """The gateway is gone, or has begun anew: its moves are nobody's, and stopped."""
        mine = [move_id for move_id, move in self.moving.items() if move.gateway == gateway]
        for move_id in mine:
            move = self.moving[move_id]
            del self._move_ids[gateway, move.order.transfer_id]
            move.gateway = ""
        return self._stopping(tuple(mine))

    def conclude_import(self, outcome: ImportDone) -> list[End]:
        """This is how the import ends, once nobody writes to its blocks; the last word counts.
        Stops its moves. Unknown requests are ignored."""
        entry = self._imports.get(outcome.request_id)
        if entry is None:
            return []
        entry.outcome = outcome
        self._ended[outcome.request_id] = None
        return self._stopping(tuple(sorted(entry.moves)))

    def transfer_finished(self, move_id: int, tokens: int) -> Move:
        """A move is over: it writes no more, and brought the first `tokens` of what was ordered."""
        move = self.moving.pop(move_id)
        if move.gateway:
            del self._move_ids[move.gateway, move.order.transfer_id]
        entry = self._imports[move.order.request_id]
        entry.moves.remove(move_id)
        if tokens:
            first_token = move.order.first_token
            entry.arrived.append((first_token, first_token + tokens))
        return move

    def take_quiet(self) -> list[ImportDone]:
        """What the machine is to be told now: of the imports that have ended and whose blocks are
        quiet. No more KV is promised than has come."""
        quiet, self._ended = self._ended, {}
        outcomes: list[ImportDone] = []
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
        """Assert that every move writes to blocks that are still reserved for it."""
        by_import = {move_id for entry in self._imports.values() for move_id in entry.moves}
        invariant(by_import == self.moving.keys(), "every move writes for one import")
        invariant(set(self._move_ids.values()) <= by_import, "transfers name moves under way")
        taken = all(entry.outcome is None or entry.moves for entry in self._imports.values())
        invariant(taken, "imports that have ended and are quiet have been taken")

    def _stopping(self, move_ids: tuple[int, ...]) -> list[End]:
        ends: list[End] = []
        for move_id in move_ids:
            move = self.moving[move_id]
            if not move.stopped:
                move.stopped = True
                is_move = isinstance(move.order, MoveKv)
                ends.append(EndMove(move_id) if is_move else EndFetch(move_id))
        return ends


Effects = list[NodeEffect]


class InboundTransfers:
    """Owns the `imports`. After every method some of them may be quiet (`Imports.take_quiet`)."""

    def __init__(self, worker: str, machine: WorkerMachine, tiers: WorkerTiers | None) -> None:
        self.imports = Imports(machine.config.block_size)
        self._worker = worker
        self._machine = machine
        self._tiers = tiers

    def accept_order(self, gateway: str, order: Order, problem: str, now_ns: int) -> Effects:
        """Carry out what a gateway ordered, unless there is a `problem` or it makes no sense."""
        problem = problem or self.imports.objection(gateway, order)
        if problem:
            report = MoveReport(arrived=False, problem=problem)
            return [SendToGateway(gateway, MoveEnded(self._worker, order.transfer_id, report))]
        move_id = self.imports.start_transfer(gateway, order)
        if isinstance(order, MoveKv):
            return [StartMove(move_id, order)]
        return self._fetch(move_id, order, now_ns) + self._end_fetches()

    def stop_transfer(self, gateway: str, transfer_id: int) -> Effects:
        """Nobody waits for this move any more."""
        return self._stopped(self.imports.stop_transfer(gateway, transfer_id))

    def disown(self, gateway: str) -> Effects:
        """The gateway is gone, or has begun anew: its moves are stopped and nobody hears of
        them."""
        return self._stopped(self.imports.disown(gateway))

    def conclude_import(self, outcome: ImportDone) -> Effects:
        """This is how an import ends once nobody writes to its blocks."""
        return self._stopped(self.imports.conclude_import(outcome))

    def transfer_event(self, event: MoveFinished | TierEvent, now_ns: int) -> Effects:
        """Something that was asked for is done."""
        if isinstance(event, MoveFinished):
            return self._finished(event.move_id, event.report)
        assert self._tiers is not None
        return self._tiers.tier_event(event, now_ns) + self._end_fetches()

    def audit(self) -> None:
        """Assert that every fetch writes for an import."""
        self.imports.audit()
        if self._tiers is not None:
            self._tiers.audit()
            fetching = {
                move_id
                for move_id, move in self.imports.moving.items()
                if isinstance(move.order, FetchKv)
            }
            fetches = self._tiers.fetches.ids()
            invariant(fetches == fetching, "every fetch writes for an import")

    def _fetch(self, move_id: int, order: FetchKv, now_ns: int) -> Effects:
        assert self._tiers is not None
        sequence = self._machine.sequences.importing[order.request_id]
        block_size = self._machine.config.block_size
        # Only full blocks have names.
        end = min(order.end_token // block_size, len(sequence.chain))
        indices = range(order.first_token // block_size, end)
        names = tuple(sequence.block_name(index) for index in indices)
        blocks = self.imports.targets(order)[: len(names)]
        return self._tiers.fetch(Wanted(move_id, names, blocks, order.tier), now_ns)

    def _stopped(self, ends: Iterable[End]) -> Effects:
        effects: Effects = []
        for end in ends:
            if isinstance(end, EndFetch) and self._tiers is not None:
                effects += self._tiers.end_fetch(end.fetch_id)
            else:
                effects.append(end)
        return effects + self._end_fetches()

    def _end_fetches(self) -> Effects:
        effects: Effects = []
        for ended in self._tiers.take_ended() if self._tiers is not None else ():
            order = self.imports.moving[ended.fetch_id].order
            whole = ended.report.tokens >= order.end_token - order.first_token
            effects += self._finished(ended.fetch_id, replace(ended.report, arrived=whole))
        return effects

    def _finished(self, move_id: int, report: MoveReport) -> Effects:
        """Nobody writes for this move any more."""
        order = self.imports.moving[move_id].order
        ordered_tokens = order.end_token - order.first_token
        tokens = ordered_tokens if report.arrived else min(report.tokens, ordered_tokens)
        move = self.imports.transfer_finished(move_id, tokens)
        if not move.gateway:
            return []
        ended = MoveEnded(self._worker, order.transfer_id, report)
        return [SendToGateway(move.gateway, ended)]
