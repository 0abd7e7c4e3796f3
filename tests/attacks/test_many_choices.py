"""One call with n=64 over as long a prompt as is allowed: a gateway hears others in between, and
what a worker does for it in one step is bounded, whatever the number of blocks they share."""

import asyncio

from tandem.cluster.worker.machine import WorkerConfig
from tandem.cluster.worker.plan_builder import PLACED_BLOCKS
from tandem.facts.blocks import CacheRoot
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.gateway.loop import SUBMITTED_TOGETHER, GatewayLoop
from tandem.messages.router import RequestSubmitted, RequestWithdrawn
from tandem.messages.worker import RequestsAborted, RequestsArrived
from tandem.policy.batching import TokenBudgetBatching
from tests.cluster.ledger_engine import VOCABULARY, answer
from tests.cluster.ledger_worker import LedgerWorker

CHOICES = 64


class RecordingMachine:
    """In place of a machine: what it gets at one go."""

    def __init__(self) -> None:
        self.events: list[list[object]] = []

    def handle_together(self, events, now_ns):
        self.events.append(list(events))
        return []

    def next_wakeup(self):
        return None


def enqueued(machine: RecordingMachine) -> tuple[GatewayLoop, list[object]]:
    loop = GatewayLoop(machine, None, lambda: None)
    choices = [Request(f"call-{index}", (1, 2), SamplingParameters()) for index in range(CHOICES)]
    events = [RequestSubmitted(each, 16.0) for each in choices]
    events.append(RequestWithdrawn("call-0"))
    for event in events:
        loop.enqueue(event)
    return loop, events


async def test_choices_are_submitted_some_at_a_time_and_in_order():
    machine = RecordingMachine()
    loop, events = enqueued(machine)
    running = asyncio.create_task(loop.run())
    neighbours_turns = 0
    while sum(map(len, machine.events)) < len(events):
        await asyncio.sleep(0)
        neighbours_turns += 1
    running.cancel()
    assert [event for some in machine.events for event in some] == events
    submitted = [sum(isinstance(e, RequestSubmitted) for e in some) for some in machine.events]
    assert max(submitted) == SUBMITTED_TOGETHER
    assert neighbours_turns >= CHOICES // SUBMITTED_TOGETHER


def test_whatever_was_enqueued_is_handled_before_the_end():
    machine = RecordingMachine()
    loop, events = enqueued(machine)
    loop.settle_all()
    assert [event for some in machine.events for event in some] == events


PROMPT_TOKENS, CHUNK_TOKENS = 513, 64
CONTEXT_TOKENS = 560
PROMPT = tuple(index % VOCABULARY for index in range(PROMPT_TOKENS))


def asked() -> tuple[LedgerWorker, list[Request]]:
    config = WorkerConfig(
        block_size=1,
        block_count=1500,
        context_tokens=CONTEXT_TOKENS,
        vocabulary_tokens=VOCABULARY,
        max_sequences=CHOICES,
        batching=TokenBudgetBatching(2 * CHUNK_TOKENS, CHUNK_TOKENS),
        root=CacheRoot("m", "r", b""),
        steps_in_flight=0,
    )
    choices = [
        Request(f"choice-{seed}", PROMPT, SamplingParameters(max_tokens=2, seed=seed))
        for seed in range(CHOICES)
    ]
    return LedgerWorker.of(config), choices


def test_who_waits_for_the_same_prompt_is_not_looked_up_in_every_step():
    at, choices = asked()
    pool, looked_up = at.machine.sequences.pool, []
    look_up = pool.cached_prefix
    pool.cached_prefix = lambda chain: looked_up.append(chain) or look_up(chain)
    at.handle(RequestsArrived(tuple(choices)))
    for _ in range(PROMPT_TOKENS // CHUNK_TOKENS - 1):
        at.land()
    # The first computes; the others know whom they wait for.
    assert len(at.machine.sequences.running) == 1
    assert len(looked_up) <= 2


def test_a_step_places_so_many_blocks_and_the_rest_in_the_next():
    at, choices = asked()
    at.handle(RequestsArrived(tuple(choices)))
    placed = []
    while at.landing:
        plan = at.landing[0]
        placed.append(sum(len(each.tokens) - 1 for each in plan.placements))
        at.land()
    assert sum(placed) > 3 * PLACED_BLOCKS
    assert max(placed) < PLACED_BLOCKS + PROMPT_TOKENS
    at.assert_empty()
    for one in choices:
        assert at.answers[one.request_id] == answer(PROMPT, one.sampling, CONTEXT_TOKENS)


def test_whoever_waited_for_one_that_is_aborted_goes_on_without_it():
    at, choices = asked()
    at.handle(RequestsArrived(tuple(choices)))
    for _ in range(3):
        at.land()
        at.handle(RequestsAborted((at.machine.sequences.running[0].request.request_id,)))
    at.drain()
    assert len(at.answers) == CHOICES - 3
