"""Runs a whole cluster from this machine: brings its processes up, looks after them, ends them."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import tandem
from tandem.api.clock_and_entropy import fresh_chance
from tandem.config.cluster.live import LiveFile
from tandem.config.cluster.tiers import pool_nodes
from tandem.config.processes import GatewayListening, GatewaySetup
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.facts.fleet import Role
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.gateway.operators import Operators
from tandem.live.http_server import PATIENCE_S
from tandem.live.launching.control import ControlServer
from tandem.live.launching.launcher import ExitCode, Launcher, LocalLauncher, Program
from tandem.live.launching.state_directory import ClusterRecord, ProcessRecord, StateDirectory
from tandem.live.launching.supervisor import Notice, ProcessFailed, Supervisor, Vanished
from tandem.live.processes.apply import Applying, Configured
from tandem.live.processes.planned_workers import PlannedWorkers
from tandem.live.processes.setups import (
    Setups,
    listen_address,
    program_of,
    write_admitted,
    write_cluster,
)
from tandem.messages.gateway import ClusterStatus

T = TypeVar("T")
# Whoever stops a cluster is told what it waits for, if the gateways know it so soon.
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Seconds. Everything must be up within `start_s`; the gateways are asked every `look_s`, and
    one that does not answer for `gateway_silence_s` is killed. Ending, gateways get
    `answers_s` for answers under way, workers `workers_s`, and who heeds no second signal is killed
    `kill_s` later."""

    start_s: float = 900.0
    poll_s: float = 0.1
    look_s: float = 1.0
    gateway_silence_s: float = 20.0
    answers_s: float = 16.0
    workers_s: float = 5.0
    kill_s: float = 3.0


class ProcessesFailed(TandemError):
    """A cluster could not be started."""


@dataclass(frozen=True, slots=True)
class View:
    """Callbacks of a cluster that runs: phases of its start, notices, when it is ready, with the
    status of the first gateway, and when it ends, with the requests under way (None: nobody says)
    and the seconds that they get at most."""

    phase: Callable[[str], None]
    notice: Callable[[Notice], None]
    ready: Callable[["ClusterRun", ClusterStatus], None]
    ending: Callable[[int | None, float], None] = lambda _, __: None


class ClusterRun:
    """One cluster from its start to its end, in a state directory that is claimed."""

    def __init__(
        self,
        file: LiveFile,
        directory: StateDirectory,
        view: View,
        *,
        limits: RunLimits | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self.limits = limits or RunLimits()
        self.directory = directory
        self._configured = Configured(file, Setups(file.cluster), [])
        self.url = ""
        self._roles: dict[str, Role] = {}
        self._ready = False
        self._view = view
        self._launcher = launcher or LocalLauncher()
        self._supervisor = Supervisor(
            self._launcher, view.notice, indispensable=self._indispensable, chance=fresh_chance
        )
        self._operators = Operators([], self.setups.supervisor_keys)
        self._asking: asyncio.Future[list[ClusterStatus]] | None = None
        self._end_now = asyncio.Event()
        self._planned = PlannedWorkers(
            self.setups,
            directory,
            self._supervisor,
            started=lambda start: self._roles.update({start.worker: start.role}),
            notice=view.notice,
        )
        self._applying = Applying(
            self._configured,
            directory,
            self._supervisor,
            self._planned,
            self._roles,
            notice=view.notice,
            start_s=self.limits.start_s,
        )
        self._control = ControlServer(directory.path, self._applying.answer)

    @property
    def file(self) -> LiveFile:
        """By what it runs now."""
        return self._configured.file

    @property
    def setups(self) -> Setups:
        """Of its processes now."""
        return self._configured.setups

    @property
    def gateways(self) -> list[GatewaySetup]:
        """Of those that are up."""
        return self._configured.gateways

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set and everything has ended. Raises `InvalidConfiguration` or
        `ProcessesFailed` when it could not start."""
        write_cluster(self.file, self.setups, self.directory)
        self._record()
        try:
            status = await self._unless(stop, self._bring_up())
            if status is not None:
                self._ready = True
                await self._control.open()
                # First: whoever waits for the record passes on what was printed until then.
                self._view.ready(self, status)
                self._record()
                await self._unless(stop, self._look_after())
        finally:
            await self._end()

    def end_now(self) -> None:
        """All processes are killed; what `run` then still waits for is nobody's answer."""
        self._end_now.set()
        self._supervisor.end_now()

    async def _unless(self, stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
        """What the work gives; None if `stop` was set before it was done."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await tasks[0] if tasks[0].done() else None
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _bring_up(self) -> ClusterStatus:
        loading = asyncio.ensure_future(self._start_all())
        failing = asyncio.ensure_future(self._supervisor.failed())
        try:
            async with asyncio.timeout(self.limits.start_s):
                await asyncio.wait((loading, failing), return_when=asyncio.FIRST_COMPLETED)
                if failing.done():
                    raise _failure(failing.result())
                return loading.result()
        except TimeoutError as error:
            raise ProcessesFailed(
                f"the cluster was not up after {self.limits.start_s:g} s; see the logs in "
                f"{self.directory.path}, or give more --start-timeout-s"
            ) from error
        finally:
            for task in (loading, failing):
                task.cancel()
            await asyncio.gather(loading, failing, return_exceptions=True)

    async def _start_all(self) -> ClusterStatus:
        await self._launcher.open(self._view.phase)
        for index in range(self.file.cluster.gateways):
            await self._start_gateway(index)
        endpoints = [setup.listen for setup in self.gateways]
        self._operators = Operators(endpoints, self.setups.supervisor_keys)
        # Whatever comes first finds the shared pool there.
        programs: list[Program] = [
            program_of(self.setups.pool_node(name, tuple(endpoints)), self.directory)
            for name in pool_nodes(self.file.cluster)
        ]
        workers = 0
        for pool in self.file.cluster.pools:
            for index in range(pool.count):
                setup = self.setups.worker(pool, f"{pool.name}-{index}", tuple(endpoints))
                self._roles[f"{pool.name}-{index}"] = pool.role
                environment = self.setups.environment(pool, workers)
                workers += 1
                programs.append(program_of(setup, self.directory, environment))
        write_admitted(self.setups, self.directory)
        # On other machines a start takes a second or two.
        await asyncio.gather(*(self._supervisor.start(program) for program in programs))
        names = [program.name for program in programs]
        self._record()
        return await self._until_joined(names)

    async def _start_gateway(self, index: int) -> None:
        """The first gateway chooses the HTTP port where the file leaves it open; all of them share
        it. Once it listens its addresses are fixed, so that it is found again after a restart."""
        host, port = listen_address(self.file.cluster)
        wanted = port + index if port else 0
        setup = self.setups.gateway(index, self.directory.path, f"tcp://{host}:{wanted}")
        if self.gateways:
            setup = _at_port(setup, self.gateways[0].options.port)
        self._view.phase(f"starting {setup.gateway}")
        report = self.directory.path / f"{setup.gateway}.json"
        await self._supervisor.start(program_of(setup, self.directory))
        listening = await self._until_listening(report)
        self._supervisor.confirm(setup.gateway)
        self.url = self.url or listening.url
        http_port = int(listening.url.rpartition(":")[2])
        fixed = _at_port(msgspec.structs.replace(setup, listen=listening.endpoint), http_port)
        program_of(fixed, self.directory)
        self.gateways.append(fixed)

    async def _until_listening(self, report: Path) -> GatewayListening:
        while True:
            with suppress(FileNotFoundError, msgspec.DecodeError):
                return msgspec.json.decode(report.read_bytes(), type=GatewayListening)
            await asyncio.sleep(self.limits.poll_s)

    async def _until_joined(self, names: Sequence[str]) -> ClusterStatus:
        """Every gateway has met every worker and every process of the shared pool, of which a
        planner may have sent some away by then."""
        missing = set(names)
        met: dict[str, set[str]] = {}
        while True:
            ready = len(names) - len(missing)
            self._view.phase(f"loading the model: {ready} of {len(names)} processes are ready")
            statuses = await self._ask()
            for status in statuses:
                met.setdefault(status.gateway, set()).update(status.members)
            missing = {name for name in names if not all(name in each for each in met.values())}
            for name in names:
                if any(name in each for each in met.values()):
                    self._supervisor.confirm(name)
            if len(statuses) == len(self.gateways) and not missing:
                return statuses[0]
            await asyncio.sleep(self.limits.poll_s)

    async def _look_after(self) -> None:
        """Until it is cancelled."""
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                failure = await self._supervisor.failed()
                self._view.notice(Notice(failure.name, f"{failure.how} and is given up"))
                self._planned.worker_failed(failure)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    def _indispensable(self, name: str, others: Collection[str]) -> bool:
        """See `indispensable`. While the cluster starts nobody is: who fails then is shown to its
        user."""
        gateways = {setup.gateway for setup in self.gateways}
        return self._ready and indispensable(name, others, gateways, self._roles)

    async def _watch(self) -> None:
        """Keep the record of what runs, and have killed what hangs."""
        vanished = Vanished()
        last_seen_ns = dict.fromkeys((setup.gateway for setup in self.gateways), now_ns())
        while True:
            # On a full disk the last record stays; whoever hangs is to be found all the same.
            with suppress(OSError):
                self._record()
            number = self._configured.number
            statuses = await self._ask()
            answering = {status.gateway for status in statuses}
            pids = self._supervisor.pids
            for name in last_seen_ns:
                silent_s = (now_ns() - last_seen_ns[name]) / NS_PER_S
                if name not in answering and name in pids:
                    if silent_s < self.limits.gateway_silence_s:
                        continue
                    self._supervisor.kill(name, f"it has not answered for {silent_s:.0f} s")
                last_seen_ns[name] = now_ns()
            workers = {name: pid for name, pid in pids.items() if name not in last_seen_ns}
            for name, reason in vanished.look(workers, statuses):
                self._supervisor.kill(name, reason)
            await self._applying.push(statuses, number)
            if self.file.cluster.plans:
                await self._planned.look(statuses, self._operators)
            await asyncio.sleep(self.limits.look_s)

    async def _ask(self) -> list[ClusterStatus]:
        """What the gateways know. A question under way is never broken off: it would be waited for
        at the end, when nobody answers any more."""
        self._asking = asyncio.ensure_future(self._operators.statuses())
        return await asyncio.shield(self._asking)

    async def _end(self) -> None:
        """Gateways first: they let answers under way end. Workers then have nothing left to do."""
        self._view.ending(await self._under_way(), PATIENCE_S)
        self._control.close()
        await self._applying.stop()
        await self._planned.stop()
        if self._asking is not None:
            await self._unless(self._end_now, _done(self._asking))
        limits = self.limits
        gateways = [setup.gateway for setup in self.gateways] or ["gateway-0"]
        await self._supervisor.stop(gateways, limits.answers_s, limits.kill_s)
        workers = [name for name in self._supervisor.names if name not in gateways]
        await self._supervisor.stop(workers, limits.workers_s, limits.kill_s)
        await self._supervisor.close()
        await self._launcher.close()

    async def _under_way(self) -> int | None:
        """Requests that the gateways have, asked anew: an answer that is on its way may not know of
        the latest. None if nobody says so in a moment."""
        self._asking = asyncio.ensure_future(self._asked_after(self._asking))
        await asyncio.wait([self._asking], timeout=ANSWER_S)
        if not self._asking.done() or self._asking.exception() is not None:
            return None
        statuses = self._asking.result()
        return sum(each.running_requests + each.waiting_requests for each in statuses)

    async def _asked_after(
        self, earlier: "asyncio.Future[list[ClusterStatus]] | None"
    ) -> list[ClusterStatus]:
        if earlier is not None:
            await _done(earlier)
        return await self._operators.statuses()

    def _record(self) -> None:
        processes = {
            name: ProcessRecord.on(self._launcher.hosts.get(name, ""), pid)
            for name, pid in self._supervisor.pids.items()
        }
        self.directory.write(
            ClusterRecord(
                name=self.file.cluster.name,
                version=tandem.__version__,
                supervisor=ProcessRecord.own(),
                ready=self._ready,
                url=self.url,
                model=self.setups.model,
                gateways={setup.gateway: setup.listen for setup in self.gateways},
                processes=processes,
            )
        )


async def _done(future: asyncio.Future[Any]) -> None:
    """Until it is, whatever it came to."""
    await asyncio.wait([future])


def indispensable(
    name: str, others: Collection[str], gateways: Collection[str], roles: Mapping[str, Role]
) -> bool:
    """Whether a process is the last gateway, or the last worker of a phase, beside those `others`
    that are not given up; by the roles that workers started with."""
    if name in gateways:
        return not any(each in gateways for each in others)
    role = roles.get(name)
    if role is None:
        return False
    left = [roles[each] for each in others if each in roles]
    prefills = not role.prefills or any(each.prefills for each in left)
    decodes = not role.decodes or any(each.decodes for each in left)
    return not (prefills and decodes)


def _at_port(setup: GatewaySetup, http_port: int) -> GatewaySetup:
    return msgspec.structs.replace(
        setup, options=msgspec.structs.replace(setup.options, port=http_port)
    )


def _failure(failure: ProcessFailed) -> TandemError:
    words = f":\n{failure.log_tail}" if failure.log_tail else ""
    text = f"{failure.name} {failure.how}{words}"
    if failure.code == ExitCode.MISCONFIGURED:
        return InvalidConfiguration(text)
    return ProcessesFailed(text)
