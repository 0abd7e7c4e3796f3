"""The twin beside a recorded run of real vLLM: close on what was measured apart from the run."""

from pathlib import Path

import pytest
from bench.vllm_validation import (
    Measured,
    Second,
    Served,
    decode_steps,
    decoding_at,
    errors,
    in_the_twin,
    output_rate,
    queue_at,
    read_measured,
    runs,
)

from tandem.cost.fitted import FittedStepTime

HARDWARE = Path(__file__).parents[2].parent / "shared/data/hardware"
# arrival, first token, last token, scheduled; prompt and output tokens
EARLY = Served(0.0, 1.0, 5.0, 0.5, 100, 5)
LATE = Served(1.0, 4.0, 10.0, 3.0, 50, 7)


@pytest.fixture(scope="module")
def llama() -> tuple[Measured, list[Served]]:
    if not HARDWARE.exists():
        pytest.skip("the measured runs are not here")
    run = runs(HARDWARE)[0]
    measured = read_measured(HARDWARE, run.files)
    return measured, in_the_twin(run, measured)


def test_means_are_within_a_tenth(llama):
    measured, simulated = llama
    found = errors(measured.requests, simulated)
    for name in ("TTFT mean", "TPOT mean", "latency mean", "output tokens/s"):
        theirs, ours = found[name]
        assert ours == pytest.approx(theirs, rel=0.1), name


def test_every_percentile_of_tpot_is_within_a_twentieth(llama):
    found = errors(*(llama[0].requests, llama[1]))
    for figure in ("p50", "p90", "p99"):
        theirs, ours = found[f"TPOT {figure}"]
        assert ours == pytest.approx(theirs, rel=0.05), figure


def test_the_queue_is_that_of_vllm(llama):
    """As many run, and at most twelve more or fewer wait, until vLLM has admitted everybody."""
    measured, simulated = llama
    for second in measured.seconds[:45]:
        running, waiting = queue_at(simulated, second.end_s)
        assert abs(running - second.running) <= 8, second
        assert abs(waiting - second.waiting) <= 12, second


def test_the_engine_s_clock_is_set_by_its_log(llama):
    """Requests placed on the log's clock give the numbers of running requests that it holds."""
    measured, _ = llama
    for second in measured.seconds[:12]:
        assert abs(queue_at(measured.requests, second.end_s)[0] - second.running) <= 1, second


def test_nothing_is_lost(llama):
    measured, simulated = llama
    assert [r.output_tokens for r in simulated] == [r.output_tokens for r in measured.requests]
    assert all(r.arrival_s < r.first_token_s <= r.last_token_s for r in simulated)


def test_figures_of_two_requests():
    found = errors([EARLY, LATE], [EARLY, EARLY])
    assert found["TTFT mean"] == (2.0, 1.0)
    assert found["TPOT p99"] == (1.0, 1.0)
    # Between the two of theirs: 5 and 9 s.
    assert found["latency p50"] == (7.0, 5.0)
    assert output_rate([EARLY, LATE]) == 1.2


def test_the_state_between_two_instants():
    assert queue_at([EARLY, LATE], 2.0) == (1, 1)
    assert queue_at([EARLY, LATE], 4.5) == (2, 0)
    assert decoding_at([EARLY, LATE], 0.5) == (0, 0.0)
    assert decoding_at([EARLY, LATE], 4.5) == (2, 101 + 3.5 + 51 + 0.5)


def test_only_seconds_without_prompts_measure_decodes():
    log = [Second(3.0, 0.0, 1.0, 1, 1), Second(4.0, 50.0, 2.0, 2, 0), Second(9.0, 0.0, 1.0, 1, 0)]
    found = decode_steps(Measured([EARLY, LATE], log, 2, 64), FittedStepTime(fixed_s=0.25))
    assert found == [(1.0, 1000.0, 250.0), (1.0, 1000.0, 250.0)]
