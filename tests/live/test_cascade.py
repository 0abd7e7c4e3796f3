"""A cascade over two scripted generators: who answers, what is closed, and what reaches the client;
and over the bundled pair, whose answers are those of one model alone."""

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random

import msgspec
import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from tandem.config.environment import BUNDLED_DRAFT
from tandem.config.options import read_options
from tandem.facts.errors import (
    EngineFailed,
    InvalidConfiguration,
    InvalidRequest,
    Overloaded,
    RequestFailed,
)
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ANYBODY, Caller, ModelCard
from tandem.live.cascade import Cascade
from tandem.live.processes.server import assemble, running
from tandem.policy.cascade import Confidence, ConfidenceFloor
from tests.observe.metrics_text import text_of

SURE, UNSURE = log(0.95), log(0.2)
REQUEST = Request("r-0", (1, 2, 3), SamplingParameters(max_tokens=50, seed=3))


@dataclass
class ScriptedModel:
    """Generates a token for each log-probability of the script, raises an error that stands there,
    and at None waits until it is closed."""

    first_token: int = 0
    script: list = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.STOP
    context_tokens: int = 100
    together: int = 1
    ready: bool = True
    failed: bool = False
    model_identity: str | None = "scripted"
    asked: list = field(default_factory=list)
    callers: list = field(default_factory=list)
    open: int = 0
    satisfied_ids: list = field(default_factory=list)

    @property
    def card(self) -> ModelCard:
        return ModelCard((f"from-{self.first_token}",), self.context_tokens, 1000, (), 0)

    def satisfied(self, request_id: str) -> None:
        self.satisfied_ids.append(request_id)

    def metric_families(self) -> list[Metric]:
        metric = GaugeMetricFamily("x", "X", labels=("model_name",))
        metric.add_metric((f"from-{self.first_token}",), 1)
        return [metric]

    async def generate(self, request: Request, caller: Caller = ANYBODY):
        self.asked.append(request)
        self.callers.append(caller)
        self.open += 1
        try:
            drawn: list[tuple[int, float]] = []
            for place, each in enumerate(self.script):
                await asyncio.sleep(0)
                if each is None:
                    await asyncio.Event().wait()
                if isinstance(each, Exception):
                    raise each
                drawn.append((self.first_token + place, each))
                is_last = place + 1 == len(self.script)
                if len(drawn) == self.together or is_last:
                    yield self._output(request, drawn, is_last)
                    drawn = []
        finally:
            self.open -= 1

    def _output(self, request: Request, drawn: list, is_last: bool) -> TokenOutput:
        scored = tuple(TokenLogprobs(logprob, 1) for _, logprob in drawn)
        return TokenOutput(
            tuple(token for token, _ in drawn),
            scored if request.sampling.top_logprobs is not None else (),
            self.finish_reason if is_last else None,
            cached_tokens=2,
        )


LARGE_SCRIPT = [SURE] * 7


def pair(
    script: list, large: list = LARGE_SCRIPT, **options
) -> tuple[ScriptedModel, ScriptedModel, Cascade]:
    """The tokens of the large one begin at 500."""
    small, other = ScriptedModel(0, script), ScriptedModel(500, large)
    return small, other, Cascade(small, other, ConfidenceFloor(0.6, 2), **options)


async def read(cascade: Cascade, request: Request = REQUEST, caller: Caller = ANYBODY):
    async with aclosing(cascade.generate(request, caller)) as outputs:
        return [output async for output in outputs]


def tokens_of(outputs) -> list[int]:
    return [token for output in outputs for token in output.tokens]


async def test_a_sure_small_model_answers_alone():
    small, large, cascade = pair([SURE] * 150)
    outputs = await read(cascade)
    assert tokens_of(outputs) == list(range(150))
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.STOP]
    assert {output.cascade.model for output in outputs} == {"small"}
    assert outputs[0].cached_tokens == 2
    # Nobody asked to see them.
    assert not any(output.logprobs for output in outputs)
    assert not large.asked
    assert (small.open, cascade.held_values) == (0, 0)


async def test_log_probabilities_go_to_the_client_who_asks_for_them():
    small, _, cascade = pair([SURE] * 3)
    request = replace(REQUEST, sampling=replace(REQUEST.sampling, top_logprobs=0))
    (output,) = await read(cascade, request)
    assert [each.logprob for each in output.logprobs] == [SURE] * 3
    assert small.asked == [request]


async def test_an_unsure_small_model_is_ended_and_nothing_of_it_is_seen():
    small, large, cascade = pair([SURE, SURE, UNSURE, UNSURE, None])
    outputs = cascade.generate(REQUEST)
    first = await anext(outputs)
    # The rest would never come; the large one has begun, with the request as the client sent it.
    assert (small.open, large.open) == (0, 1)
    assert small.satisfied_ids == ["r-0"]
    assert large.asked == [REQUEST]
    rest = [output async for output in outputs]
    assert tokens_of([first, *rest]) == list(range(500, 507))
    assert {output.cascade.model for output in [first, *rest]} == {"large"}
    assert cascade.held_values == 0


@pytest.mark.parametrize("seed", range(40))
async def test_the_policy_decides_however_many_tokens_come_together(seed):
    rng = Random(seed)
    script = [log(rng.uniform(0.4, 1)) for _ in range(rng.randint(1, 30))]
    terms = ConfidenceFloor(rng.uniform(0.5, 0.8), rng.randint(1, 5))
    confidence = Confidence(terms)
    confidence.add(script)
    for together in (1, 3, 100):
        small, large = ScriptedModel(0, script, together=together), ScriptedModel(500, LARGE_SCRIPT)
        outputs = await read(Cascade(small, large, terms))
        counts = confidence.end()
        assert tokens_of(outputs) == list(range(len(script)) if counts else range(500, 507))
        assert bool(large.asked) is not counts
        assert small.open == large.open == 0


def outcomes_of(cascade: Cascade) -> dict[str, float]:
    """How many requests each model answered, and why it was the large one."""
    found = re.findall(r'\w+="(\w+)"} (\S+)$', text_of(cascade.metrics.families()), re.M)
    return {name: float(count) for name, count in found if 0 < float(count) < 1000}


async def test_what_the_small_model_has_no_room_for_goes_to_the_large_one():
    small, _, cascade = pair([Overloaded("full", 1.0)])
    outputs = await read(cascade)
    assert tokens_of(outputs) == list(range(500, 507))
    # Another time the small one might have answered: no cache may keep this.
    assert not outputs[0].cascade.repeatable
    small.script = [InvalidRequest("prompt", "has 9 tokens; the context holds 5")]
    outputs = await read(cascade)
    assert outputs[0].cascade.repeatable
    assert outcomes_of(cascade) == {"large": 2, "overload": 1, "unfit": 1}


async def test_what_no_model_answers_is_refused_as_by_the_large_one_and_is_no_answer():
    small, _, cascade = pair([Overloaded("full", 1.0)], [Overloaded("full as well", 7.0)])
    with pytest.raises(Overloaded, match="as well") as refusal:
        await read(cascade)
    assert refusal.value.retry_after_s == 7
    small.script = [InvalidRequest("prompt", "has 9 tokens; the context holds 5")]
    with pytest.raises(Overloaded):
        await read(cascade)
    assert outcomes_of(cascade) == {}


async def test_a_request_that_fails_in_the_small_model_is_answered_by_the_large_one():
    small, large, cascade = pair([SURE, SURE, RequestFailed("no numbers")])
    outputs = await read(cascade)
    assert tokens_of(outputs) == list(range(500, 507))
    assert not outputs[0].cascade.repeatable
    assert outcomes_of(cascade) == {"large": 1, "failed": 1}
    assert (small.open, cascade.held_values) == (0, 0)
    # One that died is the end of the server.
    small.script, large.asked = [SURE, SURE, EngineFailed("it died")], []
    with pytest.raises(EngineFailed):
        await read(cascade)
    assert (small.open, cascade.held_values, large.asked) == (0, 0, [])


async def test_an_answer_that_the_small_context_cuts_goes_on_in_the_large_one():
    small, large, cascade = pair([SURE] * 9)
    small.finish_reason = FinishReason.LENGTH
    assert tokens_of(await read(cascade)) == list(range(9))
    large.context_tokens = 200
    assert tokens_of(await read(cascade)) == list(range(500, 507))
    as_long_as_wanted = replace(REQUEST, sampling=replace(REQUEST.sampling, max_tokens=9))
    assert tokens_of(await read(cascade, as_long_as_wanted)) == list(range(9))


async def test_a_reader_who_leaves_ends_whoever_runs():
    small, large, cascade = pair([SURE, None])
    reading = asyncio.create_task(read(cascade))
    while not small.open or not cascade.held_values:
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert (small.open, cascade.held_values, large.asked) == (0, 0, [])
    small.script = [UNSURE, UNSURE]
    large.script = [SURE, SURE, None]
    outputs = cascade.generate(REQUEST)
    await anext(outputs)
    await outputs.aclose()
    assert (small.open, large.open) == (0, 0)


async def test_a_call_that_is_cancelled_at_any_await_leaves_nothing_behind():
    ended_by_itself, turns = False, 0
    while not ended_by_itself:
        small, large, cascade = pair([SURE, SURE, UNSURE, UNSURE])
        reading = asyncio.create_task(read(cascade))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        ended_by_itself = isinstance(outcome, list)
        assert (small.open, large.open, cascade.held_values) == (0, 0, 0)
        turns += 1
    # Both models were asked in the meantime.
    assert turns > 10


async def test_a_deadline_is_one_for_both_models():
    small, large, cascade = pair([UNSURE, UNSURE])
    await read(cascade, replace(REQUEST, deadline_s=60.0), Caller(deadline_s=30.0))
    assert 29 < large.asked[0].deadline_s < 30
    # The caller's own would begin anew.
    assert large.callers[0].deadline_s == 0
    with pytest.raises(Overloaded, match=r"deadline of 0\.001 s"):
        await read(cascade, replace(REQUEST, deadline_s=0.001))
    assert len(large.asked) == 1
    small.script = [Overloaded("no first token came within its deadline of 0.001 s", 1.0)]
    with pytest.raises(Overloaded, match=r"deadline of 0\.001 s"):
        await read(cascade, replace(REQUEST, deadline_s=0.001))
    small.script, small.finish_reason = [SURE, SURE], FinishReason.DEADLINE
    assert (await read(cascade))[-1].finish_reason is FinishReason.DEADLINE


async def test_what_follows_a_stop_string_is_neither_computed_nor_judged():
    small, large, cascade = pair([SURE, SURE, SURE, UNSURE, UNSURE, None])
    small.together = 5
    caller = Caller(end_finder=lambda: lambda token: token == 2)
    outputs = await read(cascade, REQUEST, caller)
    assert tokens_of(outputs) == [0, 1, 2]
    assert outputs[-1].finish_reason is None
    assert (small.open, small.satisfied_ids, large.asked) == (0, ["r-0"], [])


async def test_what_is_held_back_is_bounded():
    small, _, cascade = pair([*[SURE] * 20, None], most_held_values=15)
    outputs = await read(cascade)
    assert tokens_of(outputs) == list(range(500, 507))
    assert not outputs[0].cascade.repeatable
    assert (small.open, cascade.held_values) == (0, 0)


async def test_it_serves_while_both_models_do_and_is_known_by_both():
    small, large, cascade = pair([SURE])
    identity = cascade.model_identity
    other = Cascade(small, large, ConfidenceFloor(0.7, 2))
    assert identity != other.model_identity
    assert cascade.ready
    small.ready, small.failed, small.model_identity = False, True, None
    assert (cascade.ready, cascade.failed, cascade.model_identity) == (False, True, None)
    text = text_of(cascade.metric_families())
    assert text.count("# TYPE tandem:x gauge") == 1
    assert 'tandem:x{model_name="from-0"} 1.0' in text
    assert 'tandem:x{model_name="from-500"} 1.0' in text


OPTIONS = {"threads": 1, "max_num_seqs": 4, "kv_cache_memory": "64MiB", "max_model_len": 512}
# Words without meaning: the draft is sure of some tokens and unsure of others.
PROMPTS = [tuple(7 + (31 * n + 5 * place) % 900 for place in range(9)) for n in range(12)]


async def answers_of(model: str, requests: list[Request], **flags):
    """Tokens, log-probabilities and ends, of each request; and which model of a cascade it was."""
    server = assemble(model, read_options(None, {**OPTIONS, **flags}))

    async def ask(request: Request):
        outputs = [output async for output in server.worker.generate(request)]
        scored = [each for output in outputs for each in output.logprobs]
        models = {output.cascade and output.cascade.model for output in outputs}
        return (tokens_of(outputs), scored, outputs[-1].finish_reason), models

    async with running(server):
        found = await asyncio.gather(*map(ask, requests))
    return [answer for answer, _ in found], [models.pop() for _, models in found], server


async def test_the_bundled_pair_answers_as_one_of_its_models_alone():
    samplings = [
        SamplingParameters(temperature=0.0, max_tokens=16, top_logprobs=2),
        SamplingParameters(temperature=0.8, seed=5, max_tokens=16, top_logprobs=0),
        SamplingParameters(temperature=0.0, max_tokens=12),
    ]
    requests = [
        Request(f"r-{number}", prompt, samplings[number % 3])
        for number, prompt in enumerate(PROMPTS)
    ]
    small, _, _ = await answers_of("tandem-mini-draft", requests)
    large, _, alone = await answers_of("tandem-mini", requests)
    scored = [replace(r, sampling=replace(r.sampling, top_logprobs=0)) for r in requests]
    sureness, _, _ = await answers_of("tandem-mini-draft", scored)
    least = sorted(min(exp(each.logprob) for each in scores) for _, scores, _ in sureness)
    floor = least[len(least) // 2]
    flags = {"cascade_model": "tandem-mini-draft", "cascade_floor": floor, "cascade_window": 1}
    found, models, server = await answers_of("tandem-mini", requests, **flags)
    assert set(models) == {"small", "large"}
    for answer, model, one, other in zip(found, models, small, large, strict=True):
        assert answer == (one if model == "small" else other)
    assert server.worker.card.names == alone.worker.card.names == ("tandem-mini",)
    assert "cascade: tandem-mini-draft answers" in "\n".join(server.notes)
    text = text_of(server.worker.metric_families())
    assert f'outcome="small"}} {models.count("small")}.0' in text


def test_models_with_other_tokens_are_no_pair(tmp_path):
    for file in BUNDLED_DRAFT.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    generation = tmp_path / "generation_config.json"
    declared = msgspec.json.decode(generation.read_bytes())
    generation.write_bytes(msgspec.json.encode(declared | {"eos_token_id": [3]}))
    options = read_options(None, {**OPTIONS, "cascade_model": str(tmp_path)})
    with pytest.raises(InvalidConfiguration, match="another end-of-sequence token than tandem-min"):
        assemble(None, options)
    generation.write_bytes(msgspec.json.encode(declared))
    tokenizer = tmp_path / "tokenizer.json"
    content = msgspec.json.decode(tokenizer.read_bytes())
    content["added_tokens"][-1]["content"] += "x"
    tokenizer.write_bytes(msgspec.json.encode(content))
    with pytest.raises(InvalidConfiguration, match="has another tokenizer than tandem-mini"):
        assemble(None, options)


def test_what_is_wrong_with_the_small_model_is_said_of_it():
    with pytest.raises(InvalidConfiguration, match="cascade-model: model '/nowhere' is"):
        assemble(None, read_options(None, {"cascade_model": "/nowhere"}))


def test_a_floor_without_a_model_is_refused():
    with pytest.raises(InvalidConfiguration, match="--cascade-model"):
        assemble(None, read_options(None, {"cascade_floor": 0.5}))
