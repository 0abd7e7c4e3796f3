"""A request whose numbers come to NaN ends alone: no token for it, no change for others, nothing of
it in the prefix cache."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from tandem.api.errors import refusal_of
from tandem.cluster.worker.machine import NO_NUMBERS
from tandem.facts.errors import RequestFailed
from tandem.facts.fleet import Role
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import choose_kernels, reference_kernels
from tandem.messages.worker import FailRequest
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.weights import WeightForm
from tests.attacks.toy_workers import OddLedger, read_to_failure, whole
from tests.cluster.ledger_engine import LedgerEngine
from tests.engine.tiny import CPU, VOCABULARY, Arithmetic, Bench, Shape, tiny_decoder, tiny_spec
from tests.live import toy_cluster as local
from tests.live.toy_cluster import (
    GatedLedger,
    ToyWorker,
    make_gateway,
    read,
    request,
    serving,
    until,
    working,
)
from tests.observe.metrics_text import text_of

# What follows this token in the tiny model has no numbers.
NAN_TOKEN = VOCABULARY - 1
# As in the laws of the engine: exact whatever shares a step.
ARITHMETICS = [
    Arithmetic(reference_kernels(), "float64"),
    Arithmetic(choose_kernels(CPU, torch.float32, allow_native=True)[0], "float32"),
]
NARROW = choose_kernels(CPU, torch.float32, allow_native=True, arithmetic="auto")[0]
SAMPLINGS = [
    SamplingParameters(temperature=0.0, max_tokens=9),
    SamplingParameters(temperature=1.0, seed=5, max_tokens=9, top_logprobs=3),
    SamplingParameters(temperature=1.3, seed=6, max_tokens=9, top_k=7, top_p=0.8, min_p=0.01),
    SamplingParameters(
        temperature=0.7, seed=7, max_tokens=9, repetition_penalty=1.3, frequency_penalty=0.5,
        min_tokens=4, stop_token_ids=(3, NAN_TOKEN), logit_bias=((5, 2.0),), top_logprobs=0,
    ),
    SamplingParameters(
        temperature=0.9, seed=8, max_tokens=9, allowed_token_ids=tuple(range(4, 40)),
        bad_words=((5,), (6, 7), (8, 9, 10)),
    ),
]  # fmt: skip
PROMPT = tuple(range(1, 22))
BAD_PROMPT = (*PROMPT[:10], NAN_TOKEN, *PROMPT[11:])
SHAPES = [Shape(), Shape(chunk_tokens=3), Shape(steps_in_flight=0, max_batched_tokens=9)]


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny shapes need no second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class NanBench(Bench):
    """Keeps what has failed."""

    def __init__(self, arithmetic: Arithmetic, shape: Shape) -> None:
        decoder = tiny_decoder(arithmetic)
        assert decoder.weights.embedding is not None
        decoder.weights.embedding[NAN_TOKEN] = torch.nan
        super().__init__(decoder, arithmetic, shape)
        self.failed: dict[str, str] = {}
        handle = self.machine.handle

        def keeping(event, now_ns):
            effects = handle(event, now_ns)
            self.failed |= {e.request_id: e.reason for e in effects if isinstance(e, FailRequest)}
            return effects

        self.machine.handle = keeping

    def cached_blocks(self) -> list[int]:
        return [b for b, d in enumerate(self.machine.sequences.pool._hash_of) if d is not None]


def neighbours() -> list[Request]:
    return [
        Request(f"good {i}", PROMPT[: 5 + 5 * i], sampling) for i, sampling in enumerate(SAMPLINGS)
    ]


def without_nan(wanted: list[Request]) -> list[Request]:
    """What the neighbours may say never goes on from the token."""
    ban = ((NAN_TOKEN, -100.0),)
    return [
        replace(one, sampling=replace(one.sampling, logit_bias=one.sampling.logit_bias + ban))
        for one in wanted
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda each: each.kernels.name)
def test_a_prompt_without_numbers_ends_alone(arithmetic, shape):
    wanted = without_nan(neighbours())
    alone, beside = NanBench(arithmetic, shape), NanBench(arithmetic, shape)
    alone.ask(*wanted)
    alone.drain()
    bad = [Request(f"bad {i}", BAD_PROMPT, sampling) for i, sampling in enumerate(SAMPLINGS)]
    beside.ask(*(one for two in zip(bad, wanted, strict=True) for one in two))
    beside.drain()
    assert beside.failed == dict.fromkeys((one.request_id for one in bad), NO_NUMBERS)
    assert beside.answers == alone.answers
    if arithmetic.kernels.batch_invariant:
        assert beside.logprobs == alone.logprobs
    # Whoever comes later finds no block of it, and computes the same in what it left.
    cached = beside.cached_blocks()
    assert cached
    assert torch.isfinite(beside.engine.kv.pool_BL2KSD[cached]).all()
    beside.ask(*(replace(one, request_id=f"again {one.request_id}") for one in wanted))
    beside.drain()
    for one in wanted:
        assert beside.answers[f"again {one.request_id}"] == alone.answers[one.request_id]
    beside.ask(replace(bad[0], request_id="worse"))
    beside.drain()
    assert "worse" in beside.failed


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda each: each.kernels.name)
def test_an_answer_without_numbers_ends_where_they_end(arithmetic):
    bench = NanBench(arithmetic, Shape())
    draws = SamplingParameters(temperature=0.0, max_tokens=9, logit_bias=((NAN_TOKEN, 100.0),))
    bench.ask(Request("bad", PROMPT, draws), *without_nan(neighbours()))
    bench.drain()
    assert bench.answers["bad"] == [NAN_TOKEN]
    assert bench.failed.keys() == {"bad"}
    assert bench.finished.keys() == {f"good {i}" for i in range(len(SAMPLINGS))}


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda each: each.kernels.name)
def test_a_head_without_numbers_lets_nobody_say_anything(arithmetic):
    bench = NanBench(arithmetic, Shape())
    head = bench.engine.decoder.weights.head
    # Panels lie [panel, C, 64].
    (head.weight if head.layout == "rows" else head.weight[0].T)[7] = torch.nan
    # Not even who bans the token that has none.
    banned = replace(SAMPLINGS[3], stop_token_ids=(7,))
    others_only = replace(SAMPLINGS[4], allowed_token_ids=(8, 9))
    bench.ask(
        *neighbours(), Request("banned", PROMPT, banned), Request("others", PROMPT, others_only)
    )
    bench.drain()
    assert len(bench.failed) == len(SAMPLINGS) + 2
    assert not bench.answers


STORAGES = [
    *((reference_kernels(), form) for form in ("float64", "float32", "bfloat16", "float16")),
    *((ARITHMETICS[1].kernels, form) for form in ("float32", "bfloat16", "float16", "int8")),
    *((NARROW, form) for form in ("bfloat16", "int8", "int4")),
]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("kernels", "storage"), STORAGES, ids=lambda each: getattr(each, "name", each)
)
def test_a_hidden_state_without_numbers_leaves_no_logit_with_one(kernels, storage, value):
    """Of rows that draw, only the logits are looked at."""
    compute = torch.float32 if kernels.name == "native" else getattr(torch, storage)
    plan = LoadPlan(Path(), WeightForm(storage, compute, CPU), "dummy", seed=3)
    decoder = load_decoder(tiny_spec(), plan, kernels)
    features = decoder.spec.hidden_features
    hidden_RC = torch.ones(features + 1, features, dtype=compute)
    hidden_RC[range(features), range(features)] = value
    logits_RV = decoder.logits(hidden_RC)
    assert not torch.isfinite(logits_RV[:features]).any()
    assert torch.isfinite(logits_RV[features]).all()


class NumberlessLedger(OddLedger):
    """Comes to no numbers wherever a sequence has this token."""

    token = 10

    def run(self, plan: StepPlan) -> StepResult:
        failed = tuple(row for row, slot in enumerate(plan.slots) if self._lacks(plan, int(slot)))
        return structs.replace(super().run(plan), failed_rows=failed)

    def _lacks(self, plan: StepPlan, slot: int) -> bool:
        placed = [list(each.tokens) for each in plan.placements if each.slot == slot]
        return self.token in (placed[-1] if placed else self.tokens[slot])


async def test_a_single_process_serves_on():
    engine = GatedLedger()
    engine.gate.set()
    engine.ledger = NumberlessLedger(engine.ledger)
    worker = local.make_worker(engine)
    await worker.start()
    bad = asyncio.create_task(read(worker, request("bad", (1, 10, 3))))
    good = request("good", (4, 5), max_tokens=3)
    assert await read(worker, good) == whole(good)
    with pytest.raises(RequestFailed, match="NaN"):
        await bad
    assert worker.ready
    metrics = text_of(worker.metric_families())
    assert 'request_success_total{finished_reason="error",model_name="toy"} 1.0' in metrics
    assert 'request_success_total{finished_reason="abort",model_name="toy"} 0.0' in metrics
    # A step that was planned before it failed may be under way still.
    await until(lambda: local.drained(worker))
    await worker.stop()


@pytest.mark.parametrize("roles", [(Role.BOTH,), (Role.PREFILL, Role.DECODE)])
@pytest.mark.parametrize("prompt", [(1, 10, 3), (1, 2, 3)])
async def test_a_cluster_serves_on(roles, prompt):
    ledgers: dict[str, LedgerEngine] = {}
    workers = [ToyWorker(f"w{index}", role, ledgers) for index, role in enumerate(roles)]
    for worker in workers:
        NumberlessLedger(worker.engine.ledger).take_place(worker, ledgers)
    gateway, token = make_gateway(), NumberlessLedger.token
    async with serving(gateway) as endpoint, working(*workers, at=endpoint):
        await until(lambda: gateway.ready)
        for seed in range(40):
            wanted = request(f"r{seed}", prompt, seed=seed)
            good = whole(wanted)
            # What the last token would lead to is never computed.
            if token in (*prompt, *good[:-1]):
                end = 0 if token in prompt else good.index(token) + 1
                assert await read_to_failure(gateway, wanted, "NaN") == good[:end]
            else:
                assert await read(gateway, wanted) == good
        await until(lambda: all(worker.drained for worker in workers))
        assert not gateway.machine.router.requests
        assert len(list(gateway.machine.members)) == len(workers)
        assert await read(gateway, request("last", (4, 5), max_tokens=1))


def test_the_client_hears_an_error_that_is_not_worth_a_retry():
    refusal = refusal_of(RequestFailed(NO_NUMBERS))
    assert (refusal.status, refusal.code) == (500, "request_failed")
    assert refusal.message == NO_NUMBERS
    assert refusal.headers == {"X-Should-Retry": "false"}
