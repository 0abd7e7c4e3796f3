"""The slower tiers of a worker: hands each effect of its node machine to whoever performs it."""

from dataclasses import dataclass

from tandem.kv.tiers.engine import TierEngine
from tandem.kv.tiers.pool.client import PoolClient
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
                engine.stage_blocks(copy_id, blocks)
            case KeepStaged(copy_id, tier, rows, names):
                engine.keep_staged(copy_id, tier, rows, names)
            case DropStaged(copy_id):
                engine.drop_staged(copy_id)
            case CopyBlocks(copy_id, source, target, names):
                engine.copy_between_tiers(copy_id, source, target, names)
            case ForgetBlocks(tier, digests):
                engine.forget_in_tier(tier, digests)
            case FetchBlocks(fetch_id, tiers, names, target_blocks):
                engine.fetch_blocks(fetch_id, tiers, names, target_blocks)
            case EndFetch(fetch_id):
                engine.end_fetch(fetch_id)
            case ConnectPoolNode(node, incarnation, address):
                assert self.pool is not None
                self.pool.connect_pool_node(node, incarnation, address)
            case ForgetPoolNode(node, incarnation):
                assert self.pool is not None
                self.pool.disconnect_pool_node(node, incarnation)

    def stop_tiers(self) -> None:
        """In bounded time; afterwards nobody is told anything."""
        self.engine.stop_tiers()
