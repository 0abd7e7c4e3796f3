"""Applies another cluster file to a cluster that runs: all gateways accept it, then it is written
down for processes that start later, then all gateways switch, and workers start and drain."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tandem.config.cluster.keys import SHARED_POOL, WORKER
from tandem.config.cluster.live import LiveFile, handed_to
from tandem.config.cluster.tiers import pool_nodes
from tandem.config.processes import (
    GatewaySetup,
    PoolNodeSetup,
    WorkerSetup,
    read_setup,
    write_setup,
)
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.facts.fleet import Role
from tandem.live.gateway.operators import PATIENCE_S, NoAnswer, Operators
from tandem.live.launching.control import Send
from tandem.live.launching.launcher import tail
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.launching.supervisor import Notice, Supervisor
from tandem.live.processes.change_plan import ChangePlan, WorkerChanges, plan_change
from tandem.live.processes.planned_workers import PlannedWorkers
from tandem.live.processes.setups import (
    Setups,
    program_of,
    write_admitted,
    write_cluster_file,
)
from tandem.messages.gateway import ClusterStatus
from tandem.messages.supervisor import AskApply, ChangeEnded, ChangePlanned, ChangeProgress

# Datasheets and key files are read before a gateway answers.
ANSWER_S = 5.0
# The answers of a worker that drains move or end first.
DRAIN_S = 900.0
LOOK_S = 0.2
# One that no gateway knows has nothing to drain.
LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class Switched:
    """The gateways run by the configuration of this `number`, and the workers that it adds are up;
    those that are `leaving` are still to drain. `problems` are what has not worked."""

    number: int
    leaving: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class Configured:
    """By what a cluster runs: its file, the set-ups of its processes, and those of the gateways
    that are up. `number` counts what operators have applied."""

    file: LiveFile
    setups: Setups
    gateways: list[GatewaySetup]
    number: int = 0

    def operators(
        self, timeout_s: float, gateways: Sequence[GatewaySetup] | None = None
    ) -> Operators:
        """The way to these gateways, or to all."""
        some = self.gateways if gateways is None else gateways
        endpoints = [setup.listen for setup in some]
        return Operators(endpoints, self.setups.supervisor_keys, timeout_s)


class Applying:
    """For the cluster that runs as `configured`, which it changes, with the processes of this
    `supervisor`; `roles` are those with which workers start. Used from one event loop."""

    def __init__(
        self,
        configured: Configured,
        directory: StateDirectory,
        supervisor: Supervisor,
        planned: PlannedWorkers,
        roles: dict[str, Role],
        *,
        notice: Callable[[Notice], None],
        start_s: float,
    ) -> None:
        """New workers may take `start_s` to join."""
        self._configured, self._directory = configured, directory
        self._supervisor, self._planned, self._roles = supervisor, planned, roles
        self._notice, self._start_s = notice, start_s
        self._tasks: set[asyncio.Task[None]] = set()
        # From a plan until the workers that it adds are up: the next plan must see them.
        self._is_changing = False
        # While gateways are asked to switch.
        self._is_switching = False
        # Workers that drain: no later plan counts on them.
        self._leaving: set[str] = set()
        # Why gateways have not taken the configuration, for one notice each.
        self._behind: dict[str, str] = {}

    async def answer(self, asked: AskApply, send: Send) -> None:
        """Answer an operator. What was begun goes on when the operator leaves; another change may
        begin while workers drain."""
        if self._is_changing:
            refusal = "another change is being applied; ask again when it is done"
            await send(ChangePlanned(self._configured.number, refusals=(refusal,)))
            return
        self._is_changing = True
        task = asyncio.create_task(self._apply(asked, send))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def stop(self) -> None:
        """Leave off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def push(self, statuses: Sequence[ClusterStatus], number: int) -> None:
        """Have gateways catch up that were away when the others switched, by the statuses of all
        that answer; they were asked for when the cluster had the configuration of this number."""
        configured = self._configured
        for setup in configured.gateways:
            status = next((each for each in statuses if each.gateway == setup.gateway), None)
            if self._is_switching or status is None or status.configuration >= number:
                continue
            operators = configured.operators(ANSWER_S, [setup])
            mine = _encoded(setup, configured.setups, configured.number)
            (problem,) = await operators.configure(configured.number, [mine], check_only=False)
            if problem == "" or (problem and self._behind.get(setup.gateway) != problem):
                text = problem or f"has taken configuration {configured.number}"
                self._notice(Notice(setup.gateway, text))
                self._behind[setup.gateway] = problem

    async def _apply(self, asked: AskApply, send: Send) -> None:
        try:
            switched = await self._plan_and_switch(asked, send)
        finally:
            self._is_changing = False
        if switched is not None:
            ends = await asyncio.gather(*(self._send_away(name, send) for name in switched.leaving))
            problems = (*switched.problems, *(problem for problem in ends if problem))
            await send(ChangeEnded(switched.number, problems))

    async def _plan_and_switch(self, asked: AskApply, send: Send) -> Switched | None:
        """None where that is all: nothing was to be changed, or nothing could be."""
        number = self._configured.number
        try:
            plan = await self._plan(asked)
        except TandemError as error:
            await send(ChangePlanned(number, refusals=(str(error),)))
            return None
        if asked.seen is not None and asked.seen != number:
            refusal = f"configuration {number} was applied meanwhile; look at the changes again"
            await send(ChangePlanned(number, refusals=(refusal,)))
            return None
        await send(plan.shown(number))
        if asked.dry_run or plan.refusals or not (plan.keys or plan.workers.texts):
            return None
        self._notice(Notice("apply", f"configuration {number + 1} is applied"))
        try:
            self._write_down(plan.file, plan.setups, number + 1)
        except OSError as error:
            self._take_back()
            problem = f"the configuration cannot be written, and is not applied: {error}"
            await send(ChangeEnded(self._configured.number, (problem,)))
            return None
        problems = await self._switch(plan, send)
        # New ones first, so that somebody has the work of those that go.
        missing, leaving = await self._start(plan.workers, send), plan.workers.leaving
        if missing and leaving:
            missing.append(f"{', '.join(leaving)} stay, for the others did not come")
            leaving = ()
        self._leaving.update(leaving)
        return Switched(number + 1, leaving, (*problems, *missing))

    async def _plan(self, asked: AskApply) -> ChangePlan:
        """With what gateways have against it. Raises `TandemError`."""
        configured = self._configured
        statuses = await configured.operators(PATIENCE_S).statuses()
        kept = {name for name in self._supervisor.names if self._supervisor.keeps(name)}
        taken = kept.union(*(status.members for status in statuses))
        plan = await asyncio.to_thread(
            plan_change, asked.file, configured.file, configured.setups, self._workers(), taken
        )
        if plan.refusals or not plan.keys:
            return plan
        if not statuses:
            return replace(plan, refusals=("no gateway answers; ask again",))
        # A gateway that is away takes it later (`push`).
        answering = {status.gateway for status in statuses}
        asked_gateways = [each for each in configured.gateways if each.gateway in answering]
        number = configured.number + 1
        wanted = [_encoded(setup, plan.setups, number) for setup in asked_gateways]
        operators = configured.operators(ANSWER_S, asked_gateways)
        answers = await operators.configure(number, wanted, check_only=True)
        silent = f"it did not answer in {ANSWER_S:g} s; ask again"
        refusals = (
            f"{setup.gateway}: {silent if problem is None else problem}"
            for setup, problem in zip(asked_gateways, answers, strict=True)
            if problem != ""
        )
        return replace(plan, refusals=tuple(refusals))

    def _workers(self) -> dict[str, str]:
        """Those that the supervisor keeps and that stay, with the names of their pools."""
        return {
            name: read_setup(WorkerSetup, self._setup_file(name)).pool
            for name in self._supervisor.names
            if name in self._roles and name not in self._leaving and self._supervisor.keeps(name)
        }

    def _write_down(self, file: LiveFile, setups: Setups, number: int) -> None:
        """For processes that start or join later. Raises `OSError`, with some of it written."""
        cluster = file.cluster
        # First: a gateway that starts by its new set-up keeps this file in its journal.
        write_cluster_file(file, setups, self._directory)
        for gateway in self._gateways_by(setups, number):
            write_setup(gateway, self._setup_file(gateway.gateway))
        pools = {pool.name for pool in cluster.pools}
        for name, pool in self._workers().items():
            # Who is to go ends as what it is.
            if pool in pools:
                worker = read_setup(WorkerSetup, self._setup_file(name))
                worker = msgspec.structs.replace(worker, cluster=handed_to(cluster, WORKER))
                write_setup(worker, self._setup_file(name))
        for name in pool_nodes(cluster):
            node = read_setup(PoolNodeSetup, self._setup_file(name))
            node = msgspec.structs.replace(node, cluster=handed_to(cluster, SHARED_POOL))
            write_setup(node, self._setup_file(name))

    def _take_back(self) -> None:
        """The next configuration could not be written as a whole. What the cluster runs by gets the
        number after it: a gateway that has started by it meanwhile takes that (`push`)."""
        configured = self._configured
        configured.number += 2
        configured.gateways[:] = self._gateways_by(configured.setups, configured.number)
        with suppress(OSError):
            self._write_down(configured.file, configured.setups, configured.number)

    async def _switch(self, plan: ChangePlan, send: Send) -> list[str]:
        """There is no way back: a gateway that does not answer is asked again (`push`). Gives the
        problems."""
        configured = self._configured
        configured.number += 1
        configured.gateways[:] = self._gateways_by(plan.setups, configured.number)
        # Not those that the plan was checked with: a worker may have got its key since.
        configured.setups = configured.setups.with_cluster(plan.file.cluster)
        configured.file = plan.file
        self._planned.reconfigure(configured.setups)
        encoded = [
            _encoded(setup, configured.setups, configured.number) for setup in configured.gateways
        ]
        operators = configured.operators(ANSWER_S)
        self._is_switching = True
        try:
            answers = await operators.configure(configured.number, encoded, check_only=False)
        finally:
            self._is_switching = False
        problems = []
        for setup, problem in zip(configured.gateways, answers, strict=True):
            text = f"has taken configuration {configured.number}"
            if problem is None:
                text = "does not answer; it takes the configuration when it does"
            elif problem:
                text = problem
                problems.append(f"{setup.gateway}: {problem}")
            await send(ChangeProgress(setup.gateway, text))
        return problems

    def _gateways_by(self, setups: Setups, number: int) -> list[GatewaySetup]:
        """The set-ups of all gateways with the configuration of this number."""
        return [
            setup.configured(setups.gateway_configuration(setup, number))
            for setup in self._configured.gateways
        ]

    async def _start(self, workers: WorkerChanges, send: Send) -> list[str]:
        """Until the new workers have joined. Gives the problems."""
        configured = self._configured
        setups, endpoints = configured.setups, tuple(each.listen for each in configured.gateways)
        problems: list[str] = []
        started: list[str] = []
        for name, pool in workers.starting.items():
            try:
                setup = setups.worker(pool, name, endpoints)
                write_admitted(setups, self._directory)
                environment = setups.environment(pool, self._planned.place_of(pool, name))
                self._roles[name] = pool.role
                await self._supervisor.start(program_of(setup, self._directory, environment))
            except (InvalidConfiguration, OSError) as error:
                problems.append(f"{name} cannot be started: {error}")
                self._roles.pop(name, None)
            else:
                started.append(name)
        return problems + await self._until_joined(started, send)

    async def _until_joined(self, names: Sequence[str], send: Send) -> list[str]:
        """All gateways that answer know them; or why they do not come."""
        missing, problems = list(names), []
        operators = self._configured.operators(ANSWER_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_s):
                while missing:
                    statuses = await operators.statuses()
                    for name in list(missing):
                        if statuses and all(name in status.members for status in statuses):
                            self._supervisor.confirm(name)
                            await send(ChangeProgress(name, "has joined"))
                            missing.remove(name)
                        elif not self._supervisor.keeps(name):
                            log = tail(self._directory.log_file(name))
                            problems.append(f"{name} ended before it joined:\n{log}")
                            missing.remove(name)
                    await asyncio.sleep(LOOK_S)
        return problems + [f"{name} has not joined in {self._start_s:g} s" for name in missing]

    async def _send_away(self, worker: str, send: Send) -> str:
        """Until the worker has gone. Gives the problem, empty where there is none."""
        configured = self._configured
        try:
            statuses = await configured.operators(ANSWER_S).statuses()
            if any(worker in status.members for status in statuses):
                # It drains on: nobody hangs on the answer, who may have to end before it comes.
                with suppress(NoAnswer):
                    await configured.operators(PATIENCE_S).drain(worker, None, leave=True)
            else:
                await self._supervisor.stop([worker], LEAVE_S, LEAVE_S)
            async with asyncio.timeout(DRAIN_S):
                while self._supervisor.keeps(worker):
                    await asyncio.sleep(LOOK_S)
        except (TandemError, TimeoutError) as error:
            why = str(error) or f"it has not left in {DRAIN_S:g} s"
            return f"{worker} is still here ({why}); `tandem drain {worker} --leave` asks again"
        finally:
            self._leaving.discard(worker)
        self._roles.pop(worker, None)
        configured.setups.forget(worker)
        write_admitted(configured.setups, self._directory)
        await send(ChangeProgress(worker, "has left"))
        return ""

    def _setup_file(self, process: str) -> Path:
        return self._directory.path / f"{process}.setup.json"


def _encoded(setup: GatewaySetup, setups: Setups, number: int) -> bytes:
    """The configuration of this number for the gateway of this set-up."""
    return msgspec.json.encode(setups.gateway_configuration(setup, number))
