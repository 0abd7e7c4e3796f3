"""Laws of simulated runs: how a run is computed, where and when it starts change nothing in it; and
whatever goes wrong, every request ends once, every token is counted once and nothing is left."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from hashlib import blake2b

import pytest

from tandem.facts.trace import TraceRow
from tandem.report.record import Ending, RequestRecord, RunRecord
from tandem.twin.simulation import simulate
from tests.seeds import seeds
from tests.style.source import ROOT
from tests.twin.random_runs import Draw, audit, written

EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
FAULT_SEEDS = 4000 if EXPLORES else seeds(50, 1000)
DUEL_SEEDS = 1000 if EXPLORES else seeds(15, 60)
# A multiple of every interval at which somebody reports or renews leases.
SHIFT_S = 60.0


def test_whatever_goes_wrong_every_request_ends_once_and_nothing_is_left():
    seen: Counter[str] = Counter()
    for seed in range(FAULT_SEEDS):
        simulation = Draw(seed, faults=True).run()
        audit(simulation)
        run = simulation.cluster.run
        for request in run.requests:
            seen[str(request.ending)] += 1
            seen["resumed"] += request.resumptions > 0
            seen["moved"] += request.moved_tokens > 0
            seen["pulled"] += any(str(tier) != "device" for tier in request.reused_tokens)
        for worker in run.workers:
            seen["crashes"] += worker.crashes
            seen["flips"] += worker.flips
            seen["preemptions"] += worker.preemptions
    # The law has met what it is about.
    rare = ("resumed", "moved", "pulled", "crashes", "flips", "preemptions", "rejected")
    assert all(seen[what] >= 10 for what in rare), seen
    assert seen["finished"] > 10 * seen["failed"], seen


def test_taking_steps_at_one_go_changes_nothing_but_how_long_it_takes():
    saved = 0
    for seed in range(DUEL_SEEDS):
        draw = Draw(seed, faults=seed % 2 == 0)
        quick, slow = (
            replace(draw, changes={"fast_forward": quickly}).run().cluster.run
            for quickly in (True, False)
        )
        assert written(quick) == written(slow), seed
        saved += slow.events - quick.events
    assert saved > 50 * DUEL_SEEDS


def test_a_run_is_the_same_bytes_in_every_process():
    digests = set()
    for hash_seed in ("0", "12345"):
        digest = subprocess.run(
            [
                sys.executable,
                "-c",
                "from tests.twin.test_laws_runs import _digest as d; print(d())",
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        digests.add(digest.stdout)
    assert len(digests) == 1


def _digest() -> str:
    runs = (written(Draw(seed, faults=True).run().cluster.run) for seed in range(12))
    return blake2b("\n".join(runs).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_starts_later_is_the_same_run_later(seed):
    draw = Draw(seed)
    scenario, later_scenario = draw.scenario(), draw.scenario()
    # The ticks of planning count from the start of the cluster, not of the trace.
    scenario = replace(scenario, policies=replace(scenario.policies, planning=None))
    later_scenario = replace(
        later_scenario, policies=replace(later_scenario.policies, planning=None)
    )
    rows = draw.rows()
    run = simulate(scenario, rows)
    later = simulate(
        later_scenario, [replace(row, arrival_s=row.arrival_s + SHIFT_S) for row in rows]
    )
    assert later.requests == [_shifted(request) for request in run.requests]
    assert (later.gaps_ns, later.gap_counts) == (run.gaps_ns, run.gap_counts)
    assert later.transfers == run.transfers
    assert [worker.busy_ns for worker in later.workers] == [each.busy_ns for each in run.workers]


def _shifted(request: RequestRecord) -> RequestRecord:
    shift_ns = round(SHIFT_S * 1e9)
    names = ("arrival_ns", "routed_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "end_ns")
    instants = {name: getattr(request, name) for name in names}
    return replace(
        request, **{name: at + shift_ns if at >= 0 else at for name, at in instants.items()}
    )


def test_what_never_ends_has_failed_when_the_run_is_cut():
    draw = Draw(3, changes={"limit_s": 0.05, "faults": ()})
    rows = [TraceRow(0.0, 20, 60) for _ in range(6)]
    run: RunRecord = simulate(draw.scenario(), rows)
    assert {request.ending for request in run.requests} == {Ending.FAILED}
    assert all("ended before" in request.reason for request in run.requests)
    assert run.end_ns <= 50_000_000
