"""`tandem calibrate`: steps of the real engine are timed, a real cluster is asked, and what was
fitted is read back."""

import json

from typer.testing import Result

from tandem.commands.engine_grid import Grid, load_engine, step_plan
from tandem.config.environment import BUNDLED
from tandem.config.hardware.worker import (
    PROFILE_VERSION,
    WorkerHardware,
    load_profile,
    worker_cost,
)
from tandem.config.options import ServeOptions
from tandem.cost.worker import NO_SERVING_COST, StepShape
from tests.commands.cli import tandem

SMALL = ("--threads", "1", "--max-num-seqs", "4", "--kv-cache-memory", "2MiB")


def run(*flags: str) -> Result:
    return tandem("calibrate", *SMALL, *flags)


GRID = ("--chunks", "16,64", "--batches", "1,4,9", "--contexts", "0,32", "--repeats", "2")


def test_an_engine_becomes_a_time_model(tmp_path):
    path = tmp_path / "profile.json"
    result = run("--out", str(path), "--shape", "engine", *GRID)
    assert result.exit_code == 0, result.output
    assert "64 tokens after 32, sampled" in result.output
    assert "4 decodes at 32" in result.output
    assert "error of the fit: median" in result.output
    record = json.loads(path.read_text())
    # 9 sequences do not fit into 4 slots.
    assert len(record["samples"]) == 2 * 2 * 2 + 2 * 2
    assert all(sample["seconds"] > 0 for sample in record["samples"])
    assert record["setup"]["model"] == "tandem-mini"
    hardware = WorkerHardware("tandem-mini", "cpu", time_model="profile", profile=str(path))
    cost = worker_cost(hardware)
    assert cost.step_time == load_profile(path).step_time
    assert cost.serving == NO_SERVING_COST
    assert cost.prefill_seconds(64) > 0


def test_a_cluster_is_asked_and_the_simulator_knows_what_it_costs(tmp_path):
    path = tmp_path / "profile.json"
    shape = ("--shape", "disaggregated", "--rounds", "1", "--no-validate", "--mixed-seconds", "1")
    room = ("--threads", "1", "--max-num-seqs", "16", "--kv-cache-memory", "32MiB")
    result = tandem("calibrate", "--out", str(path), *room, *shape, *GRID)
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["version"] == PROFILE_VERSION
    assert {row["sequences"] for row in record["measured"]["gaps"]} == {1, 4, 16}
    steps = record["measured"]["steps"]
    kinds = {(row["worker"], row["prefills"]) for row in steps if row["mixed"]}
    assert {("prefill-0", True), ("decode-0", False)} <= kinds
    computed = {row["computed_tokens"] for row in record["measured"]["first_tokens"]}
    # New prompts and, in blocks, known ones.
    assert {16, 128, 512} < computed
    measured = load_profile(path)
    serving = measured.serving
    # What a message takes is less than the noise of one round: `test_calibration_fit` has it.
    assert serving.request_s + serving.request_wait_s > 1e-4
    assert measured.network is not None
    assert measured.network.latency_s > 0
    hardware = WorkerHardware("tandem-mini", "cpu", time_model="profile", profile=str(path))
    assert worker_cost(hardware).network == measured.network


def test_only_steps_that_fit_are_timed_and_each_runs():
    options = ServeOptions(threads=1, max_num_seqs=4, kv_cache_memory="2MiB", max_model_len=256)
    engine, plan = load_engine(BUNDLED / "tandem-mini", options)
    grid = Grid(chunks=(8, 300), batches=(1, 4, 5), contexts=(0, 100, 255), repeats=1)
    shapes = grid.shapes(plan)
    assert max(shape.tokens for shape in shapes) == 8
    assert {shape.decode_sequences for shape in shapes} == {0, 1, 4}
    for step_id, shape in enumerate(shapes):
        step = step_plan(step_id, shape, plan)
        assert step.batched_tokens == shape.tokens
        assert len(engine.run(step).tokens) == shape.sampled_rows
    mixed = step_plan(len(shapes), StepShape(((16, 8),), 2, 64, 3), plan)
    assert mixed.starts.tolist() == [16, 31, 31]
    assert mixed.counts.tolist() == [8, 1, 1]
    assert len(set(mixed.table_blocks.tolist())) == len(mixed.table_blocks)
    assert len(engine.run(mixed).tokens) == 3


def test_a_bad_grid_is_refused_in_one_line(tmp_path):
    out = str(tmp_path / "profile.json")
    result = run("--out", out, "--chunks", "16,few")
    assert result.exit_code == 2
    assert "chunks is '16,few'; expected whole numbers from 2 on" in result.output
    result = run("--out", str(tmp_path / "no" / "profile.json"))
    assert "there is no directory" in result.output
    result = run("--out", out, "--cascade-model", "tandem-mini-draft")
    assert "models are calibrated one by one" in result.output
    result = run(
        "--out",
        out,
        "--shape",
        "engine",
        "--chunks",
        "5000",
        "--batches",
        "5",
        "--max-model-len",
        "64",
    )
    assert result.exit_code == 2
    assert "no step of this grid fits" in result.output
