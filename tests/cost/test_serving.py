"""What serving costs is found again in measurements that were made of it."""

from dataclasses import replace

import pytest

from tandem.cost.fitted import FittedStepTime
from tandem.cost.serving import (
    DecodeGaps,
    FirstTokens,
    GatewayLoad,
    fit_serving,
    fit_transfer,
    served_step_time,
    serving_fields,
    serving_from_fields,
    transfer_fields,
    transfer_from_fields,
)
from tandem.cost.worker import LinkCost, ServingCost, StepShape
from tandem.facts.errors import InvalidConfiguration

ENGINE = FittedStepTime(1e-3, 4e-5, 5e-8, 1e-5, 4e-7, 3e-5)
SERVING = ServingCost(
    request_s=2e-3,
    request_wait_s=1e-3,
    prompt_token_s=3e-6,
    token_s=5e-5,
    stretch=1.25,
    step_s=4e-4,
    row_s=2e-5,
)


def first(prompt: int, computed: int, serving: ServingCost) -> FirstTokens:
    shape = FirstTokens(prompt, computed, 0.0).shape
    step_s = served_step_time(ENGINE, serving).seconds(shape)
    return FirstTokens(prompt, computed, serving.entry_seconds(prompt) + step_s)


def gap(sequences: int, serving: ServingCost) -> DecodeGaps:
    context = sequences * 100
    seconds = served_step_time(ENGINE, serving).decode_seconds(sequences, context)
    return DecodeGaps(sequences, context, seconds)


@pytest.mark.parametrize(
    "serving",
    [SERVING, replace(SERVING, step_s=0.0, row_s=0.0), replace(SERVING, prompt_token_s=0.0)],
)
def test_a_fit_finds_the_costs_behind_exact_measurements(serving):
    firsts = [first(p, c, serving) for p in (16, 128, 512) for c in (p, 1)]
    gaps = [gap(n, serving) for n in (1, 4, 16)]
    load = GatewayLoad(serving.request_s, serving.token_s)
    fitted = fit_serving(ENGINE, firsts, gaps, load)
    for name, value in serving_fields(serving).items():
        assert getattr(fitted, name) == pytest.approx(value, rel=1e-3, abs=1e-9), name


def test_a_step_takes_what_the_engine_takes_and_more():
    served = served_step_time(ENGINE, SERVING)
    shape = StepShape(((0, 64),), 4, 400, 5)
    expected = 1.25 * ENGINE.seconds(shape) + 4e-4 + 5 * 2e-5
    assert served.seconds(shape) == pytest.approx(expected)
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
        ({"stretch": 0}, "here: stretch is 0; expected 1e-06 at least"),
        ({"decode_slowdown": 0.5}, "here: decode_slowdown is 0.5; expected 1 at least"),
    ],
)
def test_a_wrong_figure_is_named(values, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        serving_from_fields(values, "here")
    assert serving_from_fields(serving_fields(SERVING), "here") == SERVING
