"""A beam search over a real engine with a tiny model: the beams of the naive algorithm, whose every
step computes whole sequences anew."""

import asyncio

import pytest
import torch

from tandem.api.beam_search import BeamSearcher
from tandem.api.whole_response import HeldResponse, ResponseBudget
from tandem.facts.errors import Overloaded
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ANYBODY, Caller, ModelCard
from tandem.kernels.faces import choose_kernels
from tandem.live.local_worker import LocalWorker
from tandem.policy.beam_search import BeamPlan
from tests.engine.tiny import (
    CONTEXT_TOKENS,
    CPU,
    VOCABULARY,
    Arithmetic,
    Bench,
    Shape,
    naive_answer,
    tiny_decoder,
)

ARITHMETIC = Arithmetic(choose_kernels(CPU, torch.float32, allow_native=True)[0], "float32")
PROMPT = (5, 6, 7, 8, 5, 6, 7)


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder(ARITHMETIC)


def naive_beams(decoder, plan: BeamPlan) -> list[tuple[tuple[int, ...], float]]:
    """Each step asks the whole model anew, one sequence after the other."""
    running, ended = [((), 0.0)], []
    for _ in range(plan.max_tokens):
        grown = []
        for tokens, total in running:
            one = SamplingParameters(temperature=0.0, max_tokens=1, top_logprobs=2 * plan.width)
            answer = naive_answer(decoder, ARITHMETIC, Request("x", PROMPT + tokens, one))
            scores = answer.scores[0]
            tops = zip(scores.top_ids[0].tolist(), scores.top_logprobs[0].tolist(), strict=True)
            for token, logprob in tops:
                into = ended if token in plan.end_token_ids else grown
                into.append(((*tokens, token), total + logprob))
        running = sorted(grown, key=lambda each: -each[1])[: plan.width]

    def score(found):
        tokens, total = found
        length = len(PROMPT) + len(tokens) - (tokens[-1] in plan.end_token_ids)
        return total / length**plan.length_penalty

    return sorted([*ended, *running], key=score, reverse=True)[: plan.width]


class Counting:
    """The worker, which counts its requests; with `refuse_after` so many it is full."""

    def __init__(self, worker, refuse_after=None):
        self.worker, self.requests, self.refuse_after = worker, [], refuse_after

    def generate(self, request, caller):
        self.requests.append((request, caller))
        if self.refuse_after is not None and len(self.requests) > self.refuse_after:
            raise Overloaded("full", 1.0)
        return self.worker.generate(request, caller)


async def search(decoder, plan, caller=ANYBODY, refuse_after=None, **fields):
    bench = Bench(decoder, ARITHMETIC, Shape(block_size=4, blocks=60))
    card = ModelCard(("tiny",), CONTEXT_TOKENS, VOCABULARY, (), 0)
    worker = LocalWorker(card, bench.machine, bench.engine)
    await worker.start()
    counting = Counting(worker, refuse_after)
    request = Request("beams-0", PROMPT, SamplingParameters(max_tokens=plan.max_tokens), **fields)
    held = HeldResponse(ResponseBudget(1 << 20), "")
    try:
        found = await BeamSearcher(counting, plan, request, caller, held).run()
    finally:
        pool = bench.machine.sequences.pool
        while pool.free_blocks < pool.block_count:
            await asyncio.sleep(0)
        await worker.stop()
    return found, counting.requests


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("penalty", [1.0, 0.0, -2.0])
@pytest.mark.parametrize("ends", [(), tuple(range(0, VOCABULARY, 9))])
async def test_the_beams_of_the_naive_algorithm(decoder, width, penalty, ends):
    plan = BeamPlan(width, 7, penalty, frozenset(ends), alternatives=2)
    found, requests = await search(decoder, plan)
    expected = naive_beams(decoder, plan)
    assert [each.tokens for each in found] == [tokens for tokens, _ in expected]
    for each, (tokens, total) in zip(found, expected, strict=True):
        assert sum(score.logprob for score in each.logprobs) == pytest.approx(total, abs=1e-5)
        assert all(len(score.top) == 2 for score in each.logprobs)
        assert each.stopped_by_token == (tokens[-1] in ends)
        reason = FinishReason.STOP if each.stopped_by_token else FinishReason.LENGTH
        assert each.finish_reason is reason
    # One token of each beam a step, under names of their own, and the steps come in as a whole.
    assert len({request.request_id for request, _ in requests}) == len(requests)
    assert all(request.sampling.max_tokens == 1 for request, _ in requests)
    sizes = [caller.call.requests for _, caller in requests if caller.call]
    assert sizes == ([] if width == 1 else [width] * (len(requests) - 1))


async def test_a_step_that_finds_no_room_ends_the_search_and_frees_all(decoder):
    with pytest.raises(Overloaded):
        await search(decoder, BeamPlan(3, 7), refuse_after=5)


async def test_a_deadline_ends_it_with_what_there_is(decoder):
    plan = BeamPlan(2, 30)
    found, _ = await search(decoder, plan, refuse_after=5, deadline_s=60.0)
    assert [each.finish_reason for each in found] == [FinishReason.DEADLINE] * 2
    assert [len(each.tokens) for each in found] == [3, 3]
    # Nothing comes of one that has no token yet.
    with pytest.raises(Overloaded):
        await search(decoder, plan, refuse_after=0, deadline_s=60.0)


async def test_its_requests_belong_to_no_session(decoder):
    caller = Caller(session="s", pin_s=5.0, pause_s=1.0)
    _, requests = await search(decoder, BeamPlan(2, 3), caller)
    assert {(each.session, each.pin_s, each.pause_s) for _, each in requests} == {("", 0.0, None)}
