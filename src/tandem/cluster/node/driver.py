"""The driver contract of a node machine: its ports, and how effects are performed on them.

Live these ports are a thread with the engine, the KV transfer engine, the tier engine and channels;
in the twin they are a cost model, a network and stores of bookkeeping. None of them waits: what
comes of an order reaches the machine later, as an event.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName, KvExport, MoveKv
from tandem.facts.steps import StepPlan
from tandem.messages.cluster import ToGateway
from tandem.messages.node import (
    ConnectPeer,
    ConnectPoolNode,
    CopyBlocks,
    DropStaged,
    EndFetch,
    EndMove,
    ExportBlocks,
    FetchBlocks,
    ForgetBlocks,
    ForgetPeer,
    ForgetPoolNode,
    KeepStaged,
    Leave,
    NodeEffect,
    SendToGateway,
    StageBlocks,
    StartMove,
)
from tandem.messages.worker import RunStep


class EnginePort(Protocol):
    """Runs plans in order; each ends with `StepDone`."""

    def submit(self, plan: StepPlan) -> None: ...


class GatewaysPort(Protocol):
    """The channels to the gateways, by name."""

    def send_to_gateway(self, gateway: str, message: ToGateway) -> None:
        """After everything that was sent there before."""
        ...


class KvTransferPort(Protocol):
    """Reads KV of other workers into own blocks (`MoveFinished`), and writes the block metadata by
    which others may read (`BlocksExported`)."""

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None: ...

    def forget_source(self, worker: str, incarnation: str) -> None: ...

    def start_transfer(self, move_id: int, order: MoveKv) -> None: ...

    def stop_transfer(self, move_id: int) -> None: ...

    def export_blocks(
        self, export_id: int, blocks: tuple[int, ...], versions: tuple[int, ...]
    ) -> None: ...


class TierPort(Protocol):
    """Moves blocks between the device and the tiers below it (`BlocksStaged`, `BlocksKept`,
    `BlocksFetched`). A tier does what it is asked for in order."""

    def stage_blocks(self, copy_id: int, blocks: tuple[int, ...]) -> None: ...

    def keep_staged(
        self, copy_id: int, tier: Tier, rows: tuple[int, ...], names: tuple[BlockName, ...]
    ) -> None: ...

    def drop_staged(self, copy_id: int) -> None: ...

    def copy_between_tiers(
        self, copy_id: int, source: Tier, target: Tier, names: tuple[BlockName, ...]
    ) -> None: ...

    def forget_in_tier(self, tier: Tier, digests: tuple[bytes, ...]) -> None: ...

    def fetch_blocks(
        self,
        fetch_id: int,
        tiers: tuple[Tier, ...],
        names: tuple[BlockName, ...],
        target_blocks: tuple[int, ...],
    ) -> None: ...

    def end_fetch(self, fetch_id: int) -> None: ...


class PoolPort(Protocol):
    """The way to the processes of the shared pool."""

    def connect_pool_node(self, node: str, incarnation: str, address: str) -> None: ...

    def disconnect_pool_node(self, node: str, incarnation: str) -> None: ...


@dataclass(frozen=True, slots=True)
class NodePorts:
    """`tiers` and `pool` are None where the worker has none: its machine then asks for nothing
    there."""

    engine: EnginePort
    gateways: GatewaysPort
    transfers: KvTransferPort
    tiers: TierPort | None = None
    pool: PoolPort | None = None


def perform(effects: Iterable[NodeEffect], ports: NodePorts) -> Leave | None:
    """Have the effects done, in order. Gives how the process is to end, if it is to."""
    for effect in effects:
        match effect:
            case RunStep(plan):
                ports.engine.submit(plan)
            case SendToGateway(gateway, message):
                ports.gateways.send_to_gateway(gateway, message)
            case StartMove() | EndMove() | ExportBlocks() | ConnectPeer() | ForgetPeer():
                perform_transfer(effect, ports.transfers)
            case ConnectPoolNode(node, incarnation, address):
                assert ports.pool is not None
                ports.pool.connect_pool_node(node, incarnation, address)
            case ForgetPoolNode(node, incarnation):
                assert ports.pool is not None
                ports.pool.disconnect_pool_node(node, incarnation)
            case Leave():
                return effect
            case _:
                # A machine without tiers has no effects on them.
                assert ports.tiers is not None
                perform_on_tiers(effect, ports.tiers)
    return None


def perform_transfer(
    effect: StartMove | EndMove | ExportBlocks | ConnectPeer | ForgetPeer, transfers: KvTransferPort
) -> None:
    """Have one effect on KV transfers done."""
    match effect:
        case StartMove(move_id, order):
            transfers.start_transfer(move_id, order)
        case EndMove(move_id):
            transfers.stop_transfer(move_id)
        case ExportBlocks(export_id, blocks, versions):
            transfers.export_blocks(export_id, blocks, versions)
        case ConnectPeer(worker, incarnation, export):
            transfers.add_source(worker, incarnation, export)
        case ForgetPeer(worker, incarnation):
            transfers.forget_source(worker, incarnation)


def perform_on_tiers(
    effect: StageBlocks
    | KeepStaged
    | DropStaged
    | CopyBlocks
    | ForgetBlocks
    | FetchBlocks
    | EndFetch,
    tiers: TierPort,
) -> None:
    """Have one effect on the slower tiers done."""
    match effect:
        case StageBlocks(copy_id, blocks):
            tiers.stage_blocks(copy_id, blocks)
        case KeepStaged(copy_id, tier, rows, names):
            tiers.keep_staged(copy_id, tier, rows, names)
        case DropStaged(copy_id):
            tiers.drop_staged(copy_id)
        case CopyBlocks(copy_id, source, target, names):
            tiers.copy_between_tiers(copy_id, source, target, names)
        case ForgetBlocks(tier, digests):
            tiers.forget_in_tier(tier, digests)
        case FetchBlocks(fetch_id, tiers_of_blocks, names, target_blocks):
            tiers.fetch_blocks(fetch_id, tiers_of_blocks, names, target_blocks)
        case EndFetch(fetch_id):
            tiers.end_fetch(fetch_id)
