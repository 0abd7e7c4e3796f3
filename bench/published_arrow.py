"""Arrow (Wu and others, arXiv 2505.11916): what instances that change their phase are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from published_fleets import AGGREGATED, STATIC, fleet, planned, poisson
from published_runs import AZURE_CODE, Bench, Finding, Report
from tandem.commands.simulated_runs import Trial
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow

ARROW_ARMS = (AGGREGATED, STATIC, "arrow", "tandem")
ARROW_WORKERS = 8
ATTAINMENT = 0.9
# Speeds that are tried: a quarter of the recorded one, and so many steps above it.
SLOWEST, RATE_STEP, RATE_STEPS = 0.25, 1.15, 32


def arrow(bench: Bench) -> Report:
    """The highest rate at which nine tenths of all requests keep their SLO."""
    bursty = bench.rows(AZURE_CODE, 3_000)
    lengths = np.array([(row.prompt_tokens, row.output_tokens) for row in bursty])
    rate_rps = (len(bursty) - 1) / (bursty[-1].arrival_s - bursty[0].arrival_s)
    steady = poisson(lengths, rate_rps)
    served = {
        "Azure code": _served(bench, bursty),
        "Poisson": _served(bench, steady),
    }
    table = [
        (
            arm,
            *(f"{speeds[arm] * rate_rps:.1f}/s" for speeds in served.values()),
            *(f"{speeds[arm] / speeds[STATIC]:.2f}x" for speeds in served.values()),
        )
        for arm in ARROW_ARMS
    ]
    gains = {
        (trace, arm): speeds[arm] / speeds[STATIC]
        for trace, speeds in served.items()
        for arm in ARROW_ARMS
    }
    findings = []
    for arm in ("arrow", "tandem"):
        gain, steady_gain = gains["Azure code", arm], gains["Poisson", arm]
        findings += [
            Finding(
                f"{arm} serves more than the static split on bursty arrivals (theirs: up to 2.55x, "
                "7.78x in a first version)",
                gain > 1,
                f"{gain:.2f}x",
            ),
            Finding(
                f"{arm} gains more on bursts than on Poisson arrivals (theirs about 1x there)",
                gain > steady_gain,
                f"{gain:.2f}x against {steady_gain:.2f}x",
            ),
        ]
    return Report(
        "Arrow: instances that change their phase",
        f"Llama-3-70B on {ARROW_WORKERS} workers of 4 H100, 4P + 4D at first, TTFT <= 3 s, TPOT <= "
        f"100 ms; {len(bursty):,} requests of Azure code at {rate_rps:.2f}/s, and the same lengths "
        f"by a Poisson process; the highest rate with {ATTAINMENT:.0%} kept, in steps of "
        f"{RATE_STEP - 1:.0%}",
        ("planning", *served, *(f"{trace} / static" for trace in served)),
        table,
        findings,
        [
            "their instances change phase at once; ours first finish what they have",
            "only the abstract of the paper was read: model, hardware and slo are our choice",
        ],
    )


def _served(bench: Bench, rows: Sequence[TraceRow]) -> Mapping[str, float]:
    """For each arm the highest speed of `rows` with enough kept, by halving; all arms at a time."""
    low = dict.fromkeys(ARROW_ARMS, 0)
    high = dict.fromkeys(ARROW_ARMS, RATE_STEPS)
    while any(high[arm] - low[arm] > 1 for arm in ARROW_ARMS):
        middle = {
            arm: (low[arm] + high[arm]) // 2 for arm in ARROW_ARMS if high[arm] - low[arm] > 1
        }
        trials = [_arrow(arm, SLOWEST * RATE_STEP**power) for arm, power in middle.items()]
        for (arm, power), run in zip(middle.items(), bench.play(trials, rows), strict=True):
            side = low if run.summary.attainment >= ATTAINMENT else high
            side[arm] = power
    return {arm: SLOWEST * RATE_STEP ** low[arm] for arm in ARROW_ARMS}


def _arrow(arm: str, speed: float) -> Trial:
    pools = fleet(PoolConfig("worker", "h100", tensor_parallel=4), ARROW_WORKERS, arm)
    cluster = Cluster(
        model="llama-3-70b",
        # Arrow has so many instances, no more and no fewer.
        pools=tuple(replace(pool, min_count=pool.count) for pool in pools),
        policies=planned(arm),
        slo=Slo(ttft_s=3.0, tpot_s=0.1),
    )
    return Trial(arm, cluster, speed)
