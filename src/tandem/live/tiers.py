"""The slower tiers of a worker: who moves the blocks, and the way to the shared pool."""

from dataclasses import dataclass

from tandem.kv.tiers.engine import TierEngine
from tandem.kv.tiers.pool.client import PoolClient


@dataclass(frozen=True, slots=True)
class LiveTiers:
    """`engine` tells the inbox how each order of the node machine ended. `pool` is None where there
    is no shared pool; it belongs to the engine, as all stores do."""

    engine: TierEngine
    pool: PoolClient | None

    def stop_tiers(self) -> None:
        """In bounded time; afterwards nobody is told anything."""
        self.engine.stop_tiers()
