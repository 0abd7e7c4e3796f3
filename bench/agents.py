"""Agents that pause for tools, with and without hints: the LMCache agent trace in the twin, and a
tool loop against a real cluster on this machine. Tools are made of waiting.

Usage: python bench/agents.py TRACE [--tenant miniswe] [--copies N] [--speed X] [--turns N]
"""

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.shape import announce_pauses, merge, speed
from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import read_cluster
from tandem.facts.fleet import Tier
from tandem.facts.trace import TraceRow
from tandem.twin.simulation import simulate
from tandem_process import serving

TWIN = """
model: qwen3-32b
block_size: 16
pools:
  - {name: worker, count: COUNT, device: h100, tensor_parallel: 2, memory_utilization: UTILIZATION}
tiers: {host: {capacity: 128 GB, bandwidth: 25 GB/s}, PINS}
policies: {routing: cost}
slo: {ttft: 500ms, tpot: 50ms}
"""
LIVE = """
name: bench-agents
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 4, kv-cache-memory: 12MiB, threads: 1}
pools: [{name: w, role: both, device: cpu}]
tiers: {host: {capacity: 96MiB}, PINS}
health: {report_interval: 50ms}
"""
PAUSES = "longest_pause: 5m"
ANNOUNCED = f"{PAUSES}, learn_pauses: false"


@dataclass(frozen=True)
class Variant:
    """`pins` are keys of the tiers; pauses are announced `factor` times as long as they are."""

    name: str
    pins: str
    factor: float | None = None


VARIANTS = (
    Variant("no hints", "pin_sessions: 0s"),
    Variant("pinned 60 s", "pin_sessions: 60s"),
    Variant("announced", ANNOUNCED, 1.0),
    Variant("announced, twice too long", ANNOUNCED, 2.0),
    Variant("announced, half as long", ANNOUNCED, 0.5),
    Variant("learnt", PAUSES),
)


@dataclass(frozen=True)
class Outcome:
    """TTFTs of the calls that came after a tool, and what is said beside."""

    ttfts_s: list[float]
    beside: tuple[str, ...]

    def cells(self) -> list[str]:
        ordered = sorted(self.ttfts_s)
        p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        return [f"{1e3 * each:.1f}" for each in (mean(ordered), p50, p99)] + list(self.beside)


def simulated(variant: Variant, rows: list[TraceRow], text: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(text.replace("PINS", variant.pins))
        scenario = scenario_of(read_cluster(str(file)))
    run = simulate(
        scenario, rows if variant.factor is None else announce_pauses(rows, variant.factor)
    )
    done = [(each, each.ttft_s) for each in run.requests if each.ttft_s is not None]
    prompt_tokens = sum(each.prompt_tokens for each, _ in done)
    hits = [
        sum(each.reused_tokens.get(tier, 0) for each, _ in done) / prompt_tokens
        for tier in (Tier.DEVICE, Tier.HOST)
    ]
    kept = [each for each, ttft_s in done if ttft_s <= 0.5 and (each.tpot_s or 0.0) <= 0.05]
    goodput = len(kept) / (run.end_ns / 1e9)
    beside = (*(f"{hit:.1%}" for hit in hits), f"{goodput:.2f}", f"{len(kept) / len(done):.1%}")
    return Outcome([ttft_s for _, ttft_s in done], beside)


@contextmanager
def cluster(text: str) -> Iterator[str]:
    """`tandem up`; gives its address."""
    with tempfile.TemporaryDirectory() as folder:
        file, state = Path(folder) / "cluster.yaml", Path(folder) / "state"
        file.write_text(text)
        with serving("up", str(file), "--state-dir", str(state)) as url:
            yield url


async def agent(
    client: AsyncOpenAI, number: int, turns: int, announced: float | None
) -> tuple[list[float], list[int]]:
    """One session of tool calls. Its TTFTs after the first call, and the cached prompt tokens."""
    prompt = f"Session {number}. " + f"{number} brown foxes jump over {number * 7} dogs. " * 40
    ttfts_s: list[float] = []
    cached: list[int] = []
    for turn in range(turns):
        pause_s = 1.0 + 0.25 * ((number + turn) % 5)
        hints: dict[str, object] = {"session": f"agent-{number}"}
        if announced is not None:
            hints["pause_s"] = announced * pause_s
        begin, first = time.perf_counter(), None
        stream = await client.completions.create(
            model="tandem-mini",
            prompt=prompt,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"agent": hints, "ignore_eos": True},
        )
        async for event in stream:
            first = first or time.perf_counter() - begin
            prompt += "".join(choice.text for choice in event.choices)
            if event.usage is not None and turn and event.usage.prompt_tokens_details:
                cached.append(event.usage.prompt_tokens_details.cached_tokens or 0)
        if turn and first is not None:
            ttfts_s.append(first)
        await asyncio.sleep(pause_s)
        prompt += f" The tool says {turn * 17 + number}."
    return ttfts_s, cached


async def tool_loop(url: str, agents: int, turns: int, announced: float | None) -> Outcome:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        found = await asyncio.gather(
            *(agent(client, number, turns, announced) for number in range(agents))
        )
    ttfts_s = [ttft for each, _ in found for ttft in each]
    cached = [tokens for _, each in found for tokens in each]
    return Outcome(ttfts_s, (f"{mean(cached):.0f}",))


def fetched_blocks(url: str) -> str:
    """Blocks that came from host memory, and how often a session was brought back."""
    state = subprocess.run(
        ["curl", "-s", f"{url}/metrics"], capture_output=True, text=True, check=True
    ).stdout
    figures = {
        line.rpartition(" ")[0].partition("{")[0]: line.rpartition(" ")[2]
        for line in state.splitlines()
        if line.startswith(("tandem:kv_tier_fetched", "tandem:session_prefetches_total"))
    }
    return json.dumps(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--tenant", default="miniswe")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--utilization", type=float, default=0.55)
    parser.add_argument("--speed", type=float, default=5.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--live-only", action="store_true")
    parser.add_argument("--twin-only", action="store_true")
    arguments = parser.parse_args()
    console = Console(width=130)
    if not arguments.live_only:
        rows = [row for row in read_trace(arguments.trace) if row.tenant == arguments.tenant]
        rows = speed(merge([rows] * arguments.copies), arguments.speed)
        text = TWIN.replace("COUNT", str(arguments.count))
        text = text.replace("UTILIZATION", str(arguments.utilization))
        columns = ("device", "host", "goodput/s", "in SLO")
        table = _table(f"twin: {len(rows)} calls of {arguments.tenant}", columns)
        for variant in VARIANTS:
            table.add_row(variant.name, *simulated(variant, rows, text).cells())
        console.print(table)
    if not arguments.twin_only:
        table = _table(f"live: {arguments.agents} agents, tandem-mini", ("cached", "fetched"))
        for variant in (VARIANTS[0], VARIANTS[2], VARIANTS[5]):
            with cluster(LIVE.replace("PINS", variant.pins)) as url:
                loop = tool_loop(url, arguments.agents, arguments.turns, variant.factor)
                outcome = asyncio.run(loop)
                table.add_row(variant.name, *outcome.cells(), fetched_blocks(url))
        console.print(table)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("TTFT mean, ms", "p50", "p99", *columns):
        table.add_column(column, justify="right")
    return table


if __name__ == "__main__":
    main()
