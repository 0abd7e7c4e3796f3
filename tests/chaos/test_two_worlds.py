"""The same fault on the same load, live and in the twin: a decode worker dies while every stream
runs. Counts are compared, not times: how many are taken over, and how many clients feel it."""

import asyncio
from dataclasses import dataclass

import aiohttp

from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.trace import TraceRow
from tandem.live.gateway.operators import Operators
from tandem.policy.batching import TokenBudgetBatching
from tandem.report.record import Ending, RunRecord
from tandem.twin.faults.kinds import Crash, Fault
from tandem.twin.scenario import Scenario
from tandem.twin.simulation import Simulation
from tests.chaos.client import Gathered, events
from tests.chaos.injector import FaultInjector
from tests.chaos.live_faults import FaultKind, LiveFault
from tests.chaos.workload import Question
from tests.journeys.clusters import ClusterProcess
from tests.twin.small_scenarios import BLOCK, plain_policies, worker_kind, workers

# Answers are long: on a busy machine the last stream begins long after the first.
STREAMS, PROMPT_WORDS, ANSWER_TOKENS, BEFORE_KILL = 8, 100, 1600, 8
# A stream has paused when others got so many tokens before it got its next one.
PAUSE_TOKENS = 2 * STREAMS


@dataclass(frozen=True)
class Impact:
    """Streams that were taken over, that got every token, and that paused after the fault."""

    takeovers: int
    whole: int
    paused: int


def body(index: int) -> dict:
    return {
        "model": "tandem-mini",
        "prompt": f"Story {index}. " + "once upon a time " * (PROMPT_WORDS // 4),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }


async def live(running: ClusterProcess, injector: FaultInjector) -> Impact:
    """Asks one gateway after the other, as the kernel has it; kills once everybody has begun."""
    await everybody_knows_everybody(running, injector)
    before = takeovers(running)
    gathered = [Gathered(1) for _ in range(STREAMS)]
    order: list[int] = []
    begun = asyncio.Event()

    async def read(http: aiohttp.ClientSession, index: int) -> None:
        question = Question(f"{index}", "/v1/completions", body(index))
        async for event in events(http, running.url, question):
            gathered[index].take(event)
            order.append(index)
            if all(each.pieces >= BEFORE_KILL for each in gathered):
                begun.set()

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        reading = [asyncio.create_task(read(http, index)) for index in range(STREAMS)]
        waiting = asyncio.create_task(begun.wait())
        await asyncio.wait([waiting, *reading], timeout=60, return_when=asyncio.FIRST_COMPLETED)
        pieces = [each.pieces for each in gathered]
        assert waiting.done(), ([each for each in reading if each.done()], pieces)
        at = len(order)
        await injector.do(LiveFault(0, FaultKind.KILL, ("decode-0",)))
        await asyncio.gather(*reading)
    after = order[at:]
    answers = [each.answer() for each in gathered]
    whole = sum(each.output_tokens == ANSWER_TOKENS for each in answers)
    return Impact(takeovers(running) - before, whole, paused_streams(after))


async def everybody_knows_everybody(running: ClusterProcess, injector: FaultInjector) -> None:
    """Whoever was started anew has registered at both gateways; the worker that dies has its share
    of the streams."""
    cluster = find_running(WhichCluster(state_dir=running.state))
    operators = Operators(cluster.endpoints, cluster.keys)
    async with asyncio.timeout(60):
        while any(status.members != injector.workers for status in await operators.statuses()):
            await asyncio.sleep(0.05)


def takeovers(running: ClusterProcess) -> int:
    return sum(gateway["takeovers"] for gateway in running.status()["gateways"])


def paused_streams(order: list[int]) -> int:
    """`order` are the streams whose tokens came, one after the other."""
    paused = set()
    last: dict[int, int] = dict.fromkeys(range(STREAMS), 0)
    for place, index in enumerate(order):
        if place - last[index] >= PAUSE_TOKENS:
            paused.add(index)
        last[index] = place
    return len(paused)


def twin() -> Impact:
    step_time = FittedStepTime(fixed_s=0.002, token_s=0.0001, context_token_s=0.0)
    kind = worker_kind(
        WorkerCost(step_time, 100.0, 512, {}, LinkCost(1e9)),
        block_count=2000,
        max_sequences=24,
        batching=TokenBudgetBatching(2048),
    )
    scenario = Scenario(
        pools=(
            workers("prefill", kind, 1, Role.PREFILL),
            workers("decode", kind, 2, Role.DECODE),
        ),
        policies=plain_policies(),
        block_size=BLOCK,
        context_tokens=4096,
        # Everybody has begun and nobody has ended: steps take some 2.5 ms.
        faults=(Fault(0.4, Crash("decode-0"), 3.0),),
    )
    rows = [
        TraceRow(0.0, PROMPT_WORDS, ANSWER_TOKENS, (100 * index,), BLOCK)
        for index in range(STREAMS)
    ]
    run = Simulation(scenario, rows, RunRecord({})).run(None)
    whole = sum(each.ending is Ending.FINISHED for each in run.requests)
    assert all(each.first_token_ns < 400_000_000 < each.end_ns for each in run.requests)
    resumed = sum(each.resumptions for each in run.requests)
    gaps = list(zip(run.gaps_ns, run.gap_counts, strict=True))
    step_ns = sum(gap_ns * count for gap_ns, count in gaps) / sum(run.gap_counts)
    # Half of the streams go on meanwhile: each gets its share of those tokens.
    pause_ns = PAUSE_TOKENS / (STREAMS // 2) * step_ns
    paused = sum(count for gap_ns, count in gaps if gap_ns > pause_ns)
    return Impact(resumed, whole, paused)


def test_a_kill_is_felt_alike_live_and_in_the_twin(small_cluster):
    running, injector = small_cluster
    real, simulated = asyncio.run(live(running, injector)), twin()
    # Every stream gets every token in both worlds.
    assert real.whole == simulated.whole == STREAMS
    # Those of the dead worker are taken over, about half; two gateways decide without each other.
    assert simulated.takeovers == STREAMS // 2
    assert STREAMS // 2 - 2 <= real.takeovers <= STREAMS // 2 + 2
    # Who is taken over pauses; live, others may, too, for reasons of their own.
    assert simulated.paused == simulated.takeovers
    assert real.paused >= real.takeovers - 1
