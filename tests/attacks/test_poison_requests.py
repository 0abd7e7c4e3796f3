"""Requests at which workers die: they end after deaths of their own, and nobody else does."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from tandem.cluster.router.deaths import CLEARING_TOKENS, COINCIDENCE_NS, MOST_DEATHS
from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.worker.machine import WorkerConfig
from tandem.facts.fleet import Role
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.messages.router import (
    KvReported,
    LoadReported,
    RequestWithdrawn,
    SendEvent,
    TokensReported,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import EmitTokens, FailRequest, KvComputed, PrefillsArrived
from tandem.twin.block_contents import EngineDied
from tests.attacks.toy_workers import OddLedger, read_to_failure, whole
from tests.cluster.ledger_engine import LedgerEngine, answer
from tests.cluster.test_router import drew, router, submit
from tests.live.ends import PATIENCE_S
from tests.live.toy_cluster import ToyWorker, make_gateway, read, request, serving, until
from tests.twin.chance_cluster import ChanceCluster, Client
from tests.twin.chance_draws import CONTEXT_TOKENS, World
from tests.twin.chance_run import SECOND_NS, ChanceRun
from tests.twin.ledger import Ledger, LedgerContents

# A request kills a worker alone or with neighbours: with them, two deaths only raise suspicion.
MOST_OWN_DEATHS = 4


class WorkerDied(EngineDied):
    """What the engine made of it."""


class MortalLedger(OddLedger):
    """Dies of a step that computes more than `fatal[name]` tokens of such a request; the name is
    the client's, without the attempts."""

    def __init__(self, other: LedgerEngine, fatal: dict[str, int]) -> None:
        super().__init__(other)
        self.fatal = fatal
        self._names: dict[int, str] = {}

    def run(self, plan: StepPlan) -> StepResult:
        for placement in plan.placements:
            self._names[placement.slot] = name_of(placement.request_id)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            name = self._names[int(slot)]
            if start + count > self.fatal.get(name, start + count):
                raise WorkerDied(name)
        return super().run(plan)


def name_of(request_id: str) -> str:
    return request_id.rpartition("/")[2].partition("~")[0]


@dataclass
class PoisonousLedger(Ledger):
    fatal: dict[str, int] = field(default_factory=dict)

    def of_worker(self, config: WorkerConfig) -> LedgerContents:
        contents = super().of_worker(config)
        contents.engine = MortalLedger(contents.engine, self.fatal)
        return contents


class PoisonedCluster(ChanceCluster):
    """The dead come back. `deaths` are by the name of the request that a worker died of."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.deaths: Counter[str] = Counter()

    def worker_died(self, worker, reason: str) -> None:
        self.deaths[reason] += 1
        super().worker_died(worker, reason)
        # Its last words are there before its successor's first.
        back_ns = self.now_ns + 2 * self.bus.jitter_ns + 2 * self.bus.latency_ns
        self.queue.at(back_ns, lambda _: self.launcher.start(worker.name, worker.role))


class PoisonedRun(ChanceRun):
    """Some requests are fatal; chance kills workers besides, `kills` times."""

    ledger_type = PoisonousLedger

    def __init__(self, seed: int, poisons: int, kills: int = 0) -> None:
        super().__init__(seed, World(faults=0, gateways=1, requests=12), PoisonedCluster)
        self.poisons, self.killed = poisons, 0
        for _ in range(kills):
            self.queue.at(self.chance.randrange(SECOND_NS), self._kill)

    def requests(self) -> list[Request]:
        wanted = super().requests()
        for index in range(self.poisons):
            one = replace(
                self.request(f"poison{index}"), sampling=SamplingParameters(max_tokens=20)
            )
            most = min(len(one.prompt_tokens) + 19, CONTEXT_TOKENS - 1)
            self.ledger.fatal[one.request_id] = self.chance.randint(0, most - 1)
            wanted.append(one)
        return wanted

    def _kill(self, now_ns: int) -> None:
        if self.cluster.workers:
            name = self.chance.choice(sorted(self.cluster.workers))
            self.launcher.kill(name)
            self.killed += 1
            self.queue.at(now_ns + 10**6, lambda _: self.launcher.replace(name))

    @property
    def clients(self) -> dict[str, Client]:
        return {name_of(name): one for name, one in self.cluster.clients.by_id.items()}


def played(seed: int, poisons: int, kills: int = 0) -> PoisonedRun:
    return PoisonedRun(seed, poisons, kills).play()


def failed(run: PoisonedRun) -> set[str]:
    """Who ended without an answer. Everybody else got their own, whole."""
    ended: set[str] = set()
    for name, client in run.clients.items():
        wanted = client.request
        expected = answer(wanted.prompt_tokens, wanted.sampling, CONTEXT_TOKENS)
        match client.endings:
            case ["failed"]:
                ended.add(name)
                assert client.output == expected[: len(client.output)]
            case ["finished"]:
                assert client.output == expected
            case _:
                assert client.endings == ["rejected"], client.endings
    return ended


def poisons_of(run: PoisonedRun) -> set[str]:
    """Those that a worker took: some are refused for their length."""
    clients = run.clients
    return {each for each in run.ledger.fatal if clients[each].endings != ["rejected"]}


def test_a_request_that_kills_workers_ends_and_no_other_does():
    deaths: Counter[int] = Counter()
    for seed in range(80):
        run = played(seed, poisons=1)
        assert failed(run) == poisons_of(run), seed
        deaths[run.cluster.deaths["poison0"]] += bool(poisons_of(run))
    assert set(deaths.elements()) == {2, 3, MOST_OWN_DEATHS}


def test_several_at_once_are_told_apart():
    wronged, served = 0, 0
    for seed in range(50):
        run = played(seed, poisons=3)
        ended = failed(run)
        assert poisons_of(run) <= ended, seed
        # What a dead worker had drawn may be heard later, so that one is cleared once too often.
        assert max(run.cluster.deaths.values(), default=0) <= MOST_OWN_DEATHS + 1
        wronged += len(ended - run.ledger.fatal.keys())
        served += len(run.clients) - 3
    # A suspect of one's may meet two others, one after the other, before these are suspects.
    assert wronged <= served // 300


@pytest.mark.parametrize("poisons", [0, 1])
def test_who_kills_workers_by_hand_ends_hardly_anybody(poisons):
    killed, wronged = 0, 0
    for seed in range(40):
        run = played(seed, poisons, kills=12)
        ended = failed(run)
        assert poisons_of(run) <= ended, seed
        killed += run.killed
        wronged += len(ended - run.ledger.fatal.keys())
    assert killed > 50
    # Somebody dies every few steps here, and no answer has more than twenty tokens.
    assert wronged <= killed // 20


def starts(effects: list) -> list[tuple[str, str]]:
    """Which worker is to begin which request."""
    return [
        (effect.worker, one.request_id.partition("~")[0])
        for effect in effects
        if isinstance(effect, SendEvent) and hasattr(effect.event, "requests")
        for one in effect.event.requests
    ]


def lives(machine: RouterMachine, worker: str) -> None:
    """It says so."""
    machine.handle(LoadReported(worker, 0, 0, 0, 0, 100), 1)


def die(machine: RouterMachine, worker: str, role: Role = Role.BOTH) -> list:
    """It dies, not before it has heard everything, and is back at once."""
    lives(machine, worker)
    return machine.handle_together((WorkerLost(worker), WorkerJoined(worker, role)), 1)


def with_one_worker(*requests: str) -> RouterMachine:
    """That has them all."""
    machine = router(Role.BOTH)
    for name in requests:
        submit(machine, name)
    return machine


def test_a_worker_dies_of_a_lonely_request_twice():
    machine = with_one_worker("r")
    assert starts(die(machine, "w0")) == [("w0", "r")]
    effects = die(machine, "w0")
    assert [type(effect) for effect in effects] == [FailRequest]
    assert effects[0].request_id == "r"
    assert "2 workers died" in effects[0].reason
    machine.audit()
    assert not machine.requests


def test_workers_that_died_together_say_nothing_of_a_request():
    machine = router(*(Role.BOTH,) * 4)
    submit(machine, "r")
    for index in range(4):
        # Nobody has heard of the next one since the request was sent there.
        machine.handle(WorkerLost(machine.requests["r"].decode), index)
    assert machine.requests["r"].deaths.own == 1
    assert machine.requests["r"].deaths.total == 4
    # Long after, it says something again.
    machine.handle(WorkerJoined("w0", Role.BOTH), 5)
    machine.handle(WorkerLost("w0"), 5 + COINCIDENCE_NS)
    assert "r" not in machine.requests


def test_suspects_of_one_worker_run_one_by_one_and_are_cleared():
    machine = with_one_worker(*"abc")
    assert len(starts(die(machine, "w0"))) == 3
    ((worker, first),) = starts(die(machine, "w0"))
    assert (worker, first) == ("w0", "a")
    # Whoever is no suspect waits for nobody.
    assert starts(submit(machine, "new")) == [("w0", "new")]
    for _ in range(CLEARING_TOKENS - 1):
        assert not machine.handle(drew("w0", "a~2"), 1)
        machine.audit()
    assert starts(machine.handle(drew("w0", "a~2"), 1)) == [("w0", "b")]
    # The only suspect there is held to be the one.
    again = die(machine, "w0")
    machine.audit()
    assert {each.request_id: each.deaths.own for each in machine.requests.values()} == {
        "a": 0, "b": 1, "c": 0, "new": 0,
    }  # fmt: skip
    # Whoever was there besides may have been it as well, and is never with it again.
    assert starts(again) == [("w0", "c")]
    assert list(machine.admission.suspects.waiting) == ["a", "b", "new"]


def test_whoever_comes_beside_a_suspect_cannot_have_it_ended():
    machine = with_one_worker("innocent", "other")
    die(machine, "w0")
    die(machine, "w0")
    assert list(machine.admission.suspects.running) == ["innocent"]
    machine.handle(RequestWithdrawn("other"), 1)
    submit(machine, "poison")
    # Of the two only the innocent one is a suspect now.
    assert starts(die(machine, "w0")) == [("w0", "innocent")]
    assert machine.requests["innocent"].deaths.own == 1
    get_ahead = [drew("w0", "innocent~3")] * CLEARING_TOKENS
    assert starts(machine.handle_together(get_ahead, 1)) == [("w0", "poison")]
    # Now it is the other way round.
    assert starts(die(machine, "w0")) == [("w0", "innocent")]
    assert machine.requests["poison"].deaths.own == 1
    get_ahead = [drew("w0", "innocent~4")] * CLEARING_TOKENS
    assert starts(machine.handle_together(get_ahead, 1)) == [("w0", "poison")]
    effects = die(machine, "w0")
    assert [each.request_id for each in effects if isinstance(each, FailRequest)] == ["poison"]
    assert starts(effects) == [("w0", "innocent")]
    assert not machine.requests["innocent"].deaths.suspect
    machine.audit()


def test_a_suspect_who_leaves_makes_way_for_the_next():
    machine = with_one_worker(*"abc")
    die(machine, "w0")
    die(machine, "w0")
    machine.handle(RequestWithdrawn("b"), 1)
    machine.audit()
    assert starts(machine.handle(RequestWithdrawn("a"), 1)) == [("w0", "c")]
    machine.audit()


def test_only_who_was_there_is_held_to_have_been():
    machine = router(Role.PREFILL, Role.DECODE, Role.DECODE)
    submit(machine, "r")
    decode = machine.requests["r"].decode
    # The prompt is not computed yet, so its next worker has never heard of it.
    machine.handle(WorkerLost(decode), 1)
    machine.handle(WorkerJoined(decode, Role.DECODE), 1)
    assert machine.requests["r"].deaths.total == 0
    lives(machine, "w0")
    machine.handle(WorkerLost("w0"), 1)
    assert machine.requests["r"].deaths.total == 1
    # Who waits in the gateway dies of nothing, and who sends a worker away kills nobody.
    machine.handle(WorkerLost(decode), 1)
    machine.handle(WorkerJoined("w0", Role.PREFILL), 1)
    machine.handle(WorkerLost("w0", died=False), 1)
    assert machine.requests["r"].deaths.total == 1


def test_a_hand_over_counts_for_both_its_workers():
    machine = router(Role.PREFILL, Role.DECODE)
    submit(machine, "r")
    machine.handle(drew("w0", "r"), 1)
    computed = KvComputed(("r",), (5,), ((0, 1),), (True,), ((0, 0),))
    machine.handle(KvReported("w0", computed), 1)
    machine.handle(WorkerLost("w1"), 1)
    assert machine.requests["r"].deaths.own == 1
    effects = machine.handle(WorkerJoined("w1", Role.DECODE), 1)
    assert isinstance(effects[0].event, PrefillsArrived)
    lives(machine, "w0")
    effects = machine.handle(WorkerLost("w0"), 1)
    assert isinstance(effects[-1], FailRequest)


def test_one_that_gets_on_a_little_each_time_ends_all_the_same():
    machine = with_one_worker("r")
    for death in range(MOST_DEATHS):
        assert "r" in machine.requests
        wire_id = machine.requests["r"].wire_id
        many = EmitTokens((wire_id,), (7,), (None,), (False,), (0,))
        machine.handle(TokensReported("w0", many, repeats=CLEARING_TOKENS + 1), 1)
        assert machine.requests["r"].deaths.total == death
        assert machine.requests["r"].deaths.own == 0
        die(machine, "w0")
    assert "r" not in machine.requests


@dataclass
class Undertaker:
    """Keeps toy workers running under an engine that dies of some requests; counts the deaths."""

    fatal: dict[str, int]
    ledgers: dict[str, LedgerEngine] = field(default_factory=dict)
    starts: int = 0
    deaths: int = 0

    async def keep(self, name: str, role: Role, endpoint: str) -> None:
        """Until it is cancelled."""
        while True:
            worker = ToyWorker(name, role, self.ledgers)
            MortalLedger(worker.engine.ledger, self.fatal).take_place(worker, self.ledgers)
            self.starts += 1
            worker.registration = structs.replace(worker.registration, incarnation=str(self.starts))
            worker.node.machine.registration = worker.registration
            worker.start(endpoint)
            assert worker.task is not None
            try:
                with pytest.raises(WorkerDied):
                    await worker.task
                self.deaths += 1
            finally:
                # Its last words may still leave, as a dying process's do.
                for channel in worker._channels.values():
                    await channel.close(0.2)
                await asyncio.to_thread(worker._steps.stop, PATIENCE_S)


@pytest.mark.parametrize("roles", [(Role.BOTH,), (Role.PREFILL, Role.DECODE, Role.DECODE)])
async def test_answers_beside_one_that_kills_real_workers_are_whole(roles):
    undertaker = Undertaker({"poison": 12})
    gateway = make_gateway()
    async with asyncio.timeout(PATIENCE_S), serving(gateway) as endpoint:
        tasks = [
            asyncio.create_task(undertaker.keep(f"w{index}", role, endpoint))
            for index, role in enumerate(roles)
        ]
        await until(lambda: gateway.ready)
        wanted = [request(f"r{i}", (1, 2, 3, i), seed=i, max_tokens=60) for i in range(3)]
        others = [asyncio.create_task(read(gateway, one)) for one in wanted]
        poison = request("poison", max_tokens=60)
        tokens = await read_to_failure(gateway, poison, "workers died")
        assert tokens == whole(poison)[: len(tokens)]
        for one, other in zip(wanted, others, strict=True):
            assert await other == whole(one)
        assert 2 <= undertaker.deaths <= MOST_OWN_DEATHS
        after = request("after")
        assert await read(gateway, after) == whole(after)
        assert not gateway.machine.router.requests
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
