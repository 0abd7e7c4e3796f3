"""Adapters of workers, as `tandem status` shows them."""

from msgspec.structs import replace
from rich.console import Console

from tandem.commands.cluster_view import print_status
from tandem.facts.adapter import AdapterFigures, AdapterMemory
from tandem.messages.gateway import ClusterStatus, WorkerStatus
from tests.live.statuses import worker_status


def shown(*workers: WorkerStatus) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        status = ClusterStatus("g", 1.0, workers, 0, 0, 0, 0, ())
        print_status(console, "http://here", [status, status], {"a" * 32: "sql[v2]"})
    return captured.get()


def test_a_line_for_each_worker_that_serves_some():
    memory = AdapterMemory(3, 12 << 20, 64 << 20, loads=5, evictions=2)
    busy = AdapterFigures(("a" * 32, "b" * 32), ("c" * 32,), 8, memory)
    idle = AdapterFigures((), (), 8, AdapterMemory(0, 0, 64 << 20))
    told = shown(
        replace(worker_status("w-0"), adapters=busy),
        replace(worker_status("w-1"), adapters=idle),
        worker_status("w-2"),
    )
    assert "w-0: bbbbbbbb, sql[v2] running (of 8 at once), cccccccc waiting; 3 in memory" in told
    assert "12.0 MiB of 64.0 MiB, 5 loads, 2 evictions" in told
    assert "w-1: none running (of 8 at once), none waiting; 0 in memory" in told
    assert "w-2:" not in told
    assert "adapters:" not in shown(worker_status("w-2"))
