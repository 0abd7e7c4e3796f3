"""What-if: the last minutes of a journal in the simulator, which runs in a process of its own at
a low priority."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from tandem.facts.errors import InvalidRequest, Overloaded, RequestFailed
from tandem.facts.overview import WhatIfChange, WhatIfRun

# The verb lies above this room, which knows it by its name alone. Somebody has clicked and waits:
# any nicer, and that would take minutes where workers have all cores.
REPLAY = ("nice", "-n", "5", sys.executable, "-m", "tandem", "replay")
LIMIT_S = 120.0
NS_PER_S = 1e9


class WhatIf:
    """Tries one change at a time, of what lies in the folder `journal`."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._busy = False

    async def simulate(self, change: WhatIfChange) -> list[WhatIfRun]:
        """What was recorded, the same simulated, and what would have come of the change. Raises
        `Overloaded` while another is tried, `InvalidRequest` for what cannot be, `RequestFailed`
        where it takes too long."""
        if self._busy:
            raise Overloaded("another change is being tried", 5.0)
        self._busy = True
        try:
            with TemporaryDirectory(prefix="tandem-what-if-") as folder:
                return await self._simulated(change, Path(folder) / "figures.json")
        finally:
            self._busy = False

    async def _simulated(self, change: WhatIfChange, figures: Path) -> list[WhatIfRun]:
        process = await asyncio.create_subprocess_exec(
            *REPLAY,
            str(self._journal),
            *_arguments(change),
            *("--json", str(figures), "--no-progress", "--processes", "1"),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                _, complaint = await process.communicate()
        except TimeoutError as error:
            problem = f"the simulator has not answered within {LIMIT_S:g} s; try fewer minutes"
            raise RequestFailed(problem) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
            problem = last.removeprefix("tandem: ")[:300] or "the simulator failed"
            raise InvalidRequest("what-if", f"cannot be simulated: {problem}")
        runs = msgspec.json.decode(figures.read_bytes())["runs"]
        return [_run_of(run["label"], run["summary"]) for run in runs]


def _arguments(change: WhatIfChange) -> Iterator[str]:
    yield from ("--last", f"{change.last_s:g}")
    if change.routing:
        yield from ("--routing", change.routing)
    if change.admission:
        yield from ("--admission", change.admission)
    for pool, count in change.workers.items():
        yield f"--set=pools.{pool}.count={count}"
    for setting in change.settings:
        yield f"--set={setting}"


def _run_of(label: str, summary: dict[str, Any]) -> WhatIfRun:
    latencies = summary["latencies"]

    def percentile(latency: str, name: str) -> float | None:
        found = latencies[latency]
        return None if found is None else float(found[name])

    return WhatIfRun(
        label=label,
        requests=summary["requests"],
        goodput_rps=summary["goodput_rps"],
        attainment=summary["attainment"],
        ttft_p50_s=percentile("ttft", "p50_s"),
        ttft_p99_s=percentile("ttft", "p99_s"),
        tpot_p50_s=percentile("tpot", "p50_s"),
        tpot_p99_s=percentile("tpot", "p99_s"),
        hit_ratio=summary["reuse"]["hit_ratio"],
        rejected=summary["endings"].get("rejected", 0),
    )
