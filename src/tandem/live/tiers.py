"""The slower tiers of a worker: hands each effect of its node machine to whoever performs it."""

from dataclasses import dataclass

from tandem.kv.tiers.engine import TierEngine
from tandem.kv.tiers.pool_client import PoolClient
from tandem.messages.node import (
    ConnectPoolNode,
    CopyBlocks,
    DropStaged,
    EndFetch,
    FetchBlocks,
    ForgetBlocks,
    ForgetPoolNode,
    KeepStaged,
    StageBlocks,
    TierEffect,
)


@dataclass(frozen=True, slots=True)
class LiveTiers:
    """`engine` tells the inbox how each of them ended. `pool` is None where there is no shared
    pool; it belongs to the engine, as all stores do."""

    engine: TierEngine
    pool: PoolClient | None

    def perform(self, effect: TierEffect) -> None:
        """Returns at once."""
        engine = self.engine
        match effect:
            case StageBlocks(copy_id, blocks):
                engine.stage(copy_id, blocks)
            case KeepStaged(copy_id, tier, rows, names):
                engine.keep(copy_id, tier, rows, names)
            case DropStaged(copy_id):
                engine.drop(copy_id)
            case CopyBlocks(copy_id, source, target, names):
                engine.copy(copy_id, source, target, names)
            case ForgetBlocks(tier, digests):
                engine.forget(tier, digests)
            case FetchBlocks(fetch_id, tiers, names, target_blocks):
                engine.fetch(fetch_id, tiers, names, target_blocks)
            case EndFetch(fetch_id):
                engine.end_fetch(fetch_id)
            case ConnectPoolNode(node, incarnation, address):
                assert self.pool is not None
                self.pool.connect(node, incarnation, address)
            case ForgetPoolNode(node, incarnation):
                assert self.pool is not None
                self.pool.disconnect(node, incarnation)

    def close(self) -> None:
        """In bounded time; afterwards nobody is told anything."""
        self.engine.close()
