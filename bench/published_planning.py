"""Disaggregation and planning: TetriInfer (arXiv 2401.11181), Arrow (arXiv 2505.11916) and the
start-up sweep of NVIDIA Dynamo's planner."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from published_runs import (
    AZURE_CODE,
    SHAREGPT_LENGTHS,
    SURROGATE,
    Bench,
    Finding,
    Report,
    mean_s,
    mean_ttft_s,
)

from tandem.commands.simulate_output import Run
from tandem.commands.simulate_runs import Trial
from tandem.config.cluster import Cluster, PolicyConfig, PoolConfig
from tandem.config.cluster_build import Choice
from tandem.facts.fleet import Role
from tandem.facts.service_level import ServiceLevel
from tandem.facts.trace import TraceRow
from tandem.measure.arrivals import Arrivals, draw_arrivals
from tandem.measure.lengths import Tokens, draw_pairs, read_length_pairs
from tandem.policy.planning.dynamo import DynamoLoad, DynamoThroughput

AGGREGATED, STATIC = "aggregated", "static"


def fleet(pool: PoolConfig, workers: int, arm: str) -> tuple[PoolConfig, ...]:
    """So many workers: all for both phases, or half for each, in change when an arm plans."""
    if arm == AGGREGATED:
        return (replace(pool, name="worker", count=workers),)
    half = replace(pool, count=workers // 2, min_count=1, max_count=workers // 2)
    return (
        replace(half, name="prefill", role=Role.PREFILL),
        replace(half, name="decode", role=Role.DECODE),
    )


def planned(arm: str, routing: str = "cost", **options: object) -> PolicyConfig:
    name = STATIC if arm == AGGREGATED else arm
    return PolicyConfig(routing=Choice(routing), planning=Choice(name, options))


# --- TetriInfer ---------------------------------------------------------------------------------

LIGHT_PROMPT, LIGHT_OUTPUT = 512, 128
OPT_CONTEXT = 2048
TETRI_ARMS = (AGGREGATED, STATIC, "tetri")
CLASSES = {
    "light prompts, light answers": (True, True),
    "light prompts, heavy answers": (True, False),
    "heavy prompts, light answers": (False, True),
    "heavy prompts, heavy answers": (False, False),
}


def tetri(bench: Bench) -> Report:
    """Four workers for both phases against two for each, on four kinds of requests."""
    pairs = read_length_pairs(bench.traces / SHAREGPT_LENGTHS)
    table: list[tuple[str, ...]] = []
    speedups: dict[str, float] = {}
    for name, (light_prompt, light_output) in CLASSES.items():
        fits = pairs[:, 0] + pairs[:, 1] < OPT_CONTEXT
        prompts = (pairs[:, 0] <= LIGHT_PROMPT) == light_prompt
        outputs = (pairs[:, 1] <= LIGHT_OUTPUT) == light_output
        lengths = draw_pairs(
            pairs[fits & prompts & outputs],
            min(1_000, bench.first or 1_000),
            np.random.default_rng(0),
        )
        # Eight tenths of what the aggregated fleet gets through when everything waits at once.
        [full] = bench.play([_tetri(AGGREGATED)], _arriving(lengths, float("inf")))
        rate_rps = 0.8 * full.summary.requests / full.summary.duration_s
        runs = bench.play([_tetri(arm) for arm in TETRI_ARMS], _arriving(lengths, rate_rps))
        base = runs[0]
        for run in runs:
            latencies = run.summary.latencies
            table.append(
                (
                    f"{name}, {run.trial.label}" if run is base else f"  {run.trial.label}",
                    f"{rate_rps:.2f}/s",
                    f"{mean_s(latencies.ttft) * 1e3:,.0f} ms",
                    f"{mean_s(latencies.tpot) * 1e3:.1f} ms",
                    f"{mean_s(latencies.e2e):.2f} s",
                    f"{_jct(run) / _jct(base) - 1:+.0%}",
                )
            )
        speedups[name] = max(_jct(base) / _jct(run) for run in runs[1:])
    decode_heavy = [speedups[name] for name, (_, light) in CLASSES.items() if not light]
    prefill_heavy = speedups["heavy prompts, light answers"]
    return Report(
        "TetriInfer: what disaggregation gives to four kinds of requests",
        "OPT-13B on four A100: four workers for both phases, or two for each, with their planner or "
        "without; lengths of ShareGPT split at 512 prompt and 128 output tokens; Poisson at 0.8 of "
        "the aggregated fleet's throughput",
        ("requests, fleet", "rate", "mean TTFT", "mean TPOT", "mean JCT", "JCT against aggregated"),
        table,
        [
            Finding(
                "a gain when answers are heavy (theirs: JCT -47 % at best)",
                min(decode_heavy) > 1,
                ", ".join(f"{1 / gain - 1:+.0%}" for gain in decode_heavy),
            ),
            Finding(
                "a loss when prompts are heavy and answers short",
                prefill_heavy < 1,
                f"{1 / prefill_heavy - 1:+.0%}",
            ),
        ],
        [
            "A100 with NVLink and RDMA; theirs are V100 with slow links",
            "our aggregated workers mix phases under a token budget (8,192); their baseline, vLLM of "
            "2023, stops decoding for a whole batch of prompts",
        ],
    )


def _jct(run: Run) -> float:
    return mean_s(run.summary.latencies.e2e)


def _tetri(arm: str) -> Trial:
    cluster = Cluster(
        model="opt-13b",
        pools=fleet(PoolConfig("worker", "a100"), 4, arm),
        policies=planned(arm, "least-load"),
        block_size=16,
        max_model_len=OPT_CONTEXT,
    )
    return Trial(arm, cluster, 1.0)


def _arriving(lengths: Tokens, rate_rps: float) -> list[TraceRow]:
    """One request for each pair of lengths, by a Poisson process."""
    arrivals_s = draw_arrivals(Arrivals(rate_rps), len(lengths), np.random.default_rng(1))
    return [
        TraceRow(arrival_s, prompt_tokens, output_tokens)
        for arrival_s, (prompt_tokens, output_tokens) in zip(
            arrivals_s.tolist(), lengths.tolist(), strict=True
        )
    ]


# --- Arrow --------------------------------------------------------------------------------------

ARROW_ARMS = (AGGREGATED, STATIC, "arrow", "tandem")
ARROW_WORKERS = 8
ATTAINMENT = 0.9
# Rates that are tried: 1.15 to the power of 0 ... 31 times the recorded one, 76x at most.
RATE_STEP, RATE_POWERS = 1.15, 32


def arrow(bench: Bench) -> Report:
    """The highest rate at which nine tenths of all requests keep their promise."""
    bursty = bench.rows(AZURE_CODE, 4_000)
    lengths = np.array([(row.prompt_tokens, row.output_tokens) for row in bursty])
    rate_rps = (len(bursty) - 1) / (bursty[-1].arrival_s - bursty[0].arrival_s)
    steady = _arriving(lengths, rate_rps)
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
        f"Llama-3.1-8B on {ARROW_WORKERS} H100, 4P + 4D at first, TTFT <= 3 s, TPOT <= 100 ms; "
        f"{len(bursty):,} requests of Azure code at {rate_rps:.2f}/s, and the same lengths by a "
        f"Poisson process; the highest rate with {ATTAINMENT:.0%} kept, in steps of "
        f"{RATE_STEP - 1:.0%}",
        ("planning", *served, *(f"{trace} / static" for trace in served)),
        table,
        findings,
        [
            "their instances change phase at once; ours first finish what they have",
            "only the abstract of the paper was read: the promise is our choice",
        ],
    )


def _served(bench: Bench, rows: Sequence[TraceRow]) -> Mapping[str, float]:
    """For each arm the highest speed of `rows` with enough kept, by halving; all arms at a time."""
    low = dict.fromkeys(ARROW_ARMS, 0)
    high = dict.fromkeys(ARROW_ARMS, RATE_POWERS)
    while any(high[arm] - low[arm] > 1 for arm in ARROW_ARMS):
        middle = {
            arm: (low[arm] + high[arm]) // 2 for arm in ARROW_ARMS if high[arm] - low[arm] > 1
        }
        trials = [_arrow(arm, RATE_STEP**power) for arm, power in middle.items()]
        for (arm, power), run in zip(middle.items(), bench.play(trials, rows), strict=True):
            side = low if run.summary.attainment >= ATTAINMENT else high
            side[arm] = power
    return {arm: RATE_STEP ** low[arm] for arm in ARROW_ARMS}


def _arrow(arm: str, speed: float) -> Trial:
    cluster = Cluster(
        model="llama-3.1-8b",
        pools=fleet(PoolConfig("worker", "h100"), ARROW_WORKERS, arm),
        policies=planned(arm),
        slo=ServiceLevel(ttft_s=3.0, tpot_s=0.1),
    )
    return Trial(arm, cluster, speed)


# --- Dynamo's planner ---------------------------------------------------------------------------

STARTUPS_S = (0, 30, 60, 90, 120, 180, 300)
DYNAMO_TTFT_S = (0.85, 0.954, 2.116, 3.12, 34.797, 60.0, 76.0)


def startup(bench: Bench) -> Report:
    """Mean TTFT when a new worker takes longer and longer to be ready."""
    rows = bench.rows(SURROGATE)
    ours: dict[tuple[str, int], Run] = {}
    for arm in ("dynamo", "tandem"):
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
    slow = {arm: mean_ttft_s(ours[arm, 300]) for arm in ("dynamo", "tandem")}
    fast = {arm: mean_ttft_s(ours[arm, 30]) for arm in ("dynamo", "tandem")}
    return Report(
        "Dynamo: the planner against start-up times",
        "Llama-3.1-8B in FP8 on H200, 1P + 1D at first, 8 at most, TTFT <= 1.5 s, TPOT <= 50 ms; "
        f"{len(rows):,} requests of a SURROGATE of the tool&agent trace, not Kimi's data",
        (
            "start-up",
            "theirs",
            "dynamo",
            "tandem",
            "GPU hours dynamo",
            "tandem",
            "kept dynamo",
            "tandem",
        ),
        table,
        [
            Finding(
                "a planner that looks at the present falls behind: a cliff (theirs 36x from 30 to "
                "120 s)",
                slow["dynamo"] > 10 * fast["dynamo"],
                f"dynamo {slow['dynamo'] / fast['dynamo']:.1f}x from 30 to 300 s",
            ),
            Finding(
                "a planner that plans for the time of arrival has none",
                slow["tandem"] < 10 * fast["tandem"] and slow["tandem"] < slow["dynamo"],
                f"tandem {slow['tandem'] / fast['tandem']:.1f}x; "
                f"{slow['tandem']:.2f} s against {slow['dynamo']:.2f} s at 300 s",
            ),
        ],
        [
            "theirs scale workers that do both phases (2 at first); our planners size two pools",
            "theirs replay the real tool&agent trace (59 % of blocks reusable), ours a surrogate "
            "(52 %)",
        ],
    )


def _startup(arm: str, startup_s: int) -> Trial:
    pool = PoolConfig("worker", "h200", dtype="fp8", startup_s=float(startup_s))
    pools = tuple(replace(each, count=1) for each in fleet(pool, 8, arm))
    options: dict[str, object] = {}
    if arm == "dynamo":
        options = {
            "throughput": DynamoThroughput(period_s=300.0),
            "load": DynamoLoad(interval_s=10.0),
        }
    cluster = Cluster(
        model="llama-3.1-8b",
        pools=pools,
        policies=planned(arm, "cost", **options),
        block_size=512,
        slo=ServiceLevel(ttft_s=1.5, tpot_s=0.05),
    )
    return Trial(f"{arm} {startup_s} s", cluster, 1.0)
