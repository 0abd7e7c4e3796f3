"""A calibration of the simulator by itself: what a simulated server costs is found again in what
its clients and its steps say."""

from dataclasses import replace

import pytest

from tandem.commands.calibration import drawn_load
from tandem.commands.calibration_fit import ProfileFit, SimulatedServer, write_profile
from tandem.commands.calibration_load import MeasuredLoad, Seen
from tandem.commands.engine_grid import TimedEngine, engine_record
from tandem.commands.measured_cluster import cluster_text
from tandem.config.environment import BUNDLED_MODEL
from tandem.config.hardware.worker import Profile, load_profile
from tandem.config.options import ServeOptions
from tandem.cost.fitted import COEFFICIENTS, FittedStepTime, TimedStep, to_fields
from tandem.cost.serving import LoopTime, rounded, serving_fields
from tandem.cost.worker import ServingCost, StepShape
from tandem.report.record import MeasuredRequest

ENGINE = FittedStepTime(1e-3, 4e-5, 5e-8, 1e-4, 4e-7, 3e-5)
LOAD_S = 1.5
SHAPES = (
    StepShape(((0, 300),), sampled_rows=1),
    StepShape((), 1, 200, 1),
    StepShape((), 6, 1800, 6),
)
ALONE = TimedEngine(ENGINE, [TimedStep(shape, ENGINE.seconds(shape)) for shape in SHAPES])
SERVED = FittedStepTime(*(1.3 * getattr(ENGINE, name) for name in COEFFICIENTS))
SERVING = ServingCost(
    request_s=2e-3, request_wait_s=1e-3, prompt_token_s=3e-6, message_s=2e-4, token_s=5e-5
)


def simulated_server(folder, *roles: str) -> SimulatedServer:
    options = ServeOptions(threads=1, max_num_seqs=16, max_model_len=1024)
    return SimulatedServer(cluster_text(str(BUNDLED_MODEL), roles, options, "cpu"), folder)


def record_of(serving: ServingCost) -> dict:
    served = {"served": to_fields(SERVED), "serving": serving_fields(rounded(serving))}
    return engine_record(ALONE) | served


def load_of(server: SimulatedServer, profile, rate_rps: float, seed: int) -> MeasuredLoad:
    """Drawn requests as the simulator serves them by this profile."""
    asked = [
        MeasuredRequest(
            request_id=str(index),
            serial=index,
            arrival_ns=round(each.arrival_s * 1e9),
            prompt_tokens=each.turns[0].prompt_tokens,
            output_tokens=each.turns[0].output_tokens,
            emitted_tokens=each.turns[0].output_tokens,
        )
        for index, each in enumerate(drawn_load(rate_rps, LOAD_S, server.lengths, seed))
    ]
    played, steps = server.play(asked, profile)
    for each, answer in zip(asked, sorted(played, key=lambda one: one.serial), strict=True):
        each.first_token_ns, each.last_token_ns = answer.first_token_ns, answer.last_token_ns
        each.ending = answer.ending
    return MeasuredLoad(asked, LoopTime(1, 1, 1, 1.0, 0.0), steps)


def fitted(server, folder, serving: ServingCost, latency_s: float = 0.0) -> Profile:
    """By mixed loads of a server that costs `serving`, and others in which no worker waits. KV
    comes after `latency_s`, or after 5 ms for those who are alone."""
    live, quiet = folder / "live.json", folder / "quiet.json"
    write_profile(live, record_of(serving) | {"kv_transfer": {"latency_s": latency_s}})
    write_profile(quiet, record_of(SERVING))
    rate_rps = 0.5 * server.capacity_rps(SERVED)
    seen = Seen(gap_s={1: [0.01]})
    seen.first_s = {(16, 16): [0.02]}
    seen.second_s = {16: [0.01 + 0.005]} if latency_s else {}
    seen.loads = [load_of(server, quiet, 0.3 * rate_rps, 1)]
    seen.mixed = [load_of(server, live, rate_rps, 2)]
    profile = folder / "profile.json"
    write_profile(profile, ProfileFit(server, ALONE, engine_record(ALONE), seen).fit())
    return load_profile(profile)


def test_one_workers_steps_are_found_again(tmp_path):
    found = fitted(simulated_server(tmp_path, "both"), tmp_path, SERVING)
    for shape in (*SHAPES, StepShape(((0, 100),), 4, 1200, 5)):
        assert found.step_time.seconds(shape) == pytest.approx(SERVED.seconds(shape), rel=0.03)
    assert not found.serving.shares_cores


@pytest.mark.parametrize(("prefill", "decode"), [(1.5, 1.0), (1.25, 1.4)])
def test_how_much_two_workers_slow_each_other_is_found_again(tmp_path, prefill, decode):
    server = simulated_server(tmp_path, "prefill", "decode")
    live = replace(SERVING, prefill_slowdown=prefill, decode_slowdown=decode)
    found = fitted(server, tmp_path, live).serving
    assert found.prefill_slowdown == pytest.approx(prefill, abs=0.03)
    assert found.decode_slowdown == pytest.approx(decode, abs=0.03)


def test_what_a_transfer_waits_under_load_is_found_again(tmp_path):
    server = simulated_server(tmp_path, "prefill", "decode")
    live = replace(SERVING, prefill_slowdown=1.2, decode_slowdown=1.1)
    found = fitted(server, tmp_path, live, latency_s=0.02)
    assert found.network.latency_s == pytest.approx(0.02, abs=0.002)
    assert found.serving.prefill_slowdown == pytest.approx(1.2, abs=0.03)


def test_workers_that_slow_each_other_can_do_less(tmp_path):
    server = simulated_server(tmp_path, "prefill", "decode")
    alone_rps = server.capacity_rps(SERVED)
    slow = replace(SERVING, prefill_slowdown=1.25, decode_slowdown=1.25)
    assert server.capacity_rps(SERVED, slow) == pytest.approx(alone_rps / 1.25)


def test_capacity_is_the_rate_beyond_which_a_queue_grows(tmp_path):
    server = simulated_server(tmp_path, "both")
    profile = tmp_path / "profile.json"
    write_profile(profile, record_of(SERVING))
    most_rps = server.capacity_rps(server.cost(profile).step_time)
    busy = []
    for share in (0.8, 1.5):
        asked = load_of(server, profile, share * most_rps, 5).records
        requests, _ = server.play(asked, profile)
        last_s = max(each.last_token_ns for each in requests) / 1e9
        busy.append(last_s - asked[-1].arrival_ns / 1e9)
    # After the last arrival the longest answer takes 0.3 s; past the capacity a queue is left.
    assert busy[0] < 0.3
    assert busy[1] > 0.3 + 0.2 * LOAD_S
