"""Mooncake's routing, split and admission (Qin and others, arXiv 2407.00079 and FAST 2025)."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import correlation, mean, pstdev

from published_runs import (
    CONVERSATION,
    SURROGATE,
    SYNTHETIC,
    Bench,
    Finding,
    Report,
    falling,
    mean_ttft_s,
)
from tandem.commands.simulated_runs import Run, Trial
from tandem.config.cluster.file import Cluster, read_cluster
from tandem.config.cluster.workers import RemoteTierConfig, TierConfigs
from tandem.report.record import RunRecord

NODES = 16
THEIR_RANDOM_S = 19.65
# A lead of 2 % or less is none.
TELLING = 1.02
SIMILAR_HARDWARE = "A100 nodes priced from a datasheet; theirs are A800 (slower NVLink), measured"


def routing(bench: Bench) -> Report:
    """FAST'25, figure 5: mean TTFT by how the prefill worker is chosen."""
    local = read_cluster("mooncake-16")
    assert local.tiers.host is not None
    # The same memory: a terabyte a node for itself, or all of it for everybody.
    shared = RemoteTierConfig(
        NODES * local.tiers.host.capacity_bytes, local.tiers.host.bandwidth_bytes_per_s, 10e-6
    )
    tried = [
        ("random", "random", local, THEIR_RANDOM_S),
        ("least load", "least-load", local, 5.27),
        ("local cache, longest prefix first", "prefix-first", local, None),
        ("local cache, smallest predicted seconds", "cost", local, 3.58),
        ("global cache, smallest predicted seconds", "cost", _with_pool(local, shared), 3.07),
    ]
    trials = [Trial(label, _routed(cluster, policy), 1.0) for label, policy, cluster, _ in tried]
    rows = bench.rows(CONVERSATION)
    runs = bench.play(trials, rows)
    ours = [mean_ttft_s(run) for run in runs]
    random, load, prefix_first, seconds, everywhere = ours
    table = [
        (
            label,
            f"{run_s:.2f} s",
            f"{random / run_s:.1f}x",
            "" if theirs is None else f"{theirs:.2f} s",
            "" if theirs is None else f"{THEIR_RANDOM_S / theirs:.1f}x",
            f"{run.summary.reuse.hit_ratio:.1%}",
        )
        for (label, _, _, theirs), run, run_s in zip(tried, runs, ours, strict=True)
    ]
    gain = 1 - everywhere / seconds
    return Report(
        "Mooncake FAST'25, figure 5: cache-aware routing",
        f"{NODES} nodes of 8 A100, 8 prefill + 8 decode, Llama-3-70B; {len(rows):,} requests of "
        "the conversation trace at its own rate, spread within the ticks of its clock",
        ("routing", "mean TTFT", "random /", "theirs", "random /", "prefix hits"),
        table,
        [
            Finding(
                "random > load > local > global",
                falling([random, load, seconds, everywhere]),
                " > ".join(f"{value:.2f}" for value in (random, load, seconds, everywhere)),
            ),
            Finding(
                "any local cache-awareness beats load (theirs: TTFT -32 %)",
                prefix_first < load,
                f"TTFT {prefix_first / load - 1:+.0%} by longest prefix first, "
                f"{seconds / load - 1:+.0%} by seconds",
            ),
            Finding("10 to 20 % from global (theirs 14 %)", 0.1 <= gain <= 0.2, f"{gain:.0%}"),
        ],
        [
            SIMILAR_HARDWARE,
            "the paper does not say how fast the trace was played; waiting grows with load faster "
            "than linearly, so ratios to random depend on it",
        ],
    )


def _with_pool(cluster: Cluster, pool: RemoteTierConfig) -> Cluster:
    return replace(cluster, tiers=TierConfigs(remote=pool))


def _routed(cluster: Cluster, policy: str) -> Cluster:
    routed = replace(cluster.policies.routing, name=policy)
    return replace(cluster, policies=replace(cluster.policies, routing=routed))


def split(bench: Bench) -> Report:
    """FAST'25: how many of sixteen nodes should prefill, at TTFT 10 s and TBT 100 ms."""
    speeds = (1.0, 2.0)
    counts = (2, 4, 6, 8, 10, 12, 14)
    trials = [
        Trial(f"{count}P + {NODES - count}D", _split(count, ("slo.ttft=10s",)), speed)
        for speed in speeds
        for count in counts
    ]
    rows = bench.rows(SYNTHETIC)
    runs = bench.play(trials, rows)
    table = [
        (
            run.trial.label,
            *(_capacity(each) for each in runs if each.trial.label == run.trial.label),
        )
        for run in runs[: len(counts)]
    ]
    findings = []
    for speed in speeds:
        goodputs = [run.summary.goodput_rps for run in runs if run.trial.speed == speed]
        best = goodputs.index(max(goodputs))
        even = goodputs[counts.index(NODES // 2)]
        ends = max(goodputs[0], goodputs[-1])
        findings += [
            Finding(
                f"an interior optimum, {speed:g}x",
                goodputs[best] > TELLING * ends,
                f"{counts[best]}P + {NODES - counts[best]}D with {goodputs[best]:.2f}/s; "
                f"ends {goodputs[0]:.2f} and {goodputs[-1]:.2f}",
            ),
            Finding(
                f"about 1:1 is best, {speed:g}x",
                even * TELLING > goodputs[best],
                f"8P + 8D reaches {even / goodputs[best]:.0%} of the best",
            ),
        ]
    return Report(
        "Mooncake FAST'25: the ratio of prefill to decode nodes",
        f"{NODES} nodes of 8 A100, Llama-3-70B, TTFT <= 10 s and TPOT <= 100 ms; {len(rows):,} "
        "requests of the synthetic trace",
        ("nodes", *(f"goodput at {speed:g}x (kept)" for speed in speeds)),
        table,
        findings,
        [
            SIMILAR_HARDWARE,
            "TBT is judged as the mean gap of an answer (TPOT); theirs is the 90th percentile of "
            "gaps",
        ],
    )


def _split(prefill: int, settings: Sequence[str] = ()) -> Cluster:
    counts = (f"pools.prefill.count={prefill}", f"pools.decode.count={NODES - prefill}")
    return read_cluster("mooncake-16", (*counts, *settings))


def _capacity(run: Run) -> str:
    return f"{run.summary.goodput_rps:.2f}/s ({run.summary.attainment:.0%})"


# Published: rejected of 23,608.
REJECTED = {"none": 4183, "load": 3771, "prediction": 3589}
THEIR_REQUESTS = 23_608


def admission(bench: Bench) -> Report:
    """arXiv 2407.00079, section 8: rejections by when and by which load they are decided; and
    whether prefill and decode load swing against each other."""
    whole, part = bench.rows(SURROGATE), bench.rows(SURROGATE, 8_000)
    places = [
        ("8P + 8D, 2x", [_gated(8, 2.0, name) for name in REJECTED], whole),
        ("15P + 1D, 1.6x", [_gated(15, 1.6, name) for name in REJECTED], part),
    ]
    table: list[tuple[str, ...]] = []
    findings: list[Finding] = []
    for place, trials, rows in places:
        runs = bench.play(trials, rows)
        lost = [1 - run.summary.attainment for run in runs]
        swings = [swing(run.record) for run in runs]
        for run, share, (lag_s, lowest, spread) in zip(runs, lost, swings, strict=True):
            rejected = run.summary.endings.get("rejected", 0) / run.summary.requests
            table.append(
                (
                    f"{place} {run.trial.label}",
                    f"{rejected:.1%}",
                    f"{share:.1%}",
                    f"{REJECTED[run.trial.label] / THEIR_REQUESTS:.1%}",
                    f"{lowest:+.2f} at {lag_s:.0f} s",
                    f"{spread:.2f}",
                )
            )
        none, load, prediction = lost
        findings += [
            Finding(
                f"{place}: fewer lost by early rejection (theirs 10 %)",
                load < none,
                f"{_less(none, load):+.0%}",
            ),
            Finding(
                f"{place}: still fewer by prediction (theirs 5 % fewer)",
                prediction < load,
                f"{_less(load, prediction):+.0%}",
            ),
            Finding(
                f"{place}: prediction damps the swing of decode load",
                swings[2][2] < swings[1][2],
                f"{swings[1][2]:.2f} to {swings[2][2]:.2f} of its mean",
            ),
        ]
    return Report(
        "Mooncake arXiv 2407.00079: early rejection",
        f"16 nodes of 8 A100, Llama-3-70B, TTFT <= 30 s, TPOT <= 100 ms; {len(whole):,} (8P + 8D) "
        f"and {len(part):,} requests of a SURROGATE of the tool&agent trace, not Kimi's data",
        ("nodes and admission", "rejected", "not served as promised", "theirs", "swing", "of load"),
        table,
        findings,
        [
            SIMILAR_HARDWARE,
            "without early rejection theirs still rejects at the decode worker, after the prefill; "
            "ours serves late. So the second column, not the first, compares with theirs",
            "a trace made of public parts, and arrivals of a coarse clock, spread",
            "15P + 1D is a split at which decode is short, and at 1.6x about as overloaded as "
            "theirs was",
        ],
    )


def _gated(prefill: int, speed: float, name: str) -> Trial:
    return Trial(name, _split(prefill, (f"policies.admission={name}",)), speed)


def _less(before: float, after: float) -> float:
    return after / before - 1 if before else 0.0


def swing(record: RunRecord) -> tuple[float, float, float]:
    """How prefill and decode load of the arrivals' time move together: (lag in seconds, lowest
    correlation of prefill load with decode load that much later, deviation of decode load over its
    mean). Lags up to a minute."""
    last_ns = max(request.arrival_ns for request in record.requests)
    samples = [sample for sample in record.samples if sample.now_ns <= last_ns]
    prefill = [float(sample.queued_prefill_tokens) for sample in samples]
    decode = [float(sample.decoding_requests) for sample in samples]
    step_s = (samples[1].now_ns - samples[0].now_ns) / 1e9
    found = []
    for lag in range(int(60 / step_s) + 1):
        early, late = prefill[: len(prefill) - lag], decode[lag:]
        if len(early) > 2 and pstdev(early) and pstdev(late):
            found.append((correlation(early, late), lag * step_s))
    lowest, lag_s = min(found, default=(0.0, 0.0))
    return lag_s, lowest, pstdev(decode) / max(1e-9, mean(decode))
