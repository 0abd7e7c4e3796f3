"""Inbound KV transfers of a worker, from other workers and from slower tiers: orders, their ends,
and reports to the gateway that ordered them."""

from collections.abc import Iterable
from dataclasses import replace

from tandem.cluster.audit import invariant
from tandem.cluster.node.fetches import Wanted
from tandem.cluster.node.imports import End, Imports, Order
from tandem.cluster.node.tiers import TierEvent, WorkerTiers
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.kv_export import MoveKv, MoveReport
from tandem.messages.cluster import FetchKv, MoveEnded
from tandem.messages.node import (
    EndFetch,
    MoveFinished,
    NodeEffect,
    SendToGateway,
    StartMove,
)
from tandem.messages.worker import ImportDone

Effects = list[NodeEffect]


class InboundTransfers:
    """Owns the `imports`. After every method some of them may be quiet (`Imports.take_quiet`)."""

    def __init__(self, worker: str, machine: WorkerMachine, tiers: WorkerTiers | None) -> None:
        self.imports = Imports(machine.config.block_size)
        self._worker = worker
        self._machine = machine
        self._tiers = tiers

    def order(self, gateway: str, order: Order, problem: str, now_ns: int) -> Effects:
        """Carry out what a gateway ordered, unless there is a `problem` or it makes no sense."""
        problem = problem or self.imports.objection(gateway, order)
        if problem:
            report = MoveReport(arrived=False, problem=problem)
            return [SendToGateway(gateway, MoveEnded(self._worker, order.transfer_id, report))]
        move_id = self.imports.start(gateway, order)
        if isinstance(order, MoveKv):
            return [StartMove(move_id, order)]
        return self._fetch(move_id, order, now_ns) + self._end_fetches()

    def stop(self, gateway: str, transfer_id: int) -> Effects:
        """Nobody waits for this move any more."""
        return self._stopped(self.imports.stop(gateway, transfer_id))

    def disown(self, gateway: str) -> Effects:
        """The gateway is gone, or has begun anew: its moves are stopped and nobody hears of
        them."""
        return self._stopped(self.imports.disown(gateway))

    def conclude(self, outcome: ImportDone) -> Effects:
        """This is how an import ends once nobody writes to its blocks."""
        return self._stopped(self.imports.conclude(outcome))

    def happened(self, event: MoveFinished | TierEvent, now_ns: int) -> Effects:
        """Something that was asked for is done."""
        if isinstance(event, MoveFinished):
            return self._finished(event.move_id, event.report)
        assert self._tiers is not None
        return self._tiers.happened(event, now_ns) + self._end_fetches()

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
        move = self.imports.finished(move_id, tokens)
        if not move.gateway:
            return []
        ended = MoveEnded(self._worker, order.transfer_id, report)
        return [SendToGateway(move.gateway, ended)]
