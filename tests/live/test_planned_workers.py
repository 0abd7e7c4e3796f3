"""What the planner wants is started once, whatever happens to gateways and answers; and what cannot
be started is reported to it until a gateway answers."""

import asyncio
import signal
from contextlib import asynccontextmanager
from pathlib import Path

from tandem.config.cluster.live import checked
from tandem.config.cluster.tree import parse
from tandem.config.processes import WorkerSetup, read_setup
from tandem.facts.fleet import PlanningMode, Role
from tandem.live.launching.launcher import Ended, Program
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.launching.supervisor import Supervisor
from tandem.live.processes.planned_workers import PlannedWorkers
from tandem.live.processes.setups import ADMITTED_FILE, Setups
from tandem.messages.gateway import ClusterStatus
from tandem.messages.planning import (
    ActionKind,
    PlanDecision,
    PlannedAction,
    PlannedStart,
    PlanningStatus,
)
from tests.live.statuses import worker_status

TEXT = """\
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 8}
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu, max_count: 3}
policies: {planning: tandem}
"""
D1 = PlannedStart("d-1", Role.PREFILL)


class Launches:
    """A launcher without processes: the test decides what ends."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.pids: dict[str, int] = {}
        self.fails = False
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()

    async def start(self, program: Program) -> int:
        assert program.name not in self.pids
        if self.fails:
            raise OSError("no memory")
        self.started.append(program.name)
        self.pids[program.name] = len(self.started)
        return len(self.started)

    def send(self, name: str, number: signal.Signals) -> None:
        del name, number

    def end(self, name: str, code: int) -> None:
        self._ended.put_nowait(Ended(name, self.pids.pop(name), code))

    async def ended(self) -> Ended:
        return await self._ended.get()


class Line:
    """To gateways that may be deaf."""

    endpoints = ("tcp://127.0.0.1:1",)

    def __init__(self) -> None:
        self.deaf = False
        self.reported: list[tuple[str, str]] = []

    async def report_start_failed(self, worker: str, reason: str) -> int:
        if not self.deaf:
            self.reported.append((worker, reason))
        return not self.deaf


class Bed:
    """The planner's hand in a supervisor, with the gateway played by the test."""

    def __init__(self, folder: Path) -> None:
        self.directory = StateDirectory(folder / "state")
        self.directory.prepare()
        self.launcher, self.line, self.notices = Launches(), Line(), []
        self.supervisor = Supervisor(self.launcher, self.notices.append)
        self.starts: list[PlannedStart] = []
        self.planned = PlannedWorkers(
            Setups(checked(parse(TEXT, "c.yaml"), Path()).cluster),
            self.directory,
            self.supervisor,
            started=self.starts.append,
            notice=self.notices.append,
        )

    async def look(self, *starting: PlannedStart, up: tuple[str, ...] = (), decisions=()) -> None:
        """The gateway wants these, has those, and has decided so."""
        planning = PlanningStatus(
            "tandem", PlanningMode.AUTOMATIC, starting=starting, decisions=tuple(decisions)
        )
        workers = tuple(worker_status(name) for name in up)
        status = ClusterStatus("gateway-0", 1.0, workers, 0, 0, 0, 0, (), planning=planning)
        await self.planned.look([status], self.line)
        await self.settled()

    async def end(self, worker: str, code: int) -> None:
        self.launcher.end(worker, code)
        await self.settled()

    async def settled(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@asynccontextmanager
async def planned(folder: Path):
    bed = Bed(folder)
    try:
        yield bed
    finally:
        await bed.planned.stop()
        await bed.supervisor.close()


async def test_a_wanted_worker_is_started_once_in_its_role_with_a_key_of_its_own(tmp_path):
    async with planned(tmp_path) as bed:
        for _ in range(3):
            await bed.look(D1)
        assert bed.launcher.started == ["d-1"]
        assert bed.starts == [D1]
        setup = read_setup(WorkerSetup, bed.directory.path / "d-1.setup.json")
        assert (setup.role, setup.pool) == ("prefill", "d")
        assert setup.gateways == Line.endpoints
        admitted = (bed.directory.path / ADMITTED_FILE).read_text()
        assert f"worker {setup.keys.worker_public} d-1\n" in admitted
        # A gateway that was started anew wants it again, while it lives or is on its way.
        await bed.look(D1, up=("d-1",))
        assert bed.launcher.started == ["d-1"]


async def test_what_was_sent_away_is_no_death_and_may_be_wanted_again(tmp_path):
    async with planned(tmp_path) as bed:
        await bed.look(D1)
        await bed.look(up=("d-1",))
        await bed.end("d-1", 0)
        await bed.look()
        assert bed.launcher.started == ["d-1"]
        await bed.look(D1)
        assert bed.launcher.started == ["d-1", "d-1"]
        assert not bed.line.reported


async def test_one_that_worked_and_died_comes_back_by_itself(tmp_path):
    async with planned(tmp_path) as bed:
        await bed.look(D1)
        await bed.look(up=("d-1",))
        await bed.end("d-1", 1)
        await bed.look(D1)
        # The supervisor waits before it starts it again: nobody else does meanwhile.
        assert bed.launcher.started == ["d-1"]
        assert bed.supervisor.keeps("d-1")


async def test_what_cannot_work_is_reported_until_somebody_answers(tmp_path):
    async with planned(tmp_path) as bed:
        await bed.look(D1)
        await bed.end("d-1", 2)
        bed.planned.worker_failed(await bed.supervisor.failed())
        bed.line.deaf = True
        await bed.look(D1)
        await bed.look(D1)
        bed.line.deaf = False
        # This status was made before the report arrived.
        await bed.look(D1)
        assert bed.line.reported == [("d-1", "ended with status 2")]
        assert bed.launcher.started == ["d-1"]
        await bed.look(D1)
        assert bed.launcher.started == ["d-1", "d-1"]


async def test_a_machine_that_starts_nothing_is_reported(tmp_path):
    async with planned(tmp_path) as bed:
        bed.launcher.fails = True
        await bed.look(D1)
        bed.launcher.fails = False
        await bed.look(D1)
        assert bed.line.reported == [("d-1", "no memory")]
        assert not bed.launcher.started
        assert [(each.name, each.text) for each in bed.notices] == [
            ("d-1", "cannot be started: no memory")
        ]
        await bed.look(D1)
        assert bed.launcher.started == ["d-1"]


async def test_a_name_of_no_pool_is_never_started(tmp_path):
    async with planned(tmp_path) as bed:
        await bed.look(PlannedStart("d-3", Role.DECODE), PlannedStart("../x", Role.DECODE))
        assert not bed.launcher.started


async def test_each_decision_is_shown_once(tmp_path):
    def decision(serial: int, instant_ns: int) -> PlanDecision:
        action = PlannedAction(ActionKind.FLIP, "d-0", Role.PREFILL)
        return PlanDecision(
            serial, instant_ns, PlanningMode.AUTOMATIC, 2, 1, f"for {serial}", (), (action,)
        )

    async with planned(tmp_path) as bed:
        first, second = decision(1, 10), decision(2, 20)
        await bed.look(decisions=[first])
        await bed.look(decisions=[first, second])
        # The gateway begins to count anew when it is.
        await bed.look(decisions=[decision(1, 30)])
        assert [(each.name, each.text) for each in bed.notices] == [
            ("planner", "for 1: d-0 becomes prefill"),
            ("planner", "for 2: d-0 becomes prefill"),
            ("planner", "for 1: d-0 becomes prefill"),
        ]
