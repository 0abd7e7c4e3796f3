"""Another cluster file applied to a cluster whose gateways are played: which of them take it and
when, what of it cannot be, and what may be applied meanwhile."""

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import yaml

from tandem.config.cluster.live import LiveFile, checked
from tandem.config.cluster.tree import override, parse
from tandem.config.processes import (
    CLUSTER_FILE,
    GatewayConfiguration,
    GatewaySetup,
    read_setup,
)
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.launching.supervisor import Notice, Supervisor
from tandem.live.processes.apply import Applying, Configured
from tandem.live.processes.planned_workers import PlannedWorkers
from tandem.live.processes.setups import Setups, program_of
from tandem.messages.gateway import ClusterStatus
from tandem.messages.supervisor import AskApply, ChangeEnded, ChangePlanned, ChangeProgress
from tests.live.statuses import worker_status
from tests.live.test_planned_workers import Launches
from tests.live.toy_cluster import until

TEXT = """\
model: tandem-mini
block_size: 16
gateways: 2
serve: {port: 0, max-num-seqs: 8, kv-cache-memory: 64MiB, threads: 1}
tenants:
  - {name: acme, weight: 1}
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu, count: 2}
"""
OTHER = "tenants.acme.weight=5"
FEWER = "pools.d.count=1"


def read(*assignments: str) -> LiveFile:
    tree = parse(TEXT, "c.yaml")
    for assignment in assignments:
        override(tree, assignment)
    return checked(tree, Path())


class PlayedGateways:
    """By name what each has taken, and its number. Those that are `away` do not answer, those that
    `hang` answer for their status alone, `refusals` are why one cannot take it; `gate` and, of
    those that switch alone, `switch_gate` hold answers back."""

    def __init__(self) -> None:
        self.numbers = {"gateway-0": 0, "gateway-1": 0}
        self.taken: dict[str, GatewayConfiguration] = {}
        self.away: set[str] = set()
        self.hang: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.switch_gate = asyncio.Event()
        self.gate.set()
        self.switch_gate.set()
        self.members: tuple[str, ...] = ()
        self.drained: list[str] = []

    def statuses(self) -> list[ClusterStatus]:
        workers = tuple(worker_status(name) for name in self.members)
        return [
            ClusterStatus(name, 1.0, workers, 0, 0, 0, 0, (), configuration=number)
            for name, number in self.numbers.items()
            if name not in self.away
        ]

    def weight(self, gateway: str) -> float:
        """That it has taken last."""
        return self.taken[gateway].cluster.tenants[0].weight


class Line:
    """To some of the gateways, as `Operators`."""

    def __init__(self, played: PlayedGateways, names: Sequence[str]) -> None:
        self._played, self._names = played, names

    async def statuses(self) -> list[ClusterStatus]:
        return self._played.statuses()

    async def drain(self, worker: str, then_role: None, leave: bool) -> None:
        assert leave
        self._played.drained.append(worker)

    async def configure(
        self, number: int, configurations: Sequence[bytes], *, check_only: bool
    ) -> list[str | None]:
        await self._played.gate.wait()
        if not check_only:
            await self._played.switch_gate.wait()
        pairs = zip(self._names, configurations, strict=True)
        return [self._one(name, number, each, check_only) for name, each in pairs]

    def _one(self, name: str, number: int, encoded: bytes, check_only: bool) -> str | None:
        played = self._played
        configuration = msgspec.json.decode(encoded, type=GatewayConfiguration)
        assert configuration.number == number
        if name in played.away | played.hang:
            return None
        if name in played.refusals and not check_only:
            return played.refusals[name]
        if not check_only:
            assert number > played.numbers[name]
            played.numbers[name], played.taken[name] = number, configuration
        return ""


class PlayedCluster(Configured):
    """Whose gateways are played."""

    played: PlayedGateways

    def operators(self, timeout_s: float, gateways=None) -> Line:
        some = self.gateways if gateways is None else gateways
        return Line(self.played, [setup.gateway for setup in some])


class Bed:
    """A cluster as a supervisor has it, with processes that only the test ends."""

    def __init__(self, folder: Path) -> None:
        self.directory = StateDirectory(folder / "state")
        self.directory.prepare()
        self.notices: list[Notice] = []
        self.launcher = Launches()
        self.supervisor = Supervisor(self.launcher, self.notices.append)
        file = read()
        setups = Setups(file.cluster)
        gateways = [setups.gateway(index, self.directory.path, "tcp://here:1") for index in (0, 1)]
        self.cluster = PlayedCluster(file, setups, gateways)
        self.cluster.played = self.played = PlayedGateways()
        self.roles: dict = {}
        planned = PlannedWorkers(
            setups,
            self.directory,
            self.supervisor,
            started=lambda _: None,
            notice=self.notices.append,
        )
        self.applying = Applying(
            self.cluster,
            self.directory,
            self.supervisor,
            planned,
            self.roles,
            notice=self.notices.append,
            start_s=5.0,
        )

    async def start(self) -> None:
        for gateway in self.cluster.gateways:
            program_of(gateway, self.directory)
        for pool in self.cluster.file.cluster.pools:
            for index in range(pool.count):
                name = f"{pool.name}-{index}"
                self.roles[name] = pool.role
                setup = self.cluster.setups.worker(pool, name, ())
                await self.supervisor.start(program_of(setup, self.directory))
                self.supervisor.confirm(name)
        self.played.members = tuple(self.roles)

    async def apply(self, *assignments: str, seen: int | None = None, dry_run=False) -> list:
        """All answers, to the end."""
        answers: list = []

        async def send(answer) -> None:
            answers.append(answer)

        file = read(*assignments)
        asked = AskApply(file.text("tandem-mini"), dry_run=dry_run, seen=seen)
        await self.applying.answer(asked, send)
        return answers

    async def push(self) -> None:
        """A look of the supervisor."""
        await self.applying.push(self.played.statuses(), self.cluster.number)

    def written(self, gateway: str) -> GatewaySetup:
        return read_setup(GatewaySetup, self.directory.path / f"{gateway}.setup.json")


@asynccontextmanager
async def bed(folder: Path):
    made = Bed(folder)
    await made.start()
    try:
        yield made
    finally:
        made.played.gate.set()
        await made.applying.stop()
        await made.supervisor.close()


def refusals(answers: list) -> tuple[str, ...]:
    (planned,) = [each for each in answers if isinstance(each, ChangePlanned)]
    return planned.refusals


async def test_all_gateways_switch_and_whoever_starts_later_has_it(tmp_path):
    async with bed(tmp_path) as at:
        answers = await at.apply(OTHER)
        assert answers[1:] == [
            ChangeProgress("gateway-0", "has taken configuration 1"),
            ChangeProgress("gateway-1", "has taken configuration 1"),
            ChangeEnded(1),
        ]
        for gateway in ("gateway-0", "gateway-1"):
            assert at.played.weight(gateway) == 5
            written = at.written(gateway)
            assert (written.configuration, written.cluster.tenants[0].weight) == (1, 5)
        text = (at.directory.path / CLUSTER_FILE).read_text()
        assert yaml.safe_load(text)["tenants"][0]["weight"] == 5
        await at.push()
        # What is as it is needs no change.
        assert len(await at.apply(OTHER)) == 1


async def test_a_gateway_that_was_away_catches_up_while_workers_still_drain(tmp_path):
    async with bed(tmp_path) as at:
        at.played.away = {"gateway-1"}
        applying = asyncio.create_task(at.apply(OTHER, FEWER))
        await until(lambda: at.played.drained == ["d-1"])
        assert at.played.numbers == {"gateway-0": 1, "gateway-1": 0}
        at.played.away = set()
        await at.push()
        assert at.played.numbers == {"gateway-0": 1, "gateway-1": 1}
        assert at.played.weight("gateway-1") == 5
        # Another change need not wait, and does not count on who drains.
        answers = await at.apply("tenants.acme.weight=7", FEWER)
        assert answers[-1] == ChangeEnded(2)
        assert at.played.weight("gateway-0") == 7
        again = await at.apply("tenants.acme.weight=7", "pools.d.count=2", dry_run=True)
        assert again[0].workers == ("d-2 starts",)
        at.launcher.end("d-1", 0)
        assert (await applying)[-2:] == [ChangeProgress("d-1", "has left"), ChangeEnded(1)]
        assert at.played.drained == ["d-1"]


async def test_nothing_is_applied_unless_every_gateway_that_is_up_has_agreed(tmp_path):
    async with bed(tmp_path) as at:
        at.played.hang = {"gateway-1"}
        assert refusals(await at.apply(OTHER)) == (
            "gateway-1: it did not answer in 5 s; ask again",
        )
        at.played.hang, at.played.away = set(), {"gateway-0", "gateway-1"}
        assert refusals(await at.apply(OTHER)) == ("no gateway answers; ask again",)
        assert (at.cluster.number, at.played.taken) == (0, {})
        assert not (at.directory.path / CLUSTER_FILE).exists()


async def test_a_gateway_that_cannot_switch_is_reported_once_and_asked_again(tmp_path):
    async with bed(tmp_path) as at:
        at.played.refusals = {"gateway-1": "its key file has gone"}
        assert (await at.apply(OTHER))[-1] == ChangeEnded(1, ("gateway-1: its key file has gone",))
        for _ in range(3):
            await at.push()
        assert at.notices[1:] == [Notice("gateway-1", "its key file has gone")]
        at.played.refusals = {}
        await at.push()
        assert at.notices[2:] == [Notice("gateway-1", "has taken configuration 1")]
        assert at.played.numbers == {"gateway-0": 1, "gateway-1": 1}


async def test_changes_are_applied_one_after_the_other_as_they_were_seen(tmp_path):
    async with bed(tmp_path) as at:
        at.played.gate.clear()
        first = asyncio.create_task(at.apply(OTHER, seen=0))
        await asyncio.sleep(0)
        (refusal,) = refusals(await at.apply("tenants.acme.weight=7"))
        assert "another change is being applied" in refusal
        at.played.gate.set()
        assert (await first)[-1] == ChangeEnded(1)
        (refusal,) = refusals(await at.apply("tenants.acme.weight=7", seen=0))
        assert "configuration 1 was applied meanwhile" in refusal
        assert (await at.apply("tenants.acme.weight=7", seen=1))[-1] == ChangeEnded(2)


async def test_gateways_that_switch_are_not_asked_again_meanwhile(tmp_path):
    async with bed(tmp_path) as at:
        at.played.switch_gate.clear()
        applying = asyncio.create_task(at.apply(OTHER))
        await until(lambda: at.cluster.number == 1)
        pushing = asyncio.create_task(at.push())
        await asyncio.sleep(0)
        at.played.switch_gate.set()
        await pushing
        assert (await applying)[-1] == ChangeEnded(1)
        assert [notice.name for notice in at.notices] == ["apply"]


async def test_nobody_goes_on_by_what_could_not_be_written(tmp_path):
    async with bed(tmp_path) as at:
        # In the way of the second set-up: the cluster file and the first one can be written.
        obstacle = at.directory.path / "gateway-1.setup.json.new"
        obstacle.mkdir()
        (*_, ended) = await at.apply(OTHER)
        (problem,) = ended.problems
        assert "cannot be written, and is not applied" in problem
        assert at.played.taken == {}
        assert at.written("gateway-0").cluster.tenants[0].weight == 1
        text = (at.directory.path / CLUSTER_FILE).read_text()
        assert yaml.safe_load(text)["tenants"][0]["weight"] == 1
        # Has started meanwhile, by the set-up that was abandoned.
        at.played.numbers["gateway-0"] = 1
        await at.push()
        assert at.played.numbers == {"gateway-0": 2, "gateway-1": 2}
        assert at.played.weight("gateway-0") == at.played.weight("gateway-1") == 1
        obstacle.rmdir()
        assert (await at.apply(OTHER))[-1] == ChangeEnded(3)
        assert at.played.weight("gateway-0") == 5


async def test_no_set_up_is_written_before_the_file_that_a_journal_keeps(tmp_path):
    async with bed(tmp_path) as at:
        (at.directory.path / f"{CLUSTER_FILE}.new").mkdir()
        (*_, ended) = await at.apply(OTHER)
        assert len(ended.problems) == 1
        assert at.written("gateway-0").configuration == 0


async def test_workers_that_are_too_many_stay_where_the_others_do_not_come(tmp_path):
    async with bed(tmp_path) as at:
        at.launcher.fails = True
        more = "pools.p.count=2"
        (*_, ended) = await at.apply(FEWER, more)
        assert ended.problems == (
            "p-1 cannot be started: no memory",
            "d-1 stay, for the others did not come",
        )
        assert at.played.drained == []
