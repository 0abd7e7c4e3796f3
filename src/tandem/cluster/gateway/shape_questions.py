"""A planner's questions to the simulator: from plans to whole shapes of the fleet with the demand
that they are tried with, and from the answer to what the planner sees."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from tandem.cluster.gateway.demand_record import DemandRecord, measured_share
from tandem.cluster.gateway.members import Members
from tandem.cluster.gateway.plan_actions import FleetState
from tandem.facts.fleet import Role
from tandem.facts.shapes import FleetShape, ShapeFigures, WorkerGroup
from tandem.messages.gateway import ShapesSimulated, SimulateShapes
from tandem.messages.planning import SimulationStatus
from tandem.policy.planning.contract import Answer, Question
from tandem.policy.planning.recorded_demand import settled
from tandem.policy.planning.simulated import LEAST_REQUESTS

# The load of a simulation is that of the record times something within these bounds.
SLOWEST, FASTEST = 0.5, 2.0
# So much later than its limit an answer is not waited for any more.
GRACE_S = 5.0


class ShapeQuestions:
    """One question at a time, which goes by the instant at which it is asked: a late answer to one
    before is never taken for its own, whatever was configured in between. `pool_of` names the pool
    of each worker that may be started, prompts are hashed in blocks of `block_size`, and the record
    is that of one among `gateways`. `answer` is that to the last question, for the planner;
    `figures` are those of the last answer with any, by name, for the records."""

    def __init__(
        self,
        record: DemandRecord,
        members: Members,
        pool_of: Callable[[str], str],
        block_size: int,
        gateways: int = 1,
    ) -> None:
        self._record, self._members = record, members
        self._pool_of, self._block_size, self._gateways = pool_of, block_size, gateways
        self._open: SimulateShapes | None = None
        self._pending = Answer(0)
        self._shapes: tuple[FleetShape, ...] = ()
        # For each plan of the question, which of the shapes it comes to.
        self._places: tuple[int, ...] = ()
        self.answer: Answer | None = None
        self.figures: dict[str, float] = {}
        self._status = SimulationStatus()
        self._answered_ns = 0

    def ask(
        self,
        question: Question,
        fleet_state: Callable[[], FleetState],
        stable_from_ns: int,
        now_ns: int,
    ) -> SimulateShapes | None:
        """What the simulator is to do; None where that is pointless, and the answer is there at
        once. The fleet is the present one since `stable_from_ns`."""
        # Whoever asks may be another planner than the one that asked before.
        self.answer = None
        entries = settled(self._record.entries(), now_ns, question.window_s, question.requests)
        self._pending = Answer(question.serial, requests=len(entries))
        if len(entries) < LEAST_REQUESTS:
            self._finish(f"only {len(entries)} requests were recorded", now_ns)
            return None
        seconds = max(1.0, (now_ns - entries[0].arrival_ns) / 1e9)
        # The other gateways have as many, which are not recorded here.
        rate_per_s = len(entries) * self._gateways / seconds
        speed = min(FASTEST, max(SLOWEST, question.rate_per_s / rate_per_s))
        stood = entries[0].arrival_ns >= stable_from_ns
        self._pending = replace(
            self._pending,
            seconds=seconds,
            speed=speed,
            measured=measured_share(entries) if stood else None,
        )
        shapes = [self._shape(fleet_state().after(plan)) for plan in question.plans]
        self._shapes = tuple(dict.fromkeys(shapes))
        self._places = tuple(self._shapes.index(shape) for shape in shapes)
        self._open = SimulateShapes(
            question_id=now_ns,
            shapes=self._shapes,
            demand=tuple(entry.frozen for entry in entries),
            block_size=self._block_size,
            speed=speed * self._gateways,
            cpu_s=question.cpu_s,
            limit_s=question.limit_s,
        )
        return self._open

    def answered(self, event: ShapesSimulated, now_ns: int) -> None:
        """The simulator answers; what it answers to an older question is ignored."""
        if self._open is None or event.question_id != self._open.question_id:
            return
        status = self._status
        self._status = SimulationStatus(status.answers, status.failures, status.cpu_s + event.cpu_s)
        if event.problem or not event.figures:
            self._finish(event.problem or "it had no time for a single shape", now_ns)
            return
        figures: list[ShapeFigures | None] = [*event.figures[: len(self._shapes)]]
        figures += [None] * (len(self._shapes) - len(figures))
        self._pending = replace(
            self._pending, figures=tuple(figures[place] for place in self._places)
        )
        done = [
            (shape, each.kept)
            for shape, each in zip(self._shapes, figures, strict=True)
            if each is not None
        ]
        self.figures = {f"simulated_kept_{_key(shape)}": kept for shape, kept in done}
        tried = ", ".join(f"{shape} {kept:.0%}" for shape, kept in done)
        past = f"of {self._pending.requests} requests would have kept the SLO"
        self._finish("", now_ns, f"{tried} {past}")

    def expire(self, now_ns: int) -> None:
        """An answer that is long overdue will not come."""
        if self._open is None:
            return
        limit_s = self._open.limit_s + GRACE_S
        if now_ns - self._open.question_id >= round(limit_s * 1e9):
            self._finish(f"no answer in {limit_s:.0f} s", now_ns)

    def status(self, now_ns: int) -> SimulationStatus:
        """For operators."""
        status = self._status
        return SimulationStatus(
            answers=status.answers,
            failures=status.failures,
            cpu_s=status.cpu_s,
            text=status.text,
            ago_s=(now_ns - self._answered_ns) / 1e9 if status.text else 0.0,
            is_open=self._open is not None,
        )

    def _finish(self, problem: str, now_ns: int, text: str = "") -> None:
        self.answer = replace(self._pending, problem=problem)
        self._open = None
        self._answered_ns = now_ns
        status = self._status
        self._status = SimulationStatus(
            answers=status.answers + (not problem),
            failures=status.failures + bool(problem),
            cpu_s=status.cpu_s,
            text=problem or text,
        )

    def _shape(self, workers: Mapping[str, Role]) -> FleetShape:
        """Grouped by pool and role; who is not up yet has as much KV as others of its pool."""
        blocks: dict[str, int] = {}
        for member in self._members:
            register = member.registration
            count = register.export.block_count
            blocks[register.pool] = min(count, blocks.get(register.pool, count))
        least = min(blocks.values(), default=1)
        counts: Counter[tuple[str, Role]] = Counter()
        for worker, role in workers.items():
            member_of = self._members.of_name(worker)
            pool = self._pool_of(worker) if member_of is None else member_of.registration.pool
            counts[pool, role] += 1
        return FleetShape(
            tuple(
                WorkerGroup(pool, role, count, blocks.get(pool, least))
                for (pool, role), count in sorted(counts.items())
            )
        )


def _key(shape: FleetShape) -> str:
    """As 2p3d."""
    return f"{shape.workers(Role.PREFILL)}p{shape.workers(Role.DECODE)}d"
