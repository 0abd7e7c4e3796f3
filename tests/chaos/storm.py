"""One storm: a seeded load on a real cluster while things go wrong, and the laws that must hold
afterwards."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tandem.live.launching.state_directory import ProcessRecord
from tests.chaos.client import Clients, Record
from tests.chaos.injector import FaultInjector
from tests.chaos.live_faults import LiveFault
from tests.chaos.workload import Answer, Arrival
from tests.journeys.clusters import NOT_HELD, ClusterProcess

# After the load everybody has to be back, and every lease over, within this.
CALM_S = 60.0
LOOK_S = 0.2
# Sockets of connections that are just being closed, and of new peers.
SPARE_DESCRIPTORS = 8


@dataclass
class Outcome:
    """What a storm was and did. `broken` are the laws that did not hold, in words."""

    seed: int
    began_s: float
    ended_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    done: list[tuple[float, LiveFault]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    takeovers: int = 0

    @property
    def finished(self) -> int:
        """Visits that got everything that they asked for."""
        return sum(not record.problem and not record.left for record in self.records)

    @property
    def goodput(self) -> float:
        """Those a second."""
        return self.finished / max(1e-9, self.ended_s - self.began_s)


@dataclass(frozen=True)
class Storm:
    """The load, and what goes wrong meanwhile. `expected` are the answers of one process."""

    seed: int
    arrivals: Sequence[Arrival]
    faults: Sequence[LiveFault]
    expected: dict[str, list[Answer]]


async def run_storm(running: ClusterProcess, injector: FaultInjector, storm: Storm) -> Outcome:
    """The storm from its first request until the cluster is whole again; the laws that need it to
    run are checked."""
    descriptors = _descriptors(injector.processes())
    outcome = Outcome(storm.seed, time.monotonic())
    timeout = aiohttp.ClientTimeout(total=90)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        clients = Clients(http, running.url)
        doing = asyncio.create_task(injector.do_all(storm.faults))
        async with asyncio.TaskGroup() as visits:
            for arrival in storm.arrivals:
                await asyncio.sleep(max(0.0, outcome.began_s + arrival.at_s - time.monotonic()))
                visits.create_task(clients.arrive(arrival, storm.expected[arrival.question.name]))
        outcome.ended_s = time.monotonic()
        await doing
    outcome.records = clients.records
    outcome.done = [(at_s, fault) for at_s, fault in injector.done if at_s >= outcome.began_s]
    _check_visits(outcome)
    await _check_books(running, injector, outcome)
    _check_descriptors(injector, descriptors, outcome)
    return outcome


def _check_visits(outcome: Outcome) -> None:
    outcome.broken += [record.problem for record in outcome.records if record.problem]
    hit = {name for _, fault in outcome.done for name in fault.victims}
    gateway_hit = any(name.startswith("gateway") for name in hit)
    lost = sum(record.lost for record in outcome.records)
    if lost and not gateway_hit:
        outcome.broken.append(f"{lost} streams were cut off, and no gateway was hit")
    # One of each role always stays, and a gateway that comes back waits for its workers.
    refused = sum(record.refused for record in outcome.records)
    if refused:
        outcome.broken.append(f"{refused} requests were refused")


async def _check_books(running: ClusterProcess, injector: FaultInjector, outcome: Outcome) -> None:
    """Everybody comes back, and in the end nobody holds anything."""
    until_s, problem = time.monotonic() + CALM_S, "nobody has looked"
    while problem and time.monotonic() < until_s:
        while not injector.all_run() and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S)
        asked = await asyncio.to_thread(running.operate, "status", "--json", "--audit")
        problem = asked.stderr or _problem(injector, json.loads(asked.stdout))
    if problem:
        outcome.broken.append(f"after {CALM_S:g} s: {problem}")
        return
    status = json.loads(asked.stdout)
    outcome.takeovers = sum(gateway["takeovers"] for gateway in status["gateways"])


def _problem(injector: FaultInjector, status: dict[str, Any]) -> str:
    wanted = {name for name in injector.processes() if not name.startswith(("gateway-", "pool-"))}
    missing = wanted - {worker["worker"] for worker in status["workers"]}
    dead = [name for name, process in injector.processes().items() if not process.alive]
    if missing or dead or wanted != injector.workers:
        return f"missing: {sorted(missing | injector.workers - wanted)}, dead: {dead}"
    if status["audit"]["problem"]:
        return str(status["audit"]["problem"])
    for audited in status["audit"]["workers"]:
        held = {key: value for key, value in audited.items() if value and key not in NOT_HELD}
        if held:
            return f"{audited['worker']} holds {held}"
    return ""


def _descriptors(processes: dict[str, ProcessRecord]) -> dict[ProcessRecord, int]:
    return {process: _open_files(process) for process in processes.values()}


def _open_files(process: ProcessRecord) -> int:
    try:
        return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _check_descriptors(
    injector: FaultInjector, before: dict[ProcessRecord, int], outcome: Outcome
) -> None:
    """Whoever lived through it has no more files open than before."""
    for name, process in injector.processes().items():
        if process in before and _open_files(process) > before[process] + SPARE_DESCRIPTORS:
            outcome.broken.append(
                f"{name} had {before[process]} files open, and now {_open_files(process)}"
            )


def leftovers(injector: FaultInjector) -> list[str]:
    """What a cluster that has ended left behind."""
    return [
        f"{name} still runs as {process.pid}"
        for name, starts in injector.seen.items()
        for process in starts
        if process.alive
    ]


def shared_memory() -> set[str]:
    """But for that of Ray, which other tests start and end meanwhile."""
    return {path.name for path in Path("/dev/shm").iterdir() if "plasma" not in path.name}
