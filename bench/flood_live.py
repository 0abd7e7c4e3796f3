"""A premium class while a free one floods, on a real cluster of this machine, and in the twin on
the same arrivals.

Gateway, admission, scheduler, KV transfers, tenants and their clients are real. The engines are
dummies, whose steps take as long as a profile says and compute nothing: what the cluster carries is
the same at every hour, and what is compared are decisions.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tandem.commands.demo_load import DemoTenant, Shape, TenantLoad
from tandem.commands.measured_cluster import running
from tandem.commands.simulated_runs import Trial, run_trials
from tandem.config.cluster.file import read_cluster
from tandem.facts.trace import TraceRow

TEXT = """
name: flood
model: tandem-mini
block_size: 16
serve: {{port: 0, threads: 1, kv-cache-memory: 256MiB}}
pools:
  - {{name: prefill, role: prefill, count: 2, {worker}}}
  - {{name: decode, role: decode, count: 2, {worker}}}
network: {{fabric: 2 GB/s, latency: 2ms}}
policies: {{admission: {admission}}}
slo: {{ttft: 6s, tpot: 60ms}}
classes:
  - {{name: premium, priority: 0, slo: {{ttft: 2s, tpot: 40ms}}}}
  - {{name: free, priority: 5, default: true, slo: {{ttft: 6s, tpot: 60ms}}}}
tenants:
  - {{name: acme, service_class: premium, api_keys: [key-acme]}}
  - {{name: bolt, service_class: premium, api_keys: [key-bolt]}}
  - {{name: flood, service_class: free, api_keys: [key-flood]}}
  - {{name: quiet, service_class: free, api_keys: [key-quiet]}}
"""
WORKER = (
    "device: cpu, engine: dummy, kv_dtype: float32, max_num_seqs: 16, "
    "max_num_batched_tokens: 256, time_model: {{name: profile, path: {profile}}}"
)
# A prompt of 1,200 tokens takes 0.41 s in steps of 86 ms, of which a TTFT of 2 s has room for many:
# an urgent prompt waits for those under way. 5 requests a second keep both prefill workers busy.
STEP_TIME = {"fixed_s": 0.012, "token_s": 0.00029, "decode_s": 0.0002}
SHAPE = Shape(1200, 24)
CAPACITY_RPS = 5.0
# Of that, what each tenant asks for.
SHARES = {"acme": 0.3, "bolt": 0.2, "flood": 4.5, "quiet": 0.5}


@dataclass(frozen=True)
class Kept:
    """Requests that kept what their class was promised, of all and of the admitted."""

    requests: int
    admitted: int
    kept: int

    def __str__(self) -> str:
        of_all, of_admitted = (
            self.kept / max(1, count) for count in (self.requests, self.admitted)
        )
        return f"{of_all:.0%} ({of_admitted:.0%} of {self.admitted})"


def flood_live_and_twin(policies: dict[str, str], seconds: float, console: Console) -> None:
    """What each tenant got, by admission."""
    table = Table(
        title=f"premium at half of what 2 + 2 workers serve, free at five times that, {seconds:g} "
        "s each; share of all requests that kept the SLO (of the admitted)"
    )
    table.add_column("admission")
    for name in SHARES:
        table.add_column(f"{name}, live", justify="right")
        table.add_column("twin", justify="right")
    with TemporaryDirectory() as passing:
        folder = Path(passing)
        profile = folder / "profile.json"
        profile.write_text(json.dumps({"fitted": STEP_TIME}))
        for point, (label, policy) in enumerate(policies.items()):
            text = TEXT.format(worker=WORKER.format(profile=profile), admission=policy)
            (folder / "simulated.yaml").write_text(text)
            with running(text, folder) as cluster:
                loads = asyncio.run(_ask(cluster.url, folder / "simulated.yaml", seconds, point))
            found = _simulated(folder / "simulated.yaml", loads)
            cells: list[str] = []
            for load in loads:
                live = Kept(load.sent, len(load.finished), load.kept)
                cells += [str(live), str(found[load.tenant.name])]
            table.add_row(label, *cells)
            console.print(f"{label}: " + ", ".join(cells), highlight=False)
    console.print(table)


async def _ask(url: str, file: Path, seconds: float, point: int) -> list[TenantLoad]:
    """All tenants at once; prompts of each `point` are others."""
    cluster = read_cluster(str(file))
    terms = {each.name: each.slo for each in cluster.classes}
    loads = [
        TenantLoad(
            DemoTenant(each.name, each.service_class, terms[each.service_class], each.api_keys[0]),
            url,
            100 * point + place,
        )
        for place, each in enumerate(cluster.tenants)
    ]
    await asyncio.gather(
        *(load.at_rate(SHAPE, SHARES[load.tenant.name] * CAPACITY_RPS, seconds) for load in loads)
    )
    return loads


def _simulated(file: Path, loads: Sequence[TenantLoad]) -> dict[str, Kept]:
    """By tenant, with the same cluster file and arrivals."""
    rows = [
        TraceRow(
            each.arrival_ns / 1e9,
            each.prompt_tokens,
            each.output_tokens,
            tenant=load.tenant.name,
            service_class=load.tenant.service_class,
        )
        for load in loads
        for each in load.records
    ]
    rows.sort(key=lambda row: row.arrival_s)
    trial = Trial("twin", read_cluster(str(file)), 1.0)
    (record,) = run_trials([trial], rows, 1, lambda _: None)
    found = {}
    for load in loads:
        own = [each for each in record.requests if each.tenant == load.tenant.name]
        admitted = [each for each in own if each.finished]
        kept = sum(each.keeps(load.tenant.slo) for each in own)
        found[load.tenant.name] = Kept(len(own), len(admitted), kept)
    return found
