"""The twin beside the real engine: same requests at the same step boundaries, same decisions; and a
journal of a live worker, replayed."""

import asyncio
import json
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ModelCard
from tandem.live.local_worker import LocalWorker
from tandem.messages.worker import RequestsAborted, RequestsArrived, WorkerEvent
from tests.engine.tiny import CONTEXT_TOKENS, VOCABULARY
from tests.journeys.two_worlds import (
    LiveWorker,
    RecordingMachine,
    TwinWorker,
    WorkerShape,
    live_worker,
    read,
    twin_worker,
)

# Prompts share ids below; the last id of each is its own, so that no two answers, which the twin
# cannot know, fill the same block.
SHARED_IDS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that meet after every tiny kernel wait long for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# What happens: events, and before each how many steps land.
Story = list[tuple[int, WorkerEvent]]


def play(story: Story, at: LiveWorker | TwinWorker) -> None:
    for landings, event in story:
        for _ in range(landings):
            at.land()
        at.handle(event)
    while at.land():
        pass


def check(worker: WorkerShape, story: Story) -> tuple[LiveWorker, TwinWorker]:
    """The same story live, simulated step by step, and simulated with fast-forward."""
    twin, fast = twin_worker(worker, fast_forward=False), twin_worker(worker, fast_forward=True)
    live = live_worker(worker)
    play(story, live)
    play(story, twin)
    assert twin.machine.effects == live.machine.effects
    assert live.machine.idle

    for (_, event), now_ns in zip(story, twin.event_ns, strict=True):
        fast.handle_at(event, now_ns)
    while fast.land():
        pass
    assert fast.now_ns == twin.now_ns
    assert fast.emitted == twin.emitted
    assert fast.machine.changes == live.machine.changes
    planned = fast.machine.plans
    for step_id, plan in live.machine.plans.items():
        if step_id in planned:
            assert planned[step_id] == plan
        else:
            assert_repeats(plan)
    assert planned.keys() <= live.machine.plans.keys()
    return live, fast


def assert_repeats(plan: tuple) -> None:
    """Only decodes, with the blocks that they have."""
    _, placements, _, _, counts, samples, *tables = plan
    assert not placements and not any(tables)
    assert set(counts) == {1} and all(samples)


def request(index: int, shared_tokens: int, max_tokens: int, priority: int = 0) -> Request:
    """The shared text up to somewhere, and one token of its own."""
    prompt = (*(position % SHARED_IDS for position in range(shared_tokens)), SHARED_IDS + index)
    return Request(
        f"r{index}",
        prompt,
        SamplingParameters(seed=index, max_tokens=max_tokens),
        priority=priority,
        cache_salt="tenant" if index % 5 == 4 else "",
    )


@st.composite
def workers(draw) -> WorkerShape:
    block_size = draw(st.sampled_from([4, 8, 16]))
    least_blocks = -(-CONTEXT_TOKENS // block_size)
    max_sequences = draw(st.integers(1, 5))
    return WorkerShape(
        block_size,
        draw(st.integers(least_blocks, 2 * least_blocks)),
        max_sequences,
        draw(st.integers(max_sequences, 32)),
        draw(st.sampled_from([0, 0, 5])),
        draw(st.integers(0, 1)),
    )


@st.composite
def stories(draw) -> Story:
    story: Story = []
    asked: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        landings = draw(st.integers(0, 12))
        if asked and draw(st.integers(0, 3)) == 0:
            story.append((landings, RequestsAborted((draw(st.sampled_from(asked)),))))
            continue
        batch = tuple(
            request(
                len(asked) + index,
                draw(st.integers(0, CONTEXT_TOKENS - 10)),
                draw(st.integers(1, 30)),
                draw(st.integers(0, 2)),
            )
            for index in range(draw(st.integers(1, 4)))
        )
        asked += [asking.request_id for asking in batch]
        story.append((landings, RequestsArrived(batch)))
    return story


@settings(max_examples=40)
@given(workers(), stories())
def test_twin_and_engine_take_the_same_steps(worker, story):
    check(worker, story)


def test_all_that_a_scheduler_does_is_the_same_in_both_worlds():
    worker = WorkerShape(block_size=8, block_count=8, max_sequences=3, batched_tokens=12)
    story: Story = [
        (0, RequestsArrived((request(0, 20, 24, 2), request(1, 6, 24, 1)))),
        (3, RequestsArrived((request(2, 24, 12, 1), request(3, 3, 30, 2)))),
        (5, RequestsArrived((request(4, 22, 8, 0), request(5, 24, 20, 2)))),
        (9, RequestsAborted(("r3", "r1"))),
        (20, RequestsArrived((request(6, 24, 20, 1),))),
    ]
    live, fast = check(worker, story)
    machine = live.machine
    assert machine.planner.preemptions
    assert machine.removed and machine.cached_tokens and machine.chunked
    assert fast.skipped_steps


async def live_run(worker: WorkerShape, machine: RecordingMachine) -> None:
    """Clients of one real worker: some come at once, some later, some leave in mid-stream."""
    card = ModelCard(("tiny",), CONTEXT_TOKENS, VOCABULARY, (), 0)
    local = LocalWorker(card, machine, worker.engine())

    async def client(index: int, tokens_wanted: int) -> int:
        taken = 0
        stream = local.generate(request(index, 5 * index % 24, 20, index % 3))
        async for output in stream:
            taken += len(output.tokens)
            if taken >= tokens_wanted:
                break
        await stream.aclose()
        return taken

    await local.start()
    early = [asyncio.create_task(client(index, 99)) for index in range(6)]
    leaver = asyncio.create_task(client(6, 3))
    assert await early[0] == 20
    late = [asyncio.create_task(client(index, 99)) for index in range(7, 12)]
    taken = await asyncio.gather(*early, *late)
    assert taken == [20] * 11 and await leaver < 20
    await local.stop()


def test_a_journal_of_a_live_worker_replays_to_equal_effects(tmp_path):
    worker = WorkerShape(block_size=8, block_count=9, max_sequences=4, batched_tokens=16)
    machine = RecordingMachine(worker.config())
    asyncio.run(live_run(worker, machine))
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in machine.journal))

    fresh = WorkerMachine(worker.config())
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    for entry in entries:
        assert repr(fresh.handle(read(entry), entry["now_ns"])) == entry["effects"]
    fresh.audit()
    assert sum("aborted" in entry for entry in entries) == 1
    assert sum("RunStep" in entry["effects"] for entry in entries) > 20
