"""The gateway's shell over real sockets to toy workers: streams, refusals, operators."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from msgspec import structs

from tandem.cluster.gateway.demand import Demand
from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.facts.errors import (
    EngineFailed,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    Rejection,
    RequestFailed,
)
from tandem.facts.fleet import Role
from tandem.facts.serving import Caller
from tandem.facts.slo import Slo
from tandem.facts.step_totals import StepTotals
from tandem.live.clock import now_ns
from tandem.live.gateway.operators import OperatorClient, OperatorFailed
from tandem.live.gateway.terms import GatewayTerms
from tandem.messages.gateway import MessageFromWorker
from tandem.messages.router import RequestBroken, RequestSubmitted
from tandem.policy.planning.contract import FleetView, Flip, Plan
from tests.cluster.ledger_engine import VOCABULARY, answer
from tests.live.ends import NODE_KEYS, PATIENCE_S
from tests.live.toy_cluster import (
    CONTEXT_TOKENS,
    COST,
    ROOT,
    SEQUENCES,
    ToyWorker,
    make_gateway,
    read,
    request,
    serving,
    until,
    working,
)
from tests.observe.metrics_text import text_of


@asynccontextmanager
async def cluster(*workers: ToyWorker, **terms):
    """A gateway that knows these workers, and its endpoint."""
    gateway = make_gateway(**terms)
    async with serving(gateway) as endpoint, working(*workers, at=endpoint):
        await until(lambda: len(list(gateway.machine.members)) == len(workers))
        yield gateway, endpoint


def metrics_of(gateway) -> str:
    return text_of(gateway.metric_families())


@pytest.mark.parametrize("split", [False, True])
async def test_streams_get_their_own_answers(split):
    ledgers: dict = {}
    roles = (Role.PREFILL, Role.DECODE, Role.DECODE) if split else (Role.BOTH, Role.BOTH)
    workers = [ToyWorker(f"w{i}", role, ledgers) for i, role in enumerate(roles)]

    async with cluster(*workers) as (gateway, _):
        assert gateway.ready
        wanted = [request(str(i), (1, 2, 3, 4, 5, i), seed=i, max_tokens=30) for i in range(9)]
        answers = await asyncio.gather(*(read(gateway, one) for one in wanted))
        for one, got in zip(wanted, answers, strict=True):
            assert got == answer(one.prompt_tokens, one.sampling, CONTEXT_TOKENS)
        await until(lambda: all(worker.drained for worker in workers))
        moved = sum(w.moved_bytes for w in gateway.machine.status(0).workers)
        assert (moved > 0) == split


async def test_nobody_is_ready_before_both_phases_are_taken():
    async with cluster() as (gateway, _):
        assert not gateway.ready
        assert not gateway.failed
        assert gateway.card.context_tokens == 10_000
    async with cluster(ToyWorker("p", Role.PREFILL), comeback_s=0.0) as (gateway, endpoint):
        assert not gateway.ready
        assert gateway.card.context_tokens == CONTEXT_TOKENS
        decode = ToyWorker("d", Role.DECODE, context_tokens=120)
        async with working(decode, at=endpoint):
            await until(lambda: gateway.ready)
            assert gateway.card.context_tokens == 120
        await until(lambda: not gateway.ready)


async def test_who_asks_while_a_phase_has_no_worker_waits_for_one_to_come_back():
    ledgers = {}

    async with cluster(ToyWorker("p", Role.PREFILL, ledgers)) as (gateway, endpoint):
        async with working(ToyWorker("d", Role.DECODE, ledgers), at=endpoint):
            await until(lambda: gateway.ready)
        await until(lambda: len(list(gateway.machine.members)) == 1)
        assert gateway.ready
        late = request("late")
        waiting = asyncio.create_task(read(gateway, late))
        async with working(ToyWorker("e", Role.DECODE, ledgers), at=endpoint):
            assert await waiting == answer(late.prompt_tokens, late.sampling, CONTEXT_TOKENS)


async def test_nobody_waits_for_a_worker_beyond_its_deadline():
    ledgers = {}

    async with cluster(ToyWorker("p", Role.PREFILL, ledgers)) as (gateway, endpoint):
        async with working(ToyWorker("d", Role.DECODE, ledgers), at=endpoint):
            await until(lambda: gateway.ready)
        await until(lambda: len(list(gateway.machine.members)) == 1)
        with pytest.raises(Overloaded, match="its first token was due in 50 ms: no wor") as late:
            await read(gateway, request("late"), Caller(deadline_s=0.05))
        assert late.value.by is Rejection.DEADLINE
        assert 1.0 < late.value.retry_after_s <= 15.0
        assert gateway.ready
        assert 'success_total{finished_reason="abort",model_name="toy"} 0.0' in metrics_of(gateway)
        submitted = []
        decide = gateway.machine.handle_together

        def watched(events, instant_ns):
            submitted.extend(each for each in events if isinstance(each, RequestSubmitted))
            return decide(events, instant_ns)

        gateway.machine.handle_together = watched
        waiting = asyncio.create_task(read(gateway, request("in time"), Caller(deadline_s=30.0)))
        await until(lambda: gateway._availability._waiters)
        waits_ns = now_ns()
        async with working(ToyWorker("e", Role.DECODE, ledgers), at=endpoint):
            assert await waiting
        # What it waited is part of its time to the first token.
        assert submitted[0].arrived_ns < waits_ns


async def test_who_has_all_it_wants_is_answered():
    worker = ToyWorker("w")

    async with cluster(worker) as (gateway, _):
        stream = gateway.generate(request("stopped", max_tokens=150))
        await anext(stream)
        gateway.satisfied("stopped")
        await until(lambda: worker.drained and not gateway.machine.router.requests)
        await stream.aclose()
        await read(gateway, request("next"))
        assert gateway.machine.status(0).finished_requests == 2
        text = metrics_of(gateway)
        assert 'request_success_total{finished_reason="stop",model_name="toy"} 1.0' in text
        assert 'request_success_total{finished_reason="abort",model_name="toy"} 0.0' in text


async def test_a_reader_who_leaves_frees_everything():
    worker = ToyWorker("w")

    async with cluster(worker) as (gateway, _):
        stream = gateway.generate(request("gone", max_tokens=150))
        await anext(stream)
        await stream.aclose()
        await until(lambda: worker.drained and not gateway.machine.router.requests)
        assert 'request_success_total{finished_reason="abort",model_name="toy"} 1.0' in metrics_of(
            gateway
        )


async def test_a_reader_who_leaves_at_once_never_runs():
    worker = ToyWorker("w")

    async with cluster(worker) as (gateway, _):
        task = asyncio.create_task(read(gateway, request("early")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert len(await read(gateway, request("next"))) == 8
        assert 'tandem:generation_tokens_total{model_name="toy"} 8.0' in metrics_of(gateway)
        await until(lambda: worker.drained)


async def test_what_cannot_run_is_refused_and_disturbs_nobody():
    async with cluster(ToyWorker("w")) as (gateway, _):
        good = asyncio.create_task(read(gateway, request("good", max_tokens=60)))
        with pytest.raises(PromptTooLong):
            await read(gateway, request("long", (1,) * CONTEXT_TOKENS))
        with pytest.raises(InvalidRequest, match="vocabulary"):
            await read(gateway, request("alien", (VOCABULARY,)))
        with pytest.raises(InvalidRequest, match=r"^prompt .*empty"):
            await read(gateway, request("empty", ()))
        with pytest.raises(InvalidRequest, match=r"^logit_bias names") as refused:
            await read(gateway, request("biased", logit_bias=((VOCABULARY, 1.0),)))
        assert refused.value.field == "logit_bias"
        assert len(await good) == 60
        assert not gateway.machine.router.requests


async def test_two_running_requests_cannot_share_an_id():
    worker = ToyWorker("w")
    worker.engine.gate.clear()

    async with cluster(worker) as (gateway, _):
        first = asyncio.create_task(read(gateway, request("twin")))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="'twin' is already running"):
            await read(gateway, request("twin"))
        worker.engine.gate.set()
        await first


async def test_too_many_who_wait_learn_when_to_come_back():
    worker = ToyWorker("w")
    worker.engine.gate.clear()

    async with cluster(worker, max_waiting=SEQUENCES + 2) as (gateway, _):
        waiting = [
            asyncio.create_task(read(gateway, request(str(i)))) for i in range(SEQUENCES + 2)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refusal:
            await read(gateway, request("late"))
        assert refusal.value.retry_after_s >= 1
        worker.engine.gate.set()
        await asyncio.gather(*waiting)
        assert len(await read(gateway, request("later"))) == 8
        refused = 'admission_rejections_total{model_name="toy",reason="queue"} 1.0'
        assert refused in metrics_of(gateway)


async def test_a_worker_that_dies_is_replaced_and_streams_go_on():
    first, second = ToyWorker("w0"), ToyWorker("w1")

    async with cluster(first, second) as (gateway, _):
        wanted = request("a", (1, 2, 3), max_tokens=150)
        stream = gateway.generate(wanted)
        tokens = list((await anext(stream)).tokens)
        holder = first if not first.machine.idle else second
        holder.engine.gate.clear()
        await holder.stop()
        async for output in stream:
            tokens += output.tokens
        assert tokens == answer(wanted.prompt_tokens, wanted.sampling, CONTEXT_TOKENS)
        status = gateway.machine.status(0)
        assert [worker.worker for worker in status.workers] != ["w0", "w1"]
        assert len(status.lost) == 1
        assert 'tandem:lost_workers_total{model_name="toy"} 1.0' in metrics_of(gateway)


def steps_of(gateway, worker: str) -> tuple[StepTotals, ...]:
    workers = {each.worker: each for each in gateway.machine.status(0).workers}
    return workers[worker].steps


async def test_metrics_of_requests_and_workers():
    ledgers: dict = {}
    workers = ToyWorker("p", Role.PREFILL, ledgers), ToyWorker("d", Role.DECODE, ledgers)

    async with cluster(*workers) as (gateway, _):
        await read(gateway, request("a", tuple(range(9)), max_tokens=5))
        await until(lambda: all(worker.drained for worker in workers))
        status = gateway.machine.status(0)
        moved = sum(worker.moved_bytes for worker in status.workers)
        text = metrics_of(gateway)
        for line in (
            'tandem:prompt_tokens_total{model_name="toy"} 9.0',
            'tandem:generation_tokens_total{model_name="toy"} 5.0',
            'tandem:time_to_first_token_seconds_count{model_name="toy"} 1.0',
            'tandem:inter_token_latency_seconds_count{model_name="toy"} 4.0',
            'tandem:request_success_total{finished_reason="length",model_name="toy"} 1.0',
            'tandem:request_takeovers_total{model_name="toy"} 0.0',
            'tandem:prefix_cache_queries_total{model_name="toy"} 9.0',
            'tandem:prefix_cache_hits_total{model_name="toy"} 0.0',
            'tandem:request_prefill_kv_computed_tokens_sum{model_name="toy"} 9.0',
            'tandem:worker_accepting{model_name="toy",pool="p",role="decode",worker="d"} 1.0',
            'tandem:num_requests_running{model_name="toy",pool="p",role="prefill",worker="p"} 0.0',
            f'tandem:kv_transfer_bytes_total{{model_name="toy",pool="p",worker="d"}} {moved:.1f}',
            'tandem:kv_transfers_total{model_name="toy",pool="p",worker="d"} 1.0',
            'tandem:kv_transfer_failures_total{model_name="toy",pool="p",worker="d"} 0.0',
        ):
            assert line in text
        # Totals of steps are reported once a second.
        await until(lambda: sum(each.steps for each in steps_of(gateway, "d")) >= 4)


async def test_operators_see_drain_flip_and_audit():
    workers = ToyWorker("w0"), ToyWorker("w1")

    async with cluster(*workers) as (gateway, endpoint):
        with OperatorClient(endpoint, NODE_KEYS, PATIENCE_S) as client:
            await read(gateway, request("a"))
            status = await asyncio.to_thread(client.status)
            assert [worker.worker for worker in status.workers] == ["w0", "w1"]
            assert sum(worker.output_tokens for worker in status.workers) == 8
            await asyncio.to_thread(client.drain, "w1")
            status = await asyncio.to_thread(client.status)
            assert [worker.accepting for worker in status.workers] == [True, False]
            with pytest.raises(OperatorFailed, match="w0"):
                await asyncio.to_thread(client.drain, "w0")
            with pytest.raises(OperatorFailed, match="nobody"):
                await asyncio.to_thread(client.drain, "nobody")
            await asyncio.to_thread(client.undrain, "w1")
            await asyncio.to_thread(lambda: client.drain("w1", then_role=Role.DECODE))
            audit = await asyncio.to_thread(client.audit)
            assert audit.problem == ""
            assert [(each.worker, each.owned_blocks, each.problem) for each in audit.workers] == [
                ("w0", 0, ""),
                ("w1", 0, ""),
            ]
            await asyncio.to_thread(lambda: client.drain("w1", leave=True))
            assert workers[1].task is not None
            assert (await workers[1].task).reason == ""
            assert 'tandem:lost_workers_total{model_name="toy"} 0.0' in metrics_of(gateway)


@dataclass
class Wanting:
    """A planner that wants one decode worker more than there are, and the first one to flip."""

    interval_s: float = 0.05

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        del now_ns
        decoding = [view for view in fleet.workers if view.role is Role.DECODE and view.accepting]
        flips = (Flip("w-1", "prefill"),) if len(decoding) > 1 else ()
        return Plan(prefill=2, decode=2, flips=flips, reason="as tested")


async def test_a_planner_flips_and_its_status_names_who_is_to_be_started():
    pools = tuple(
        ScaledPool(role, names, 0, 1, COST, startup_s=1.0)
        for role, names in ((Role.PREFILL, ("w-2",)), (Role.DECODE, ("w-0", "w-1", "d-2")))
    )
    planning = PlanningConfig("wanting", Wanting(), pools, Slo())
    roles = (Role.DECODE, Role.DECODE, Role.PREFILL)
    workers = [ToyWorker(f"w-{index}", role) for index, role in enumerate(roles)]
    async with cluster(*workers, planning=planning) as (gateway, endpoint):
        with OperatorClient(endpoint, NODE_KEYS, PATIENCE_S) as client:

            async def status():
                return (await asyncio.to_thread(client.status)).planning

            while [each.worker for each in (await status()).starting] != ["d-2"]:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(client.report_start_failed, "d-2", "no memory")
            planned = await status()
            assert (planned.starting, planned.failed_starts) == ((), 1)
            flipped = gateway.machine.members.of_name("w-1")
            await until(lambda: flipped.role is Role.PREFILL)
            planned = await status()
            assert (planned.flips, planned.draining, planned.held) == (1, (), ())
            first = planned.decisions[0]
            assert first.text.startswith("as tested: w-1 becomes prefill; ")
            assert dict(first.figures)["decode_workers"] == 2
            await asyncio.to_thread(client.drain, "w-2")
            held = (await status()).held
            assert [(each.worker, each.why) for each in held] == [("w-2", "drained")]
        flips = 'tandem:planned_actions_total{action="flip",model_name="toy"} 1.0'
        assert flips in metrics_of(gateway)


async def test_an_operator_asks_what_became_of_a_request():
    workers = ToyWorker("w0"), ToyWorker("w1")
    async with cluster(*workers, explain_bytes=1 << 20) as (gateway, endpoint):
        with OperatorClient(endpoint, NODE_KEYS, PATIENCE_S) as client:
            await read(gateway, request("first", max_tokens=5))
            explained = await asyncio.to_thread(client.explain, "first")
            (history,) = explained.histories
            assert (history.ending, history.emitted_tokens) == ("finished", 5)
            kinds = [each.kind for each in history.events]
            assert kinds == ["admission", "routing", "dispatch", "prefill"]
            names = {name for name, _ in history.events[1].figures}
            assert {"ttft_s", "prefill w0 ttft_s", "prefill w1 ttft_s"} <= names
            assert 0 <= history.first_token_ns <= history.last_token_ns == history.end_ns
            assert explained.now_ns >= history.arrival_ns + history.end_ns
            left = asyncio.create_task(read(gateway, request("left", max_tokens=150)))
            await until(lambda: len(gateway.machine.router.requests) == 1)
            left.cancel()
            await until(lambda: not gateway.machine.router.requests)
            (history,) = (await asyncio.to_thread(client.explain, "left")).histories
            assert (history.ending, history.reason) == ("failed", "its client left")
            # One that no worker can have, and one that nobody may have any more.
            with pytest.raises(InvalidRequest, match="vocabulary"):
                await read(gateway, request("bad", (VOCABULARY + 1,)))
            (history,) = (await asyncio.to_thread(client.explain, "bad")).histories
            assert history.ending == "rejected"
            assert "vocabulary" in history.reason
            caller = Caller(call_id="req-9")
            asked = asyncio.create_task(read(gateway, request("doomed", max_tokens=150), caller))
            await until(lambda: len(gateway.machine.router.requests) == 1)
            (wire_id,) = gateway.machine.router._by_wire
            (state,) = gateway.machine.router.requests.values()
            peer = gateway.machine.members.of_name(state.decode).peer
            broken = RequestBroken(state.decode, wire_id, "no numbers")
            gateway.enqueue(MessageFromWorker(peer, broken))
            with pytest.raises(RequestFailed):
                await asked
            (history,) = (await asyncio.to_thread(client.explain, "req-9")).histories
            assert (history.ending, history.reason) == ("failed", "no numbers")
            assert (await asyncio.to_thread(client.explain, "nobody")).histories == ()


def test_an_operator_waits_for_nobody_in_vain():
    with (
        OperatorClient("tcp://127.0.0.1:9", NODE_KEYS, 0.2) as client,
        pytest.raises(OperatorFailed, match="not answered"),
    ):
        client.status()


async def test_only_a_worker_whose_kv_is_unlike_that_of_most_is_warned_of(caplog):
    async with cluster(ToyWorker("w0"), ToyWorker("w1"), root=replace(ROOT, model="")) as (
        gateway,
        endpoint,
    ):
        assert gateway.machine.config.router.root != gateway.machine.router.admission.roots[""]
        assert "another form" not in caplog.text
        newer = ToyWorker("newer")
        node = newer.node.machine
        node.registration = structs.replace(node.registration, root=replace(ROOT, model="newer"))
        async with working(newer, at=endpoint):
            await until(lambda: "worker newer/a/1 keeps KV in another form" in caplog.text)


async def test_closing_ends_what_runs_at_the_workers_too():
    worker = ToyWorker("w")

    async with cluster(worker) as (gateway, _):
        running = asyncio.create_task(read(gateway, request("running", max_tokens=150)))
        await until(lambda: not worker.machine.idle)
        gateway.close()
        with pytest.raises(EngineFailed, match="shutting down"):
            await running
        with pytest.raises(EngineFailed):
            await read(gateway, request("later"))
        assert not gateway.ready
        assert not gateway.failed
        await until(lambda: worker.drained)


async def test_a_gateway_whose_machine_fails_has_failed():
    async with cluster(ToyWorker("w")) as (gateway, _):
        running = asyncio.create_task(read(gateway, request("running", max_tokens=150)))
        await until(lambda: gateway.machine.router.requests)
        # What no shell does: a request that the machine already has.
        state = next(iter(gateway.machine.router.requests.values()))
        gateway.enqueue(RequestSubmitted(state.submission.request, 1.0))
        with pytest.raises(EngineFailed, match="the gateway failed"):
            await running
        await gateway.ended()
        assert gateway.failed
        assert not gateway.ready


async def test_a_restarted_gateway_finds_its_workers():
    worker = ToyWorker("w")
    async with serving(make_gateway()) as endpoint:
        worker.start(endpoint)
    again = make_gateway(incarnation="j")
    async with serving(again, endpoint):
        await until(lambda: again.ready)
        assert len(await read(again, request("a"))) == 8
        await worker.stop()


def test_demand_predicts_from_what_was():
    demand = Demand()
    assert demand.expected_tokens(10) == 10
    for number in range(300):
        demand.arrived("a")
        assert demand.waiting == 1
        for _ in range(20):
            demand.got_token("a", number)
        assert demand.waiting == 0
        demand.left("a", finished=True)
        if number == 9:
            # The first guess has no more weight than any of the first answers.
            assert demand.expected_tokens(1000) == pytest.approx((128 + 10 * 20) / 11)
    assert demand.expected_tokens(1000) == pytest.approx(20, abs=1)
    assert demand.open_ids == ()
    for number in range(40):
        demand.arrived(str(number))
    for number in range(20):
        demand.got_token(str(number), number * 10**9)
    # One begins each second and twenty wait.
    assert 10 < demand.retry_after_s() < 20


@pytest.mark.parametrize(
    ("caller", "pin_s"),
    [
        (Caller(), 0.0),
        (Caller(session="agent"), 60.0),
        (Caller(pin_s=5.0), 5.0),
        (Caller(session="agent", pin_s=5.0), 60.0),
        (Caller(session="agent", pin_s=9000.0), 600.0),
    ],
)
def test_sessions_are_kept_and_wishes_have_a_bound(caller, pin_s):
    assert GatewayTerms("i", pin_sessions_s=60.0, longest_pin_s=600.0).pin_s(caller) == pin_s
