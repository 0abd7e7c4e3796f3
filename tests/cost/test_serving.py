"""What serving costs is found again in measurements that were made of it."""

from random import Random

import pytest
from msgspec import structs

from tandem.cluster.worker.step_tally import StepTally, StepWork
from tandem.cost.fitted import COEFFICIENTS, FittedStepTime, TimedStep
from tandem.cost.serving import (
    FirstTokens,
    GatewayLoad,
    LoopTime,
    fit_entry,
    fit_gateway,
    fit_steps,
    fit_transfer,
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
)
SERVED = FittedStepTime(1.3e-3, 6e-5, 9e-8, 2e-5, 6e-7, 5e-5)


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


SHAPES = [
    StepShape(((0, 64),), sampled_rows=1),
    StepShape(((64, 400),), 3, 600, 4),
    StepShape((), 1, 30, 1),
    StepShape((), 16, 4000, 16),
]


def test_a_fit_finds_what_steps_take_in_the_server():
    # The engine alone has steps that no load had; it is half as quick where it was timed.
    samples = [TimedStep(shape, 2 * ENGINE.seconds(shape)) for shape in SHAPES]
    slow = FittedStepTime(*(1.5 * getattr(ENGINE, name) for name in COEFFICIENTS))
    found = fit_steps(ENGINE, samples, [totals(slow, seed)[0] for seed in range(3)])
    for shape in SHAPES:
        assert found.seconds(shape) == pytest.approx(slow.seconds(shape), rel=0.12)
    # What the server measured counts more than what the engine did alone.
    samples = [TimedStep(shape, ENGINE.seconds(shape)) for shape in SHAPES]
    found = fit_steps(ENGINE, samples, [totals(SERVED, seed)[0] for seed in range(3)])
    for shape in SHAPES:
        assert found.seconds(shape) == pytest.approx(SERVED.seconds(shape), rel=0.06)


def test_a_size_that_no_load_had_is_as_much_longer_as_the_others():
    large = StepShape((), 64, 64 * 2000, 64)
    crowded = FittedStepTime(1e-3, 4e-5, 5e-8, 1e-5, 4e-7, 3e-5)
    samples = [TimedStep(shape, crowded.seconds(shape)) for shape in (*SHAPES, large)]
    few = [each for each in totals(ENGINE, 1)[0] if each.magnitude < 5 or each.chunked]
    twice = [structs.replace(each, duration_ns=2 * each.duration_ns) for each in few]
    found = fit_steps(crowded, samples, [twice])
    assert found.seconds(large) == pytest.approx(2 * crowded.seconds(large), rel=0.05)


def test_steps_of_one_kind_alone_are_not_enough():
    steps, _ = totals(ENGINE, 1)
    with pytest.raises(InvalidConfiguration, match="with prompts and with decodes"):
        fit_steps(ENGINE, [], [[each for each in steps if not each.chunked]])


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
    known = GatewayLoad(SERVING.request_s, SERVING.message_s, SERVING.token_s)
    firsts = []
    for prompt in (16, 128, 512):
        for computed in (prompt, 1):
            step_s = SERVED.seconds(FirstTokens(prompt, computed, 0.0).shape)
            seconds = SERVING.entry_seconds(prompt) + step_s
            firsts.append(FirstTokens(prompt, computed, seconds))
    fitted = fit_entry(SERVED, known, firsts)
    assert fitted.request_wait_s == pytest.approx(SERVING.request_wait_s, rel=1e-3)
    assert fitted.prompt_token_s == pytest.approx(SERVING.prompt_token_s, rel=1e-3)


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
        ({"token_s": -1}, "here: token_s is -1; expected a number of 0 or more"),
        ({"token_s": "1ms"}, "here: token_s is '1ms'"),
        ({"decode_slowdown": 0.5}, "here: decode_slowdown is 0.5; expected 1 at least"),
    ],
)
def test_a_wrong_figure_is_named(values, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        serving_from_fields(values, "here")
    assert serving_from_fields(serving_fields(SERVING), "here") == SERVING
