"""Predictions beside what came: counted under the SLO, shown of the last minutes, learnt from."""

import pytest

from tandem.cluster.router.predictions import MINUTE_NS, Forecast, Predictions
from tandem.facts.calibration import Calibration
from tandem.facts.request import FinishReason, Request
from tandem.facts.slo import Slo
from tandem.messages.router import Explain, RequestBroken, RequestSubmitted
from tests.cluster.cluster_parts import MS, GatewayUnderTest, drew, idle_load, register

STRICT = Slo(ttft_s=0.1, tpot_s=0.02)


def ended(forecast: Forecast, ttft_s: float, tpot_s: float, slo: Slo = STRICT) -> Predictions:
    """Of one request of eleven tokens."""
    predictions = Predictions()
    first_ns = forecast.decided_ns + round(ttft_s * 1e9)
    predictions.first_token(forecast, first_ns)
    predictions.answered(forecast, slo, 11, first_ns + round(10 * tpot_s * 1e9))
    return predictions


@pytest.mark.parametrize(
    ("predicted", "measured", "ttft", "tpot", "both"),
    [
        ((0.05, 0.01), (0.09, 0.019), (1, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0)),
        ((0.05, 0.01), (0.11, 0.019), (0, 1, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0)),
        ((0.2, 0.01), (0.05, 0.019), (0, 0, 1, 0), (1, 0, 0, 0), (0, 0, 1, 0)),
        ((0.2, 0.03), (0.3, 0.01), (0, 0, 0, 1), (0, 0, 1, 0), (0, 0, 0, 1)),
    ],
)
def test_each_bound_and_all_together_are_counted(predicted, measured, ttft, tpot, both):
    found = ended(Forecast(0, 0.0, *predicted), *measured).total()
    for counted, wanted in ((found.ttft, ttft), (found.tpot, tpot), (found.both, both)):
        four = counted.keep_kept, counted.keep_missed, counted.miss_kept, counted.miss_missed
        assert four == wanted
    assert found.ttft_ratios.mean == pytest.approx(measured[0] / predicted[0])
    assert found.tpot_ratios.mean == pytest.approx(measured[1] / predicted[1])


def test_what_it_had_waited_counts_on_both_sides():
    found = ended(Forecast(5 * MS, 0.08, 0.05, 0.01), 0.05, 0.01).total()
    assert found.ttft.miss_missed == 1
    assert found.ttft_ratios.mean == pytest.approx(1.0)


def test_without_an_slo_only_ratios_are_known():
    found = ended(Forecast(0, 0.0, 0.05, 0.01), 0.1, 0.01, Slo()).total()
    assert not found.both.requests
    assert str(found) == "measured TTFT 2.00x and TPOT 1.00x of what was predicted"


def test_a_request_that_fails_has_missed_its_slo():
    predictions = Predictions()
    predictions.failed(Forecast(0, 0.0, 0.05, 0.01), STRICT, 0)
    found = predictions.total()
    assert found.both.keep_missed == found.ttft.keep_missed == found.tpot.keep_missed == 1
    assert found.ttft_ratios.requests == 0


def test_recent_ones_are_of_ten_minutes():
    predictions = Predictions()
    for minute in range(30):
        predictions.failed(Forecast(0, 0.0, 0.05, 0.01), STRICT, minute * MINUTE_NS)
    assert predictions.recent(29 * MINUTE_NS).both.requests == 10
    assert predictions.recent(33 * MINUTE_NS).both.requests == 6
    assert predictions.recent(60 * MINUTE_NS).empty
    assert predictions.total().both.requests == 30


def test_the_sentence():
    calibration = Calibration()
    assert str(calibration) == ""
    for measured_s in (0.09, 0.09, 0.09, 0.11):
        calibration.count(STRICT, (0.05, 0.01), measured_s, 0.01)
    calibration.count(STRICT, (0.5, 0.01), 0.4, 0.01)
    assert str(calibration) == (
        "of 4 requests predicted to keep their SLO 3 did (75.0%); of 1 predicted to miss it 1 did"
    )


def test_a_gateway_learns_what_first_tokens_take_beside_their_steps():
    gateway = GatewayUnderTest(register("w"), explains=True)
    predicted = []
    for serial in range(12):
        effects = gateway.submit(f"r{serial}", 9)
        figures = next(
            dict(each.figures)
            for each in effects
            if isinstance(each, Explain) and each.kind == "routing"
        )
        predicted.append(figures["ttft_s"])
        gateway.now_ns += 60 * MS
        gateway.receive(drew("w", f"r{serial}"), drew("w", f"r{serial}", reason=FinishReason.STOP))
        gateway.receive(idle_load("w"))
    assert predicted[0] < 0.04
    assert predicted[-1] == pytest.approx(0.06, rel=0.1)
    assert "first token" in figures["prefill w corrected"]
    worker = gateway.machine.status(gateway.now_ns).workers[0]
    assert str(worker.correction) == figures["prefill w corrected"]
    assert gateway.machine.status(gateway.now_ns).calibration.ttft_ratios.requests == 12


def test_a_first_token_that_waited_for_others_tells_nothing():
    gateway = GatewayUnderTest(register("w"))
    for serial in range(12):
        gateway.submit(f"a{serial}", 9)
        gateway.submit(f"b{serial}", 9)
        gateway.now_ns += 5 * MS
        gateway.receive(drew("w", f"a{serial}", reason=FinishReason.STOP))
        gateway.now_ns += 500 * MS
        gateway.receive(drew("w", f"b{serial}", reason=FinishReason.STOP), idle_load("w"))
    assert str(gateway.machine.status(gateway.now_ns).workers[0].correction) == ""


def test_a_broken_request_counts_as_missed():
    gateway = GatewayUnderTest(register("w"))
    gateway.handle(RequestSubmitted(Request("r", (1, 2, 3)), 10.0, slo=Slo(ttft_s=10.0)))
    gateway.receive(RequestBroken("w", "r", "no numbers"))
    assert gateway.machine.status(gateway.now_ns).calibration.both.keep_missed == 1
