"""Who may be read from, and every move under way: cut into parts, sent to lanes, gathered again.

Single-threaded, like the machines; lanes answer through the thread that owns it.
"""

from collections import deque
from collections.abc import Callable, Sequence

from tandem.facts.kv_export import KvExport, MoveKv, MoveReport
from tandem.kv.compatibility import objection, order_objection
from tandem.kv.headers import Headers
from tandem.kv.mover_config import MoverConfig, MoverMemory
from tandem.kv.mover_lane import Lane
from tandem.kv.mover_moves import Move, PartPlan
from tandem.kv.mover_reader import Part
from tandem.kv.runs import Reading, WindowTooSmall
from tandem.kv.shards import shared_runs
from tandem.kv.staging import copies_layout, pool_layout

NS_PER_S = 1_000_000_000


class Desk:
    """`ended` gets every move that was started, once."""

    def __init__(
        self,
        memory: MoverMemory,
        lanes: Sequence[Lane],
        config: MoverConfig,
        ended: Callable[[int, MoveReport], None],
    ) -> None:
        self._memory = memory
        self._headers = Headers(memory.view, memory.layout, memory.transfer)
        self._lanes = {lane.name: lane for lane in lanes}
        self._config = config
        self._ended = ended
        self._sources: dict[tuple[str, str], KvExport] = {}
        self._objections: dict[tuple[str, str], str | None] = {}
        self._moves: dict[int, Move] = {}

    def connect(self, worker: str, incarnation: str, export: KvExport) -> None:
        source = (worker, incarnation)
        self._sources[source] = export
        self._objections[source] = objection(self._memory.export, export)

    def forget(self, worker: str, incarnation: str) -> None:
        source, problem = (worker, incarnation), f"{worker} is gone"
        export = self._sources.pop(source, None)
        if export is None:
            return
        for move in self._moves.values():
            if move.source == source:
                move.problem = move.problem or problem
        for lane in self._lanes.values():
            for shard in export.shards:
                lane.forget(_peer(source, shard.rank), problem)

    def start(self, move_id: int, order: MoveKv, now_ns: int) -> None:
        assert move_id not in self._moves
        move = Move(order, now_ns)
        move.problem = self._objection(order) or self._plan(move)
        if move.problem:
            self._ended(move_id, move.report(now_ns))
            return
        self._moves[move_id] = move
        # Others may still have orders for what these blocks held before.
        self._headers.withdraw(order.target_blocks)
        for peer in tuple(move.waiting):
            self._send(move_id, peer, now_ns)

    def stop(self, move_id: int, problem: str) -> None:
        """The move ends soon; unknown ones have ended already."""
        move = self._moves.get(move_id)
        if move and not move.problem:
            move.problem = problem
            for lane in self._lanes.values():
                lane.stop(move_id, problem)

    def take(self, lane: str, part: Part, now_ns: int) -> None:
        """A lane gives a part back."""
        move = self._moves[part.move_id]
        if part.unreachable and not move.problem:
            move.waiting[part.peer].refusals.append(f"{lane}: {part.problem}")
            self._send(part.move_id, part.peer, now_ns)
            return
        del move.waiting[part.peer]
        move.moved_bytes += part.moved_bytes
        move.spans += part.spans
        move.used += [] if part.unreachable else [lane]
        if part.problem:
            self.stop(part.move_id, part.problem)
        self._end_if_over(part.move_id, now_ns)

    def _objection(self, order: MoveKv) -> str:
        source = (order.source, order.incarnation)
        export = self._sources.get(source)
        if export is None:
            return f"nothing is known of {order.source} of incarnation {order.incarnation}"
        if problem := self._objections[source]:
            return f"cannot read from {order.source}: {problem}"
        if len(self._moves) >= self._config.max_moves:
            return f"{len(self._moves)} moves are under way already"
        return order_objection(order, self._memory.export, export) or ""

    def _plan(self, move: Move) -> str:
        """A part for each rank that has some of what is needed. Gives what stands against it."""
        export = self._sources[move.source]
        for runs in shared_runs(self._memory.shard, export.shards):
            theirs = pool_layout(export, runs.shard)
            reading = read_from = Reading.of_blocks(move.order, theirs, self._memory.layout, runs)
            copies = copies_layout(export, runs.shard)
            if copies and export.encoded and export.encoded.dtype == self._config.wire_dtype:
                read_from = reading.of_copies(*copies)
            try:
                # Whatever comes encoded may have to be read as it is stored after all.
                reading.windows(self._config.piece_bytes)
                windows = read_from.windows(self._config.piece_bytes)
            except WindowTooSmall as error:
                return str(error)
            # In one's own order of preference.
            ways = [w for name in self._lanes for w in runs.shard.endpoints if w.connector == name]
            plan = PartPlan(reading, [(read_from, window) for window in windows], ways)
            move.waiting[_peer(move.source, runs.shard.rank)] = plan
        return ""

    def _send(self, move_id: int, peer: str, now_ns: int) -> None:
        """Give a part to the next lane that may reach its rank."""
        move = self._moves[move_id]
        plan = move.waiting[peer]
        if not plan.ways:
            del move.waiting[peer]
            why = "; ".join(plan.refusals) or "no connector in common"
            self.stop(move_id, f"no way to {peer}: {why}")
            self._end_if_over(move_id, now_ns)
            return
        way = plan.ways.pop(0)
        deadline_ns = move.begun_ns + round(self._config.timeout_s * NS_PER_S)
        part = Part(move_id, peer, plan.reading, deque(plan.windows), deadline_ns)
        self._lanes[way.connector].read(part, way.description)

    def _end_if_over(self, move_id: int, now_ns: int) -> None:
        move = self._moves[move_id]
        if not move.waiting:
            del self._moves[move_id]
            self._ended(move_id, move.report(now_ns))


def _peer(source: tuple[str, str], rank: int) -> str:
    """What connectors call that rank."""
    return "/".join((*source, str(rank)))
