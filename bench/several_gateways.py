"""What several gateways lose against one, and what telling each other gives back.

python bench/several_gateways.py TRACE [--first 3000] [--speed 1]

Simulated. Affinity: a Mooncake trace on `mooncake-16`, its requests dealt out among the gateways in
turn; and bursts of requests with one long prompt each, as of an agent that asks several things at
once. Fairness: one tenant floods its gateway while another asks a little at the other one.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import NamedTemporaryFile
from typing import Annotated
from unittest.mock import patch

import typer
from rich.console import Console
from rich.table import Table

from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import speed as faster
from tandem.bench.traces.shape import spread, window
from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import read_cluster
from tandem.facts.trace import TraceRow
from tandem.report.record import Ending, RunRecord
from tandem.report.statistics import latencies
from tandem.report.summary import Terms, summarise
from tandem.twin.gateway import SimulatedGateway
from tandem.twin.scenario import Scenario
from tandem.twin.simulation import Simulation, rare_garbage_collections

FAIR = """
model: llama-3.1-8b
block_size: 64
pools:
  - {name: worker, role: both, count: 4, device: a100, max_num_seqs: 16}
policies: {routing: cost, admission: none}
tenants: [{name: flood}, {name: steady}]
slo: {ttft: 2s, tpot: 40ms}
"""
SECONDS = 120.0
Homes = Sequence[int]


def played(
    scenario: Scenario, rows: list[TraceRow], *, shares: bool, homes: Homes = ()
) -> RunRecord:
    """One run; `homes` are the gateways that rows go to, by turns where there are none."""
    run = RunRecord(settings={})
    simulation = Simulation(scenario, rows, run)
    cluster, made = simulation.cluster, simulation.cluster.gateway_config

    def apart(name: str) -> GatewayConfig:
        config = made(name)
        return replace(config, limits=replace(config.limits, gateways=1))

    def at_home(serial: int) -> SimulatedGateway:
        return cluster.gateways[f"gateway-{homes[serial]}"]

    with ExitStack() as changed:
        changed.enter_context(rare_garbage_collections())
        if not shares:
            changed.enter_context(patch.object(cluster, "gateway_config", apart))
        if homes:
            changed.enter_context(patch.object(cluster, "gateway_for", at_home))
        return simulation.run(None)


def cases(most: int) -> list[tuple[int, bool]]:
    return [(1, True), *((count, shares) for count in (2, most) for shares in (False, True))]


def label(count: int, *, shares: bool) -> str:
    return "1" if count == 1 else f"{count}, {'sharing' if shares else 'apart'}"


def bursts(count: int) -> list[TraceRow]:
    """Groups of four requests within 1.2 s, with 16k tokens of prompt in common."""
    chance, rows = Random(2), []
    for group in range(count):
        begin_s = group * 0.5
        for number in range(4):
            own = 100_000 + 4 * group + number
            blocks = (*(32 * group + each for each in range(32)), own)
            arrival_s = begin_s + 0.3 * number + chance.random() * 0.1
            rows.append(TraceRow(arrival_s, 33 * 512, chance.randint(50, 150), blocks))
    return sorted(rows, key=lambda row: row.arrival_s)


def affinity(rows: list[TraceRow]) -> Table:
    table = Table("gateways", "prefix hits", "goodput", "within SLO", "TTFT p50", "p99", box=None)
    for count, shares in cases(4):
        cluster = read_cluster("mooncake-16")
        scenario = replace(scenario_of(cluster), gateways=count, live_reports=True)
        run = played(scenario, rows, shares=shares)
        summary, found = summarise(run, Terms(cluster.slo)), latencies(run.requests, ())
        reused = sum(sum(each.reused_tokens.values()) for each in run.requests)
        prompts = sum(each.prompt_tokens for each in run.requests)
        assert found.ttft is not None
        table.add_row(
            label(count, shares=shares),
            f"{reused / prompts:.1%}",
            f"{summary.goodput_rps:.2f}/s",
            f"{summary.attainment:.1%}",
            f"{found.ttft.p50_ns / 1e9:.2f} s",
            f"{found.ttft.p99_ns / 1e9:.2f} s",
        )
    return table


def fairness() -> Table:
    chance, rows = Random(1), []
    for tenant, rate_rps in (("flood", 60.0), ("steady", 6.0)):
        now_s = 0.0
        while (now_s := now_s + chance.expovariate(rate_rps)) < SECONDS:
            prompt, answer = chance.randint(500, 1500), chance.randint(100, 300)
            rows.append(TraceRow(now_s, prompt, answer, tenant=tenant))
    rows.sort(key=lambda row: row.arrival_s)
    table = Table(
        "gateways", "steady: TTFT p50", "p99", "answered/s", "flood: answered/s", box=None
    )
    for count, shares in cases(2)[:3]:
        homes = [int(row.tenant == "steady") % count for row in rows]
        with NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(FAIR)
            file.flush()
            scenario = scenario_of(read_cluster(file.name))
        scenario = replace(scenario, gateways=count, live_reports=True)
        run = played(scenario, rows, shares=shares, homes=homes)
        # While both ask.
        ended = {
            tenant: sum(
                each.ending is Ending.FINISHED and each.end_ns < SECONDS * 1e9
                for each in run.requests
                if each.tenant == tenant
            )
            for tenant in ("steady", "flood")
        }
        found = latencies([each for each in run.requests if each.tenant == "steady"], ())
        assert found.ttft is not None
        table.add_row(
            label(count, shares=shares),
            f"{found.ttft.p50_ns / 1e9:.2f} s",
            f"{found.ttft.p99_ns / 1e9:.2f} s",
            *(f"{count / SECONDS:.1f}" for count in ended.values()),
        )
    return table


def main(
    trace: Path,
    first: Annotated[int, typer.Option(help="Requests of the trace.")] = 3000,
    speed: Annotated[float, typer.Option(help="Arrivals so many times as fast.")] = 1.0,
) -> None:
    console = Console(width=140)
    console.print(fairness())
    console.print(affinity(bursts(150)))
    rows = faster(window(spread(read_trace(trace), seed=0), first=first), speed)
    console.print(affinity(rows))


if __name__ == "__main__":
    typer.run(main)
