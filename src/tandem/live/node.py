"""A worker process around its node machine: channels, engine, KV transfers and clock.

Performs the machine's effects and nothing more; all deciding is in the machine.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from tandem.cluster.node.machine import NodeMachine
from tandem.facts.kv_export import KvExport, MoveKv
from tandem.facts.steps import StepPlan, StepResult
from tandem.live.driver import Driver, Inbox
from tandem.messages.cluster import ToGateway
from tandem.messages.gateway import TimePassed
from tandem.messages.node import (
    ConnectPeer,
    EndMove,
    ForgetPeer,
    Leave,
    NodeEffect,
    PublishBlocks,
    SendToGateway,
    StartMove,
    TierEffect,
)
from tandem.messages.worker import RunStep, StepDone


class Steps(Protocol):
    """A thread that runs plans, as `live.engine_thread.EngineThread`."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def submit(self, plan: StepPlan) -> None: ...

    def stop(self, timeout_s: float | None = None) -> None: ...


class TransferEngine(Protocol):
    """What moves KV, as `kv.transfer.engine.KvTransferEngine`: nothing here blocks."""

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None: ...

    def forget_source(self, worker: str, incarnation: str) -> None: ...

    def start_transfer(self, move_id: int, order: MoveKv) -> None: ...

    def stop_transfer(self, move_id: int) -> None: ...

    def export_blocks(
        self, export_id: int, blocks: tuple[int, ...], versions: tuple[int, ...]
    ) -> None: ...


class Tiers(Protocol):
    """What moves KV to and from slower tiers, as `live.tiers.LiveTiers`: nothing here blocks."""

    def perform(self, effect: TierEffect) -> None: ...


class Channel(Protocol):
    """The way to one gateway, as `live.node_channel.NodeChannel`."""

    def open(self) -> None: ...

    def send(self, message: ToGateway) -> None:
        """Never waits: whoever does not read is gone."""
        ...

    async def close(self, linger_s: float) -> None:
        """What was sent may still leave for so long."""
        ...


class Node:
    """Use `run` once, on the event loop that the channels and the inbox live on."""

    def __init__(
        self,
        machine: NodeMachine,
        inbox: Inbox,
        transfers: TransferEngine,
        tiers: Tiers | None = None,
    ) -> None:
        self.machine = machine
        self._inbox = inbox
        self._transfers = transfers
        self._tiers = tiers
        self._left: Leave | None = None

    async def run(self, steps: Steps, channels: Mapping[str, Channel]) -> Leave:
        """Until the machine says so, with a channel for each gateway by its name; gives how. What
        the machine raises, or the inbox was told of a part that failed, is raised."""
        steps.start(asyncio.get_running_loop())
        for channel in channels.values():
            channel.open()

        def perform(effects: Sequence[NodeEffect], instant_ns: int) -> Leave | None:
            del instant_ns
            for effect in effects:
                self._perform(effect, steps, channels)
            return self._left

        return await Driver(self.machine, self._inbox, perform, TimePassed()).run()

    def take_result(self, result: StepResult) -> None:
        """A step has run; on the event loop."""
        self._inbox.enqueue(StepDone(result))

    def _perform(self, effect: NodeEffect, steps: Steps, channels: Mapping[str, Channel]) -> None:
        match effect:
            case RunStep(plan):
                steps.submit(plan)
            case SendToGateway(gateway, message):
                channels[gateway].send(message)
            case StartMove(move_id, order):
                self._transfers.start_transfer(move_id, order)
            case EndMove(move_id):
                self._transfers.stop_transfer(move_id)
            case PublishBlocks(publication_id, blocks, generations):
                self._transfers.export_blocks(publication_id, blocks, generations)
            case ConnectPeer(worker, incarnation, export):
                self._transfers.add_source(worker, incarnation, export)
            case ForgetPeer(worker, incarnation):
                self._transfers.forget_source(worker, incarnation)
            case Leave():
                self._left = effect
            case _:
                # A machine that knows of no tiers wants nothing done there.
                assert self._tiers is not None
                self._tiers.perform(effect)


async def finish_sending(steps: Steps, channels: Mapping[str, Channel], linger_s: float) -> None:
    """After the end: what was sent to gateways, and the steps in flight, may take so long each."""
    await asyncio.gather(*(channel.close(linger_s) for channel in channels.values()))
    steps.stop(linger_s)
