"""A shifting load on a real cluster of this machine, the simulator beside it on the same arrivals:
three workers whose costs are measured first, both static splits, and a planner that may flip one.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from dummy_model import dummy_model
from shifting_runs import FLIPS, Load, Phase, PlayedLoad, table_of
from tandem.bench.client import Client, Endpoint
from tandem.bench.load import Asker, Asking, Pacing, run_load
from tandem.bench.workload import ContentSource, Replay, plan_replay, plan_warmup
from tandem.commands.measured_cluster import MeasuredCluster, running
from tandem.commands.simulated_runs import Trial, run_trials
from tandem.config.cluster.file import read_cluster
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.report.record import MeasuredRequest, RequestOutcome, RunRecord
from tandem_process import TANDEM

# Slots, not computing alone, bound a decode worker: a step with so few sequences takes hardly
# longer than with one, so that two workers serve more than one although they share the memory.
SLOTS = 4
OPTIONS = {"load-format": "dummy", "kv-cache-memory": "512MiB", "threads": 1}
CALIBRATION = ("--shape=disaggregated", "--no-validate", "--rounds=2", "--repeats=2")
GRID = ("--chunks=64,256,1024", "--batches=1,4", "--contexts=0,512")
TEXT = """
name: shifting
model: {model}
block_size: 16
serve: {serve}
pools:
  - {{name: first, role: prefill, count: {prefill}, min_count: {prefill}, {worker}}}
  - {{name: second, role: decode, count: {decode}, min_count: {decode}, {worker}}}
slo: {{ttft: {slo.ttft_s}s, tpot: {slo.tpot_s}s}}
policies: {{planning: {planning}}}
planning: {{window: 5s}}
"""
WORKER = (
    "device: cpu, kv_dtype: float32, startup: 5s, max_num_seqs: {slots}, "
    "max_num_batched_tokens: 1024, time_model: {{name: profile, path: {profile}}}"
)
# A real cluster's planner waits for minutes; here a whole phase is one.
PLANNING = (
    "{name: tandem, interval_s: 2s, history_s: 20s, "
    "patience: {band: 0.1, dwell_s: 6s, cooldown_s: 20s}, simulate: true, "
    "simulation: {window_s: 30s, period_s: 5s, requests: 100, cpu_s: 4s}}"
)
PLANNER = "planner"
SPLITS = {"2 + 1": (2, 1), "1 + 2": (1, 2)}
# Prompt and answer tokens.
LONG_PROMPTS, LONG_ANSWERS = (512, 8), (48, 96)
# Of what a request gets that has the cluster to itself.
TTFT_TIMES, TPOT_TIMES = 8.0, 4.0
# Rates lie so far between what the wrong split and the right one can do: the wrong one falls behind
# all through a phase, the right one soon catches up with what a planner was late for.
BETWEEN = 0.4
# Where the right split is not so many times as quick, a planner has little to gain.
TELLING = 1.15
SATURATING, BURST_SEED = 60, 1000
WARM_UP = 12
# Of runs whose outcome is not judged.
ANY = Slo(60.0, 1.0)


@dataclass(frozen=True)
class Bench:
    """The model and its measured profile; `folder` takes files."""

    model: Path
    profile: Path
    folder: Path

    def text(self, label: str, slo: Slo) -> str:
        """The planner begins with the split that the first phase needs."""
        prefill, decode = SPLITS.get(label, SPLITS["2 + 1"])
        return TEXT.format(
            model=self.model,
            serve=json.dumps({"port": 0, **OPTIONS}),
            worker=WORKER.format(slots=SLOTS, profile=self.profile),
            prefill=prefill,
            decode=decode,
            slo=slo,
            planning=PLANNING if label == PLANNER else "static",
        )

    def simulate(self, label: str, slo: Slo, rows: Sequence[TraceRow]) -> RunRecord:
        file = self.folder / "simulated.yaml"
        file.write_text(self.text(label, slo))
        (record,) = run_trials(
            [Trial(label, read_cluster(str(file)), 1.0)], rows, 1, lambda _: None
        )
        return record

    def slo(self) -> Slo:
        """So many times what a long prompt, and a long answer, get that are alone."""
        prompt, answer = (
            self.simulate("1 + 2", ANY, [TraceRow(0.0, *lengths)]).requests[0]
            for lengths in (LONG_PROMPTS, LONG_ANSWERS)
        )
        assert prompt.ttft_s is not None
        assert answer.tpot_s is not None
        return Slo(round(TTFT_TIMES * prompt.ttft_s, 2), round(TPOT_TIMES * answer.tpot_s, 3))


def live_and_twin(phase_s: float, seed: int, folder: Path | None) -> None:
    """Prints as it goes; the verdict last."""
    console = Console(width=120)
    with _folder(folder) as place:
        bench = Bench(dummy_model(place), place / "profile.json", place)
        if not bench.profile.exists():
            calibrate(bench)
        load = scaled(bench, phase_s, seed, console)
        rows = load.rows()
        console.print(f"SLO {load.slo}; planner: {PLANNING}", highlight=False, soft_wrap=True)
        console.print(
            "predicted: "
            + ", ".join(
                f"{label} {_predicted(bench, label, load).goodput_rps:.2f}/s"
                for label in (*SPLITS, PLANNER)
            ),
            highlight=False,
        )
        live, twin = {}, {}
        for point, label in enumerate((*SPLITS, PLANNER)):
            live[label] = play(bench, label, load, rows, point)
            arrivals = [
                TraceRow(each.arrival_ns / 1e9, each.prompt_tokens, each.output_tokens)
                for each in live[label].requests
            ]
            arrivals.sort(key=lambda row: row.arrival_s)
            record = bench.simulate(label, load.slo, arrivals)
            twin[label] = PlayedLoad.simulated(label, load, record)
            show(label, live[label], twin[label], place, console)
        _show_all(load, live, twin, console)


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with TemporaryDirectory() as passing:
        yield Path(passing)


def calibrate(bench: Bench) -> None:
    """What a prefill and a decode worker of this cluster cost here."""
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    slots = f"--max-num-seqs={SLOTS}"
    command = [*TANDEM, "calibrate", str(bench.model), *options, slots, *CALIBRATION, *GRID]
    subprocess.run([*command, f"--out={bench.profile}"], check=True, stdout=sys.stderr)


def scaled(bench: Bench, phase_s: float, seed: int, console: Console) -> Load:
    """Each phase with more than the wrong split can do here, and less than the right one."""
    kinds = {"long prompts": LONG_PROMPTS, "long answers": LONG_ANSWERS}
    rates: dict[str, list[float]] = {what: [] for what in kinds}
    for point, label in enumerate(SPLITS):
        bursts = [
            Load([Phase(0.0, *lengths)], 1.0, ANY, BURST_SEED + number)
            for number, lengths in enumerate(kinds.values())
        ]
        rows = [[TraceRow(0.0, *lengths)] * SATURATING for lengths in kinds.values()]
        with running(bench.text(label, ANY), bench.folder) as cluster:
            live = [
                asyncio.run(_ask(cluster, label, burst, of, point))
                for burst, of in zip(bursts, rows, strict=True)
            ]
        for what, played, of in zip(kinds, live, rows, strict=True):
            rates[what].append(_rate(played.requests))
            twin = _rate(bench.simulate(label, ANY, of).requests)
            console.print(
                f"{what}: {label} can do {rates[what][-1]:.2f}/s live, {twin:.2f}/s in the twin",
                highlight=False,
            )
    phases = {}
    for what, lengths in kinds.items():
        prefilling, decoding = rates[what]
        right, wrong = (prefilling, decoding) if what == "long prompts" else (decoding, prefilling)
        less, most = min(right, wrong), max(right, wrong)
        phases[what] = Phase(less + BETWEEN * (most - less), *lengths)
        note = "" if right >= TELLING * wrong else "; here and now the split hardly matters to them"
        console.print(f"{what} come at {phases[what].rate_per_s:.2f}/s{note}", highlight=False)
    order = [phases[what] for what in ("long prompts", "long answers", "long prompts")]
    return Load(order, phase_s, bench.slo(), seed)


def _rate(requests: Sequence[RequestOutcome]) -> float:
    """Of requests that were all there at once, how many ended a second."""
    return len(requests) / max(each.end_ns for each in requests) * 1e9


def _predicted(bench: Bench, label: str, load: Load) -> PlayedLoad:
    return PlayedLoad.simulated(label, load, bench.simulate(label, load.slo, load.rows()))


def play(bench: Bench, label: str, load: Load, rows: Sequence[TraceRow], point: int) -> PlayedLoad:
    """The load on a cluster that is started for it; of each `point` the prompts are others."""
    with running(bench.text(label, load.slo), bench.folder) as cluster:
        return asyncio.run(_ask(cluster, label, load, rows, point))


async def _ask(
    cluster: MeasuredCluster, label: str, load: Load, rows: Sequence[TraceRow], point: int
) -> PlayedLoad:
    planned = plan_replay(Replay(tuple(rows)))
    async with Client(Endpoint(cluster.url)) as client:
        model = await client.choose_model(None)
        asking = Asking(model.id, vocabulary_tokens=model.vocabulary)
        asker = Asker(client, asking, ContentSource(load.seed, point))
        await run_load(plan_warmup(WARM_UP, planned), Pacing(False, SLOTS), asker.send)
        # Gateways and this process read the same clock.
        began_ns = time.monotonic_ns()
        requests: Sequence[MeasuredRequest] = await run_load(planned, Pacing(True), asker.send)
        decisions = [
            ((decision.instant_ns - began_ns) / 1e9, decision.text)
            for status in await cluster.statuses()
            if status.planning is not None
            for decision in status.planning.decisions
            if FLIPS in decision.text
        ]
    return PlayedLoad(label, load, requests, decisions)


def show(label: str, live: PlayedLoad, twin: PlayedLoad, folder: Path, console: Console) -> None:
    for world, played in (("live", live), ("twin", twin)):
        console.print(f"{label}, {world}: {'; '.join(played.cells())}", highlight=False)
        played.show_decisions(console)
        file = folder / f"{label.replace(' ', '')}-{world}.json"
        requests = [asdict(each) for each in played.requests]
        file.write_text(json.dumps({"decisions": played.decisions, "requests": requests}))
    reasons = {each.reason for each in live.requests if not each.finished}
    for reason in sorted(reasons):
        console.print(f"failed: {reason}", style="red", markup=False)


def _show_all(
    load: Load, live: Mapping[str, PlayedLoad], twin: Mapping[str, PlayedLoad], console: Console
) -> None:
    table = table_of(
        f"{sum(SPLITS['2 + 1'])} workers, {len(load.phases)} phases of {load.phase_s:g} s, "
        f"{len(live[PLANNER].requests)} requests; {load.slo}",
        "prefill + decode",
        "",
    )
    for label in live:
        table.add_row(label, "live", *live[label].cells())
        table.add_row("", "twin", *twin[label].cells())
    console.print(table)
    for world, runs in (("live", live), ("twin", twin)):
        console.print(f"{world}: {verdict(load, runs)}", highlight=False, soft_wrap=True)


def verdict(load: Load, runs: Mapping[str, PlayedLoad]) -> str:
    """The planner beside the best split; one worker changes its role at each shift, and the first
    phase has the split that it needs."""
    best = max(SPLITS, key=lambda label: runs[label].goodput_rps)
    ratio = runs[PLANNER].goodput_rps / max(1e-9, runs[best].goodput_rps)
    flips = runs[PLANNER].flips_by_phase()
    needed = [0] + [1] * (len(load.phases) - 1)
    flaps = any(done > due for done, due in zip(flips, needed, strict=True))
    return (
        f"planner's goodput {ratio:.2f} of the best static split's ({best}); {sum(flips)} flips "
        f"({', '.join(map(str, flips))} by phase, {sum(needed)} shifts): "
        + ("FLAPPING" if flaps else "no flapping")
    )
