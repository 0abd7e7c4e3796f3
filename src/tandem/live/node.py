"""A worker process around its node machine: channels, engine, KV transfers and clock.

Performs the machine's effects and nothing more; all deciding is in the machine.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from tandem.cluster.node.driver import (
    EnginePort,
    KvTransferPort,
    NodePorts,
    PoolPort,
    TierPort,
    perform,
)
from tandem.cluster.node.machine import NodeMachine
from tandem.facts.adapter import AdapterMemory
from tandem.facts.steps import StepResult
from tandem.live.driver import Driver, Inbox
from tandem.messages.cluster import ToGateway
from tandem.messages.gateway import TimePassed
from tandem.messages.node import AdapterMemoryChanged, Leave
from tandem.messages.worker import StepDone


class Steps(EnginePort, Protocol):
    """A thread that runs plans, as `live.engine_thread.EngineThread`."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def stop(self, timeout_s: float | None = None) -> None: ...


class Tiers(Protocol):
    """What moves KV to and from slower tiers, and the way to the shared pool, as
    `live.processes.worker_tiers.WorkerTiers`: nothing here blocks."""

    @property
    def engine(self) -> TierPort: ...

    @property
    def pool(self) -> PoolPort | None: ...


class Channel(Protocol):
    """The way to one gateway, as `live.node_channel.NodeChannel`."""

    def open(self) -> None: ...

    def send(self, message: ToGateway) -> None:
        """Never waits: whoever does not read is gone."""
        ...

    async def close(self, linger_s: float) -> None:
        """What was sent may still leave for so long."""
        ...


class Channels:
    """The channels to all gateways, by name."""

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels

    def send_to_gateway(self, gateway: str, message: ToGateway) -> None:
        self._channels[gateway].send(message)


class Node:
    """Use `run` once, on the event loop that the channels and the inbox live on. `adapter_memory`
    says what the engine holds of adapters, where it serves any."""

    def __init__(
        self,
        machine: NodeMachine,
        inbox: Inbox,
        transfers: KvTransferPort,
        tiers: Tiers | None = None,
        adapter_memory: Callable[[], AdapterMemory] | None = None,
    ) -> None:
        self.machine = machine
        self._inbox = inbox
        self._transfers = transfers
        self._tiers = tiers
        self._adapter_memory = adapter_memory
        self._known_memory: AdapterMemory | None = None

    async def run(self, steps: Steps, channels: Mapping[str, Channel]) -> Leave:
        """Until the machine leaves, with a channel for each gateway by its name; gives how. What
        the machine raises, or the inbox was failed with, is raised."""
        self._look_at_adapters()
        steps.start(asyncio.get_running_loop())
        for channel in channels.values():
            channel.open()
        ports = NodePorts(steps, Channels(channels), self._transfers)
        if self._tiers is not None:
            ports = replace(ports, tiers=self._tiers.engine, pool=self._tiers.pool)
        driver = Driver(
            self.machine, self._inbox, lambda effects, _: perform(effects, ports), TimePassed()
        )
        return await driver.run()

    def take_result(self, result: StepResult) -> None:
        """A step has run; on the event loop."""
        self._look_at_adapters()
        self._inbox.enqueue(StepDone(result))

    def _look_at_adapters(self) -> None:
        """Whatever is loaded is loaded for a request, and so followed by a step."""
        if self._adapter_memory is None:
            return
        memory = self._adapter_memory()
        if memory != self._known_memory:
            self._known_memory = memory
            self._inbox.enqueue(AdapterMemoryChanged(memory))
