"""The transfer engine for KV in memory that no connector reaches: no transfer arrives, and what was
to come is computed."""

from collections.abc import Callable
from dataclasses import dataclass

from tandem.facts.kv_export import Endpoint, KvExport, MoveKv, MoveReport


@dataclass(frozen=True, slots=True)
class NullTransfer:
    """A `live.node.TransferEngine` that has nothing to do. `why` is told of every transfer."""

    why: str
    transfer_ended: Callable[[int, MoveReport], None]
    blocks_exported: Callable[[int], None]

    def endpoints(self) -> tuple[Endpoint, ...]:
        return ()

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Nothing is ever read from it."""

    def forget_source(self, worker: str, incarnation: str) -> None:
        """Nothing was."""

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        problem = f"{self.why}: nothing of {order.source} can be read"
        self.transfer_ended(move_id, MoveReport(arrived=False, problem=problem))

    def stop_transfer(self, move_id: int) -> None:
        """It has ended already."""

    def export_blocks(
        self, export_id: int, blocks: tuple[int, ...], versions: tuple[int, ...]
    ) -> None:
        """Nobody can read them, and so nobody needs their metadata."""
        assert len(blocks) == len(versions)
        self.blocks_exported(export_id)

    def stop_transfers(self) -> None:
        """Nothing is open."""
