"""Starts the workers that the planner of a cluster wants, and reports which could not be started.

The status of a planner's gateway names what is to be started, for as long as it is not up: nothing
is lost with a gateway or with an answer, and nothing is started twice, for a name that lives is
never started. What the planner sends away leaves by itself, and is not started again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import msgspec

from tandem.config.cluster.workers import PoolConfig
from tandem.facts.errors import TandemError
from tandem.facts.fleet import Role
from tandem.live.gateway.operators import Operators
from tandem.live.launching.launcher import Program
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.launching.supervisor import Notice, ProcessFailed, Supervisor
from tandem.live.processes.setups import Setups, program_of, write_admitted
from tandem.messages.gateway import ClusterStatus
from tandem.messages.planning import PlannedStart


class PlannedWorkers:
    """Those of one cluster that runs; `started` is called with each that is, and `notice` with what
    the planner decided. Used from one event loop."""

    def __init__(
        self,
        setups: Setups,
        directory: StateDirectory,
        supervisor: Supervisor,
        *,
        started: Callable[[PlannedStart], None],
        notice: Callable[[Notice], None],
    ) -> None:
        self._setups, self._directory, self._supervisor = setups, directory, supervisor
        self._started, self._notice = started, notice
        self._places = _places(setups)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Not reported to the planner yet.
        self._failed: dict[str, str] = {}
        self._shown_ns = 0

    def reconfigure(self, setups: Setups) -> None:
        """Start workers by other set-ups from now on; names that stay keep their numbers."""
        self._setups = setups
        self._places = _places(setups, self._places)

    def place_of(self, pool: PoolConfig, worker: str) -> int:
        """The number among all of them of a worker that is to start."""
        taken = {number for _, number in self._places.values()}
        free = next(number for number in count() if number not in taken)
        return self._places.setdefault(worker, (pool, free))[1]

    def worker_failed(self, failure: ProcessFailed) -> None:
        """A process is given up: the planner need not wait for it."""
        if failure.name in self._places:
            self._failed[failure.name] = failure.how

    async def look(self, statuses: Sequence[ClusterStatus], operators: Operators) -> None:
        """Do what the gateways' planner wants by their present `statuses`."""
        # Wanted as long as the planner does not know better.
        hopeless = set(self._failed)
        for worker, reason in list(self._failed.items()):
            if await operators.report_start_failed(worker, reason):
                del self._failed[worker]
        for status in statuses:
            for worker in status.members & self._places.keys():
                self._supervisor.confirm(worker)
            if status.planning is None:
                continue
            for decision in status.planning.decisions:
                if decision.instant_ns > self._shown_ns:
                    self._shown_ns = decision.instant_ns
                    self._notice(Notice("planner", decision.text))
            for start in status.planning.starting:
                if start.worker not in hopeless:
                    self._launch(start, operators.endpoints)

    async def stop(self) -> None:
        """Start nothing more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _launch(self, start: PlannedStart, gateways: tuple[str, ...]) -> None:
        worker = start.worker
        known = worker in self._places
        if not known or worker in self._tasks or self._supervisor.keeps(worker):
            return
        # Elsewhere it may have to wait for a machine.
        task = asyncio.create_task(self._start(start, gateways))
        self._tasks[worker] = task
        task.add_done_callback(lambda _: self._tasks.pop(worker))

    async def _start(self, start: PlannedStart, gateways: tuple[str, ...]) -> None:
        try:
            program = self._program(start, gateways)
            self._started(start)
            await self._supervisor.start(program)
        except (TandemError, OSError) as error:
            self._notice(Notice(start.worker, f"cannot be started: {error}"))
            self._failed[start.worker] = str(error)

    def _program(self, start: PlannedStart, gateways: tuple[str, ...]) -> Program:
        pool, number = self._places[start.worker]
        setup = self._setups.worker(pool, start.worker, gateways)
        setup = msgspec.structs.replace(setup, role=Role(start.role).value)
        write_admitted(self._setups, self._directory)
        return program_of(setup, self._directory, self._setups.environment(pool, number))


def _places(
    setups: Setups, before: Mapping[str, tuple[PoolConfig, int]] | None = None
) -> dict[str, tuple[PoolConfig, int]]:
    """Every worker that may be up, by name: its pool, and its number among all of them, those that
    start with the cluster first. Whoever had a number `before` keeps it, others fill the gaps."""
    pools = setups.cluster.pools
    ranges = [(pool, range(pool.count)) for pool in pools]
    ranges += [(pool, range(pool.count, setups.cluster.most_workers(pool))) for pool in pools]
    everybody = {f"{pool.name}-{index}": pool for pool, indices in ranges for index in indices}
    numbers = {name: number for name, (_, number) in (before or {}).items() if name in everybody}
    free = (number for number in count() if number not in set(numbers.values()))
    return {
        name: (pool, numbers[name] if name in numbers else next(free))
        for name, pool in everybody.items()
    }
