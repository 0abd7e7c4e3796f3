"""A shifting load on a real cluster of this machine, the simulator beside it on the same arrivals:
every static split of four workers, and a planner that may flip them.

Gateway, scheduler, KV transfers, client and planner are real. The workers' engines are dummies,
whose steps take as long as a profile says and compute nothing: four that compute would share the
cores of a small machine, where it hardly matters which of them prefill.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from shifting_runs import FLIPS, Load, Phase, PlayedLoad, table_of
from tandem.bench.client import Client, Endpoint
from tandem.bench.load import Asker, Asking, Pacing, run_load
from tandem.bench.workload import ContentSource, Replay, plan_replay, plan_warmup
from tandem.commands.measured_cluster import MeasuredCluster, running
from tandem.commands.simulated_runs import Trial, run_trials
from tandem.config.cluster.file import read_cluster
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.report.record import MeasuredRequest, RunRecord

TEXT = """
name: shifting
model: tandem-mini
block_size: 16
serve: {{port: 0, threads: 1, kv-cache-memory: 256MiB}}
pools:
  - {{name: first, role: prefill, count: {prefill}, min_count: {prefill}, {worker}}}
  - {{name: second, role: decode, count: {decode}, min_count: {decode}, {worker}}}
slo: {{ttft: {slo.ttft_s}s, tpot: {slo.tpot_s}s}}
network: {{fabric: 2 GB/s, latency: 2ms}}
policies: {{planning: {planning}}}
planning: {{window: 2s}}
"""
WORKER = (
    "device: cpu, engine: dummy, kv_dtype: float32, startup: 5s, max_num_seqs: 16, "
    "max_num_batched_tokens: 2048, time_model: {{name: profile, path: {profile}}}"
)
# A prompt of 1,200 tokens takes 0.36 s, and sixteen answers get a token every 20 ms.
STEP_TIME = {"fixed_s": 0.012, "token_s": 0.00029, "decode_s": 0.0002}
# A real cluster's planner waits for minutes; here a whole phase is two.
PLANNING = (
    "{name: tandem, interval_s: 1s, history_s: 10s, "
    "patience: {band: 0.1, dwell_s: 2s, cooldown_s: 5s}}"
)
PLANNER = "planner"
SPLITS = {"1 + 3": (1, 3), "2 + 2": (2, 2), "3 + 1": (3, 1)}
# Of four workers the first kind of load needs three to prefill, the second three to decode.
LONG_PROMPTS = Phase(6.6, 1200, 24)
LONG_ANSWERS = Phase(10.5, 96, 150)
SLO = Slo(ttft_s=3.0, tpot_s=0.04)
WARM_UP = 12
CLIENTS = 4


@dataclass(frozen=True)
class Bench:
    """`folder` takes the profile and the cluster files."""

    folder: Path

    @property
    def profile(self) -> Path:
        return self.folder / "profile.json"

    def text(self, label: str) -> str:
        """The planner begins with as many workers of each role."""
        prefill, decode = SPLITS.get(label, SPLITS["2 + 2"])
        return TEXT.format(
            worker=WORKER.format(profile=self.profile),
            prefill=prefill,
            decode=decode,
            slo=SLO,
            planning=PLANNING if label == PLANNER else "static",
        )

    def simulate(self, label: str, rows: Sequence[TraceRow]) -> RunRecord:
        file = self.folder / "simulated.yaml"
        file.write_text(self.text(label))
        (record,) = run_trials(
            [Trial(label, read_cluster(str(file)), 1.0)], rows, 1, lambda _: None
        )
        return record


def live_and_twin(phase_s: float, seed: int, only: Sequence[str], folder: Path | None) -> None:
    """Of all splits and the planner, or of `only` some; prints as it goes, the verdict last."""
    labels = [label for label in (*SPLITS, PLANNER) if not only or label in only]
    console = Console(width=120)
    load = Load([LONG_PROMPTS, LONG_ANSWERS, LONG_PROMPTS], phase_s, SLO, seed)
    rows = load.rows()
    console.print(f"SLO {SLO}; planner: {PLANNING}", highlight=False, soft_wrap=True)
    with _folder(folder) as place:
        bench = Bench(place)
        bench.profile.write_text(json.dumps({"fitted": STEP_TIME}))
        live, twin = {}, {}
        for point, label in enumerate(labels):
            with running(bench.text(label), bench.folder) as cluster:
                live[label] = asyncio.run(_ask(cluster, label, load, rows, point))
            arrivals = [
                TraceRow(each.arrival_ns / 1e9, each.prompt_tokens, each.output_tokens)
                for each in live[label].requests
            ]
            arrivals.sort(key=lambda row: row.arrival_s)
            twin[label] = PlayedLoad.simulated(label, load, bench.simulate(label, arrivals))
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


async def _ask(
    cluster: MeasuredCluster, label: str, load: Load, rows: Sequence[TraceRow], point: int
) -> PlayedLoad:
    """The load on this cluster; of each `point` the prompts are others."""
    planned = plan_replay(Replay(tuple(rows)))
    async with Client(Endpoint(cluster.url)) as client:
        model = await client.choose_model(None)
        asking = Asking(model.id, vocabulary_tokens=model.vocabulary)
        asker = Asker(client, asking, ContentSource(load.seed, point))
        await run_load(plan_warmup(WARM_UP, planned), Pacing(False, CLIENTS), asker.send)
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
        f"{sum(SPLITS['2 + 2'])} workers, {len(load.phases)} phases of {load.phase_s:g} s, "
        f"{len(load.rows())} requests; {load.slo}",
        "prefill + decode",
        "",
    )
    for label in live:
        table.add_row(label, "live", *live[label].cells())
        table.add_row("", "twin", *twin[label].cells())
    console.print(table)
    for world, runs in (("live", live), ("twin", twin)):
        if PLANNER in runs and len(runs) > 1:
            console.print(f"{world}: {verdict(load, runs)}", highlight=False, soft_wrap=True)


def verdict(load: Load, runs: Mapping[str, PlayedLoad]) -> str:
    """The planner beside the best split. The first phase needs one flip, each later one two."""
    splits = [label for label in runs if label != PLANNER]
    best = max(splits, key=lambda label: runs[label].goodput_rps)
    ratio = runs[PLANNER].goodput_rps / max(1e-9, runs[best].goodput_rps)
    flips = runs[PLANNER].flips_by_phase()
    needed = [1] + [2] * (len(load.phases) - 1)
    flaps = any(done > due for done, due in zip(flips, needed, strict=True))
    return (
        f"planner's goodput {ratio:.2f} of the best static split's ({best}); {sum(flips)} flips "
        f"({', '.join(map(str, flips))} by phase, {', '.join(map(str, needed))} needed): "
        + ("FLAPPING" if flaps else "no flapping")
    )
