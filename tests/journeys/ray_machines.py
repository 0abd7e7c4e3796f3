"""A real Ray cluster whose machines are all on this one, each with an address of its own."""

import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest import MonkeyPatch
from ray.cluster_utils import Cluster

# A machine that is gone is noticed within some seconds; one that is only slow is not given up.
QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}
SMALL = {"include_dashboard": False, "object_store_memory": 80 << 20}


class RayMachines:
    """Machines by the last number of their addresses."""

    def __init__(self, folder: str) -> None:
        self._cluster = Cluster()
        self._folder = folder
        self._nodes: dict[int, Any] = {}

    def start(self, resources: Mapping[int, Mapping[str, float]]) -> None:
        """What each machine has, by the last number of its address; the first is the head."""
        (head, first), *others = resources.items()
        self._add(head, first, _system_config=QUICK, temp_dir=self._folder)
        for number, own in others:
            self._add(number, own, wait=False)
        self._cluster.wait_for_nodes()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def pull_the_plug(self, number: int) -> None:
        """All of a machine's processes are killed at once."""
        self._cluster.remove_node(self._nodes.pop(number), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()

    def _add(self, number: int, resources: Mapping[str, float], **options: Any) -> None:
        own = dict(resources)
        self._nodes[number] = self._cluster.add_node(
            node_ip_address=f"127.0.0.{number}",
            num_cpus=own.pop("CPU"),
            resources=own,
            **SMALL,
            **options,
        )


@contextmanager
def ray_machines(resources: Mapping[int, Mapping[str, float]]) -> Iterator[RayMachines]:
    """Until the block ends."""
    handler = signal.getsignal(signal.SIGTERM)
    # Sockets lie in there, whose paths may not be long.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # Ray writes the cluster's address into its default folder, which it makes only where that is
    # the cluster's own: on a machine that never ran Ray it is missing.
    (Path(folder) / "ray").mkdir()
    with MonkeyPatch.context() as environment:
        environment.setenv("RAY_TMPDIR", folder)
        # Ray would tell its makers.
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        machines = RayMachines(folder)
        try:
            machines.start(resources)
            yield machines
        finally:
            machines.close()
            shutil.rmtree(folder, ignore_errors=True)
            # Ray took it.
            signal.signal(signal.SIGTERM, handler)
