"""What serving costs is found again in measurements that were made of it."""

from dataclasses import replace
from random import Random

import pytest

from tandem.cluster.worker.step_tally import StepTally, StepWork
from tandem.cost.fitted import FittedStepTime
from tandem.cost.serving import (
    FirstTokens,
    GatewayLoad,
    LoopTime,
    fit_entry,
    fit_gateway,
    fit_steps,
    fit_transfer,
    served_step_time,
    serving_fields,
    serving_from_fields,
    step_seconds,
    transfer_fields,
    transfer_from_fields,
)
from tandem.cost.worker import LinkCost, ServingCost, StepShape
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.step_totals import StepTotals

ENGINE = FittedStepTime(1e-3, 4e-5, 5e-8, 1e-5, 4e-7, 3e-5)
SERVING = ServingCost(
    request_s=2e-3,
    request_wait_s=1e-3,
    prompt_token_s=3e-6,
    message_s=2e-4,
    token_s=5e-5,
    prompt_stretch=1.5,
    decode_stretch=1.25,
    step_s=4e-4,
    row_s=2e-5,
)


def totals(step_time: FittedStepTime, seed: int) -> tuple[tuple[StepTotals, ...], float]:
    """Steps of all sizes that take what `step_time` says, and their seconds."""
    chance, tally, now_s, all_s = Random(seed), StepTally(1), 1.0, 0.0
    for _ in range(60):
        decodes = chance.choice([1, 3, 8, 16])
        context_tokens = decodes * chance.randint(20, 400)
        chunk = (chance.choice([0, 64]), chance.choice([16, 100, 400]))
        chunks = (chunk,) if chance.random() < 0.3 else ()
        shape = StepShape(chunks, decodes, context_tokens, decodes + len(chunks))
        seconds = step_time.seconds(shape)
        start, count = chunk
        pairs = count * start + count * (count + 1) // 2
        work = (1, count, pairs) if chunks else (0, 0, 0)
        step = StepWork(*work, decodes, context_tokens, decodes + len(chunks))
        tally.step_landed(step, round(now_s * 1e9), round((now_s + seconds) * 1e9))
        now_s, all_s = now_s + seconds, all_s + seconds
    return tally.totals, all_s


@pytest.mark.parametrize(
    "serving",
    [SERVING, replace(SERVING, step_s=0.0, row_s=0.0), replace(SERVING, prompt_stretch=0.8)],
)
def test_a_fit_finds_what_steps_took_longer(serving):
    served = served_step_time(ENGINE, serving)
    fitted = fit_steps(ENGINE, [totals(served, seed)[0] for seed in range(3)])
    for name in ("prompt_stretch", "decode_stretch", "step_s", "row_s"):
        assert getattr(fitted, name) == pytest.approx(getattr(serving, name), rel=1e-3, abs=1e-7)


def test_steps_of_one_kind_alone_are_not_enough():
    steps, _ = totals(ENGINE, 1)
    with pytest.raises(InvalidConfiguration, match="with prompts and with decodes"):
        fit_steps(ENGINE, [[each for each in steps if not each.chunked]])


def test_the_totals_of_steps_know_their_seconds():
    steps, seconds = totals(ENGINE, 5)
    assert step_seconds(ENGINE, steps) == pytest.approx(seconds, rel=1e-6)


def test_a_loops_time_is_shared_out():
    chance, busy = Random(3), GatewayLoad(2e-3, 2e-4, 5e-5)
    loads = []
    for requests, messages, tokens in ((27, 81, 81), (1, 160, 160), (4, 160, 640), (16, 160, 2560)):
        wall_s = chance.uniform(0.5, 3.0)
        # Heartbeats and reports are nobody's.
        busy_s = requests * 2e-3 + messages * 2e-4 + tokens * 5e-5 + 0.01 * wall_s
        loads.append(LoopTime(requests, messages, tokens, wall_s, busy_s))
    found = fit_gateway(loads)
    assert found.request_s == pytest.approx(busy.request_s, rel=1e-3)
    assert found.message_s == pytest.approx(busy.message_s, rel=1e-3)
    assert found.token_s == pytest.approx(busy.token_s, rel=1e-3)
    # A system that does not say how long its processes ran.
    assert fit_gateway([LoopTime(1, 1, 1, 1.0, 0.0)]) == GatewayLoad()


def test_a_request_waits_besides():
    served = served_step_time(ENGINE, SERVING)
    known = GatewayLoad(SERVING.request_s, SERVING.message_s, SERVING.token_s)
    firsts = []
    for prompt in (16, 128, 512):
        for computed in (prompt, 1):
            step_s = served.seconds(FirstTokens(prompt, computed, 0.0).shape)
            seconds = SERVING.entry_seconds(prompt) + step_s
            firsts.append(FirstTokens(prompt, computed, seconds))
    fitted = fit_entry(served, known, firsts)
    assert fitted.request_wait_s == pytest.approx(SERVING.request_wait_s, rel=1e-3)
    assert fitted.prompt_token_s == pytest.approx(SERVING.prompt_token_s, rel=1e-3)


def test_a_step_takes_what_the_engine_takes_and_more():
    served = served_step_time(ENGINE, SERVING)
    prompts, decodes = StepShape(((0, 64),)), StepShape((), 4, 400, 4)
    fixed_s = ENGINE.fixed_s + 4e-4
    expected = fixed_s + 1.5 * (ENGINE.seconds(prompts) - ENGINE.fixed_s)
    assert served.seconds(prompts) == pytest.approx(expected)
    expected = fixed_s + 1.25 * (ENGINE.seconds(decodes) - ENGINE.fixed_s) + 4 * 2e-5
    assert served.seconds(decodes) == pytest.approx(expected)
    assert served_step_time(ENGINE, ServingCost()) == ENGINE


def test_a_transfer_is_a_latency_and_a_bandwidth():
    link = LinkCost(1e9, 4e-3)
    assert fit_transfer([(b, link.seconds(b)) for b in (1e5, 1e6, 1e7)]) == link
    # Seconds that do not grow with the bytes know no bandwidth.
    assert fit_transfer([(1e5, 4e-3), (1e7, 4e-3)]) == LinkCost(latency_s=4e-3)
    for each in (link, LinkCost(latency_s=4e-3)):
        assert transfer_from_fields(transfer_fields(each), "here") == each


def test_a_step_gives_way_to_the_steps_of_others():
    serving = ServingCost(prefill_slowdown=2.0, decode_slowdown=1.25)
    assert serving.pace(prefills=True, others=0) == 1.0
    assert serving.pace(prefills=True, others=1) == 0.5
    assert serving.pace(prefills=False, others=2) == pytest.approx(1 / 1.5)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"latency": 1}, "here: unknown field 'latency'; expected cold_after_s, .*token_s"),
        ({"step_s": -1}, "here: step_s is -1; expected a number of 0 or more"),
        ({"step_s": "1ms"}, "here: step_s is '1ms'"),
        ({"decode_stretch": 0}, "here: decode_stretch is 0; expected 1e-06 at least"),
        ({"decode_slowdown": 0.5}, "here: decode_slowdown is 0.5; expected 1 at least"),
    ],
)
def test_a_wrong_figure_is_named(values, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        serving_from_fields(values, "here")
    assert serving_from_fields(serving_fields(SERVING), "here") == SERVING
