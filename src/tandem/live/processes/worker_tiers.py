"""Puts the slower tiers of a worker together: the memory, the file and the way to the shared pool
that its setup names."""

import logging
from dataclasses import dataclass, replace
from typing import Final

from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.config.cluster.tiers import has_tiers, worker_tier_bytes
from tandem.config.kv_format import block_format
from tandem.config.processes import WorkerSetup
from tandem.facts.errors import EngineFailed, InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.store import KvStore
from tandem.kv.tiers.contract import TierCalls, TierEngineConfig
from tandem.kv.tiers.device import device_blocks
from tandem.kv.tiers.engine import TierEngine
from tandem.kv.tiers.pool.client import PoolClient
from tandem.live.clock import now_ns
from tandem.live.driver import Inbox
from tandem.live.processes.stores import local_stores, pool_client, tiers_config
from tandem.live.processes.worker_rank import PlannedWorker

logger = logging.getLogger(__name__)

# What lies staged at once.
STAGING_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class WorkerTiers:
    """`config` is what the node machine knows of them. `engine` moves the blocks, and the inbox
    gets the end of each order. `pool` is the way to the shared pool, None where there is none; it
    belongs to the engine, as all stores do."""

    config: TiersConfig
    engine: TierEngine
    pool: PoolClient | None


def make_tiers(planned: PlannedWorker, store: KvStore, inbox: Inbox) -> WorkerTiers | None:
    """The tiers below the device whose blocks `store` holds; None where the worker has none. Raises
    `InvalidConfiguration`."""
    setup = planned.setup
    if not has_tiers(setup.cluster):
        return None
    plan = planned.model.plan
    own = block_format(plan.worker.root, plan.layout)
    config = _config(setup, own)
    transfer = choose_transfer(setup.options.native_kernels, setup.options.instruction_set)
    stores = local_stores(setup.worker, config, setup.cluster.tiers.disk, own, transfer)
    if Tier.DISK in stores:
        config = replace(config, found=stores[Tier.DISK].stored_blocks())
    pool: PoolClient | None = None
    if config.remote:
        assert setup.shared_format is not None
        pool = stores[Tier.REMOTE] = pool_client(setup, setup.shared_format, transfer)
    engine = TierEngine(
        device_blocks(store, transfer),
        stores,
        TierEngineConfig(
            staging_bytes=config.limits.staged_blocks * own.block_bytes,
            pinned=plan.device.type != "cpu",
        ),
        TierCalls(
            inbox.enqueue_threadsafe,
            lambda: inbox.fail(EngineFailed("a thread of the KV tiers failed")),
            now_ns,
        ),
    )
    return WorkerTiers(config, engine, pool)


def _config(setup: WorkerSetup, own: BlockFormat) -> TiersConfig:
    """Raises `InvalidConfiguration`."""
    cluster = setup.cluster
    sizes = worker_tier_bytes(cluster.tiers)
    capacities = {tier: size // own.block_bytes for tier, size in sizes.items() if size}
    for tier, blocks in capacities.items():
        if blocks < 1:
            raise InvalidConfiguration(
                f"tiers.{tier}: a block takes {own.block_bytes:,} bytes; choose a larger capacity"
            )
    shared = setup.shared_format
    remote = shared is not None
    # The pool keeps blocks of any content apart by their names, as long as they have one size.
    if shared is not None and own.block_bytes != shared.block_bytes:
        logger.warning(
            "worker %s has blocks of another size than the shared pool, and does without it",
            setup.worker,
        )
        remote = False
    limits = TierLimits.within(capacities.values(), STAGING_BYTES // own.block_bytes)
    return tiers_config(cluster, capacities, limits, remote=remote)
