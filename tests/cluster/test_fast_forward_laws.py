"""Duel: steps taken at one go against the same steps landed one by one."""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.facts.blocks import CacheRoot
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.messages.worker import (
    EmitTokens,
    ImportBlocks,
    ImportDone,
    ImportsArrived,
    KvComputed,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    StepDone,
    TransferPinsReleased,
)
from tandem.policy.batching import TokenBudgetBatching
from tests.cluster.ledger_engine import VOCABULARY


@dataclass
class SteppedWorker:
    """A machine whose requests draw the digit of their name for ever. `drawing` names whose tokens
    each step under way draws."""

    machine: WorkerMachine
    drawing: deque = field(default_factory=deque)
    owners: dict = field(default_factory=dict)
    landed: int = 0

    def handle(self, event, now_ns: int) -> list:
        effects = self.machine.handle(event, now_ns)
        for effect in effects:
            if isinstance(effect, RunStep):
                plan = effect.plan
                self.owners |= {one.slot: one.request_id for one in plan.placements}
                self.drawing.append([self.owners[int(slot)] for slot in plan.slots[plan.samples]])
        self.machine.audit()
        return effects

    def tokens(self) -> tuple[int, ...]:
        return tuple(int(name) % VOCABULARY for name in self.drawing[0])

    def land(self, now_ns: int) -> list:
        result = StepResult(self.landed, self.tokens())
        self.drawing.popleft()
        self.landed += 1
        return self.handle(StepDone(result), now_ns)

    def skip(self, steps: int, landed_ns: int) -> None:
        self.machine.fast_forward(steps, self.tokens(), landed_ns)
        self.landed += steps


def plain(effect) -> object:
    """An effect, with the arrays of a plan as lists."""
    if not isinstance(effect, RunStep):
        return effect
    fields = (getattr(effect.plan, name) for name in StepPlan.__slots__)
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in fields]


@st.composite
def wide_configs(draw) -> WorkerConfig:
    """Blocks and answers long enough for runs of equal steps; pools small enough for trouble."""
    block_size = draw(st.sampled_from([2, 8, 16, 32]))
    max_sequences = draw(st.integers(1, 6))
    least_blocks = -(-96 // block_size)
    return WorkerConfig(
        block_size=block_size,
        block_count=draw(st.integers(least_blocks, 4 * least_blocks)),
        context_tokens=96,
        vocabulary_tokens=VOCABULARY,
        max_sequences=max_sequences,
        batching=TokenBudgetBatching(draw(st.integers(max_sequences, 64))),
        root=CacheRoot("model", "revision", b"layout"),
        steps_in_flight=draw(st.integers(0, 1)),
        prefix_caching=draw(st.booleans()),
    )


class Duel:
    """Tells both lanes the same; one of them skips where it may."""

    def __init__(self, config: WorkerConfig, chance: Random) -> None:
        self.slow = SteppedWorker(WorkerMachine(config))
        self.quick = SteppedWorker(WorkerMachine(config))
        self.chance = chance
        self.now_ns = 0
        self.names: list[str] = []
        self.imports: dict[str, ImportBlocks] = {}
        self.pinned: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle(self, event) -> None:
        self.now_ns += 1
        self.compare(self.slow.handle(event, self.now_ns), self.quick.handle(event, self.now_ns))

    def compare(self, slow: list, quick: list) -> None:
        assert [plain(effect) for effect in slow] == [plain(effect) for effect in quick]
        for effect in slow:
            match effect:
                case ImportBlocks(name):
                    self.imports[name] = effect
                case KvComputed(names, _, _, pinned):
                    self.pinned += [name for name, done in zip(names, pinned, strict=True) if done]

    def arrive(self) -> None:
        chance, name = self.chance, str(len(self.names))
        self.names.append(name)
        text = chance.choice([(1, 2, 3, 4, 5) * 20, (7,) * 100])
        request = Request(
            name,
            text[: chance.choice([1, 2, chance.randint(1, 60)])],
            SamplingParameters(max_tokens=chance.choice([1, 5, 60, 90])),
            priority=chance.randrange(3),
        )
        match chance.randrange(5):
            case 0:
                self.handle(ImportsArrived((request,), (chance.randint(1, 60),)))
            case 1:
                self.handle(PrefillsArrived((request,), (chance.choice([0, 8]),)))
            case _:
                self.handle(RequestsArrived((request,)))

    def disturb(self) -> None:
        name = self.chance.choice(self.names)
        match self.chance.randrange(12):
            case 0:
                self.handle(RequestsAborted((name,)))
            case 1:
                self.handle(KvTransfersRequested((name,)))
            case 2 | 3 if self.imports:
                self.finish_import(self.chance.choice(sorted(self.imports)))
            case 4 | 5 if self.pinned:
                self.handle(TransferPinsReleased((self.pinned.pop(),)))
            case _:
                self.arrive()

    def finish_import(self, name: str) -> None:
        end_token = self.imports.pop(name).end_token
        self.handle(ImportDone(name, self.chance.choice([0, end_token])))

    def advance(self) -> None:
        """Both take some steps, the quick one at one go."""
        repeatable = self.quick.machine.repeatable_steps()
        assert self.slow.machine.repeatable_steps() == repeatable
        if not repeatable:
            self.seen["one by one"] += 1
            self.now_ns += 1
            self.compare(self.slow.land(self.now_ns), self.quick.land(self.now_ns))
            return
        steps = self.chance.choice([repeatable, self.chance.randint(1, repeatable)])
        self.seen["at one go"] += steps
        waiting = self.quick.machine.planner.waiting
        self.seen["while some wait"] += steps * bool(waiting)
        self.seen["while some are imported"] += steps * bool(self.imports)
        self.quick.skip(steps, self.now_ns + steps)
        for _ in range(steps):
            names = tuple(self.slow.drawing[0])
            self.now_ns += 1
            emission, step = self.slow.land(self.now_ns)
            assert isinstance(emission, EmitTokens)
            assert emission.request_ids == names
            assert not any(emission.finish_reasons)
            assert not step.plan.placements
            assert not step.plan.table_blocks.size

    def settle(self) -> None:
        while not (self.slow.machine.idle and self.quick.machine.idle):
            if self.slow.drawing:
                self.advance()
            elif self.imports:
                self.finish_import(min(self.imports))
            else:
                self.handle(TransferPinsReleased((self.pinned.pop(),)))


def test_steps_taken_at_one_go_change_nothing_that_follows():
    seen: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(wide_configs(), st.integers(0, 1 << 32))
    def duel(config, seed):
        one = Duel(config, Random(seed))
        one.arrive()
        for _ in range(12):
            for _ in range(one.chance.randrange(4)):
                one.disturb()
            for _ in range(one.chance.randrange(8)):
                if one.slow.drawing:
                    one.advance()
        one.settle()
        seen.update(one.seen)
        assert one.slow.machine.step_tally.totals == one.quick.machine.step_tally.totals

    duel()
    assert seen["at one go"] > seen["one by one"] / 3
    assert seen["while some wait"] > 1000
    assert seen["while some are imported"] > 1000
