"""The sweep of start-up times in NVIDIA Dynamo's guide "Planner Replay Benchmarking"."""

from dataclasses import replace

from published_fleets import fleet, planned
from published_runs import SURROGATE, Bench, Finding, Report, mean_ttft_s
from tandem.commands.simulated_runs import Run, Trial
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.slo import Slo

ARMS = ("dynamo", "tandem")
STARTUPS_S = (0, 30, 60, 90, 120, 180, 300)
DYNAMO_TTFT_S = (0.85, 0.954, 2.116, 3.12, 34.797, 60.0, 76.0)


def startup(bench: Bench) -> Report:
    """Mean TTFT when a new worker takes longer and longer to be ready."""
    rows = bench.rows(SURROGATE, 8_000)
    ours: dict[tuple[str, int], Run] = {}
    for arm in ARMS:
        trials = [_startup(arm, startup_s) for startup_s in STARTUPS_S]
        for startup_s, run in zip(STARTUPS_S, bench.play(trials, rows), strict=True):
            ours[arm, startup_s] = run
    table = []
    for startup_s, theirs in zip(STARTUPS_S, DYNAMO_TTFT_S, strict=True):
        dynamo, tandem = ours["dynamo", startup_s], ours["tandem", startup_s]
        table.append(
            (
                f"{startup_s} s",
                f"{theirs:.2f} s",
                *(f"{mean_ttft_s(run):.2f} s" for run in (dynamo, tandem)),
                *(f"{run.summary.bill.device_hours:.2f}" for run in (dynamo, tandem)),
                *(f"{run.summary.attainment:.0%}" for run in (dynamo, tandem)),
            )
        )
    hours = {
        arm: sum(ours[arm, startup_s].summary.bill.device_hours for startup_s in STARTUPS_S)
        for arm in ARMS
    }
    slow, fast = mean_ttft_s(ours["dynamo", 300]), mean_ttft_s(ours["dynamo", 30])
    quicker = sum(
        mean_ttft_s(ours["tandem", startup_s]) < mean_ttft_s(ours["dynamo", startup_s])
        for startup_s in STARTUPS_S
    )
    return Report(
        "Dynamo: the planner against start-up times",
        "Llama-3.1-8B in FP8 on H200, 1P + 1D at first, 8 at most, TTFT <= 1.5 s, TPOT <= 50 ms; "
        f"{len(rows):,} requests of a SURROGATE of the tool&agent trace, not Kimi's data",
        (
            "start-up",
            "theirs",
            *(f"{arm}{what}" for what in ("", " GPU h", " kept") for arm in ARMS),
        ),
        table,
        [
            Finding(
                "a planner that looks at the present falls behind (theirs 80x from 30 to 300 s)",
                slow > 10 * fast,
                f"dynamo {slow / fast:.1f}x",
            ),
            Finding(
                "ours, which plans for when help can be there, is quicker at every start-up time",
                quicker == len(STARTUPS_S),
                f"at {quicker} of {len(STARTUPS_S)}, for {hours['tandem'] / hours['dynamo']:.1f}x "
                "the GPU hours",
            ),
        ],
        [
            "theirs scale workers that do both phases (2 at first); our planners size two pools",
            "theirs replay the real tool&agent trace (59 % of blocks reusable), ours a surrogate "
            "(52 %), and its first part only: the time until the first workers are up weighs more",
        ],
    )


def _startup(arm: str, startup_s: int) -> Trial:
    pool = PoolConfig("worker", "h200", dtype="fp8", startup_s=float(startup_s))
    pools = tuple(replace(each, count=1, max_count=4) for each in fleet(pool, 2, arm))
    options: dict[str, object] = {}
    if arm == "dynamo":
        options = {
            "throughput": {"period_s": 300.0},
            "load": {"interval_s": 10.0},
        }
    cluster = Cluster(
        model="llama-3.1-8b",
        pools=pools,
        policies=planned(arm, "cost", **options),
        block_size=512,
        slo=Slo(ttft_s=1.5, tpot_s=0.05),
    )
    return Trial(f"{arm} {startup_s} s", cluster, 1.0)
