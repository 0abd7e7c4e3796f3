"""For KV in memory that no connector reaches: nothing moves, and what was to come is computed."""

from collections.abc import Callable
from dataclasses import dataclass

from tandem.facts.kv_export import Endpoint, KvExport, MoveKv, MoveReport


@dataclass(frozen=True, slots=True)
class StillMover:
    """A `live.node.Mover` that has nothing to do. `why` is told of every move."""

    why: str
    ended: Callable[[int, MoveReport], None]
    published: Callable[[int], None]

    def endpoints(self) -> tuple[Endpoint, ...]:
        return ()

    def connect(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Nothing is ever read from it."""

    def forget(self, worker: str, incarnation: str) -> None:
        """Nothing was."""

    def start(self, move_id: int, order: MoveKv) -> None:
        problem = f"{self.why}: nothing of {order.source} can be read"
        self.ended(move_id, MoveReport(arrived=False, problem=problem))

    def stop(self, move_id: int) -> None:
        """It has ended already."""

    def publish(
        self, publication_id: int, blocks: tuple[int, ...], generations: tuple[int, ...]
    ) -> None:
        """Nobody can read them, and so nobody needs their headers."""
        assert len(blocks) == len(generations)
        self.published(publication_id)

    def close(self) -> None:
        """Nothing is open."""
