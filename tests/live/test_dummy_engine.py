"""Workers that compute nothing, in real processes: all but the engine is as ever."""

import asyncio
import json
from array import array
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.processes import WorkerSetup
from tandem.cost.fitted import FittedStepTime, to_fields
from tandem.cost.worker import StepShape
from tandem.engine.slots import SlotShape
from tandem.facts.request import TokenLogprobs
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import Placement, StepPlan
from tandem.kv.layout import KvLayout
from tandem.kv.store import KvStore
from tandem.live.clock import now_ns
from tandem.live.processes.dummy_engine import DRAWN_TOKEN, DummyEngine, shape_of
from tandem.live.processes.worker_rank import plan_worker
from tandem.policy.dispatch.contract import Transfer
from tests.config.clusters import POOL, cluster_of_one
from tests.live.ends import KEYS
from tests.live.gateway_side import (
    HEALTH,
    OPTIONS,
    GatewaySide,
    LoopThread,
    Workers,
    gateway_config,
)
from tests.live.test_node_processes import QUESTIONS

INSTANT = FittedStepTime()


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def plan(samples: list[bool], logprobs: int | None = None) -> StepPlan:
    """A prompt of 8 after 4 tokens in slot 0, a decode of the 9th token in slot 1."""
    sampling = SamplingParameters(top_logprobs=logprobs)
    placements = (
        Placement(0, "a", array("I", range(12)), 12, SamplingParameters()),
        Placement(1, "b", array("I", range(9)), 9, sampling),
    )
    return StepPlan(
        step_id=0,
        placements=placements,
        slots=ints(0, 1),
        starts=ints(4, 8),
        counts=ints(8, 1),
        samples=np.array(samples),
        table_slots=ints(0, 1),
        table_indices=ints(0, 0),
        table_blocks=ints(1, 2),
    )


def engine(step_time: FittedStepTime = INSTANT, vocabulary_tokens: int = 4096) -> DummyEngine:
    kv = KvStore(KvLayout(1, 1, 2, 16, "float32"), 4, torch.device("cpu"))
    return DummyEngine(step_time, kv, SlotShape(2, 16, 16), vocabulary_tokens)


def test_a_step_costs_what_its_rows_cost():
    assert shape_of(plan([True, True])) == StepShape(((4, 8),), 1, 9, 2)
    assert shape_of(plan([False, True])).sampled_rows == 1


def test_a_step_lasts_as_long_as_the_cost_model_says():
    began_ns = now_ns()
    engine(FittedStepTime(fixed_s=0.02)).launch(plan([True, True]))
    assert now_ns() - began_ns >= 20_000_000


def test_rows_that_draw_get_the_same_token_and_its_probability_where_it_is_wanted():
    result = engine().launch(plan([True, True])).result()
    assert (result.tokens, result.logprobs) == ((DRAWN_TOKEN, DRAWN_TOKEN), ())
    result = engine(vocabulary_tokens=100).launch(plan([True, True], logprobs=2)).result()
    assert (result.tokens, result.logprobs) == ((99, 99), (None, TokenLogprobs(0.0, 1)))
    assert engine().launch(plan([False, True])).result().tokens == (DRAWN_TOKEN,)


def setup_of(cluster: Cluster) -> WorkerSetup:
    keys = KEYS.of_worker()
    return WorkerSetup(
        worker="w", pool=POOL, role="both", model=None, options=OPTIONS, gateways=(), keys=keys,
        cluster=cluster,
    )  # fmt: skip


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


def test_prompts_and_their_kv_pass_through_a_cluster_of_dummies(loop, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"fitted": to_fields(INSTANT)}))
    dummies = cluster_of_one(
        health=HEALTH, engine="dummy", time_model=Choice("profile", {"path": str(profile)})
    )
    root = plan_worker(setup_of(dummies)).model.plan.worker.root
    side = GatewaySide(gateway_config(root, Transfer.PUSH))
    workers = Workers(tmp_path, loop.run(side.open()))
    try:
        for name, role in (("p0", "prefill"), ("d0", "decode")):
            workers.start(name, role, cluster=dummies)
        loop.run(side.members("p0", "d0"))

        async def ask_all() -> list[list[int]]:
            return await asyncio.gather(*map(side.ask, QUESTIONS))

        for question, answer in zip(QUESTIONS, loop.run(ask_all()), strict=True):
            assert answer == [DRAWN_TOKEN] * question.sampling.max_tokens
        (decoding,) = [each for each in side.status().workers if each.worker == "d0"]
        assert decoding.moved_bytes > 0
    finally:
        workers.print_logs()
        workers.kill_all()
        loop.run(side.stop())


def test_what_nobody_computed_is_never_taken_for_kv_of_the_model():
    identities = {
        plan_worker(setup_of(cluster_of_one(engine=engine))).export.identity
        for engine in ("model", "dummy")
    }
    assert len(identities) == 2
