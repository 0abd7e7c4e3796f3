"""The places of a cluster's processes on the machines of a Ray cluster: a placement group with a
bundle for each, and the actors in it. Needs `ray`."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.kv.threads import SupervisedThread
from tandem.live.launching.ray_actor import NodeProcess
from tandem.live.launching.ray_places import Machine, RayTerms, spelled, unreachable, why_unplaced

LOOK_S = 1.0
PROBE_S = 5.0


class NoPlace(TandemError):
    """The machines of the Ray cluster cannot take all processes."""


class RayProcess(NodeProcess):
    """The same, with the address that Ray has for it."""

    async def host(self) -> str:
        """The address of its machine."""
        return str(ray.util.get_node_ip_address())


class RayGroup:
    """The group of one cluster; opened and closed once. Ray itself removes it with the driver."""

    def __init__(self, terms: RayTerms) -> None:
        self._terms = terms
        self._group: PlacementGroup | None = None
        self._numbers = {name: number for number, name in enumerate(terms.bundles)}

    async def open(self, phase: Callable[[str], None]) -> None:
        """Raises `InvalidConfiguration` or `NoPlace`."""
        terms = self._terms
        phase(f"connecting to Ray at {terms.address}")
        await _within(terms.patience_s, terms.address)
        machines = _machines()
        if problem := unreachable(terms.listen_host, machines):
            raise InvalidConfiguration(problem)
        phase(f"placing {len(terms.bundles)} processes on {len(machines)} machines of Ray")
        # A group that waits is demand that Ray's autoscaler sees by itself.
        group: PlacementGroup = await asyncio.to_thread(
            placement_group,
            [dict(needs) for needs in terms.bundles.values()],
            strategy=terms.placement.upper(),
        )
        self._group = group
        try:
            async with asyncio.timeout(terms.patience_s):
                while not await asyncio.to_thread(group.wait, LOOK_S):
                    pass
        except TimeoutError as error:
            why = why_unplaced(terms.bundles, _machines(), terms.placement)
            raise NoPlace(f"Ray found no place within {terms.patience_s:g} s: {why}") from error

    async def close(self) -> None:
        if not ray.is_initialized():
            return
        if self._group is not None:
            await asyncio.to_thread(remove_placement_group, self._group)
        await asyncio.to_thread(ray.shutdown)

    def make_actor(self, name: str) -> Any:
        """In the process's own bundle. It waits there until Ray has a machine."""
        assert self._group is not None
        needs = dict(self._terms.bundles[name])
        return (
            ray.remote(RayProcess)
            .options(
                num_cpus=needs.pop("CPU", 0.0),
                num_gpus=needs.pop("GPU", 0.0),
                memory=needs.pop("memory", None),
                resources=needs,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, self._numbers[name]
                ),
            )
            .remote(name)
        )

    def why_waiting(self, name: str) -> str:
        """Why the process has no machine yet, for a person."""
        needs = self._terms.bundles[name]
        why = why_unplaced({name: needs}, _machines(), self._terms.placement)
        return f"waits for a machine with {spelled(needs)}: {why}"


async def _within(patience_s: float, address: str) -> None:
    """Connects. Raises `InvalidConfiguration` when it takes longer."""
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[str] = loop.create_future()

    def report(problem: str) -> None:
        if not connected.done():
            connected.set_result(problem)

    def soon(problem: str) -> None:
        # Nobody waits any more where the loop is closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(report, problem)

    def failed(failure: Exception) -> None:
        soon(str(failure).strip().partition("\n")[0] or type(failure).__name__)

    # Ray would ask for minutes, and nobody could end with a thread that must be waited for.
    SupervisedThread("connection to Ray", lambda: soon(_connect(address)), failed).start()
    try:
        async with asyncio.timeout(patience_s):
            problem = await connected
    except TimeoutError:
        problem = f"nobody answered within {patience_s:g} s"
    if problem:
        raise InvalidConfiguration(
            f"ray.address: no Ray cluster can be reached at {address} ({problem}); start one with "
            "`ray start`, on this machine too"
        )


def _connect(address: str) -> str:
    """Why it cannot be; empty if it could."""
    host, colon, port = address.rpartition(":")
    # It would log that it leaves the signals alone, which is as it should be.
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        if colon:
            socket.create_connection((host, int(port)), PROBE_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        return str(error).strip().partition("\n")[0]
    return ""


def _machines() -> list[Machine]:
    return [
        Machine(node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]
