"""The stores of KV tiers, as workers and processes of the shared pool have them alike: memory, a
file, and the way to the shared pool."""

import logging
from collections.abc import Mapping
from pathlib import Path

from tandem.api.clock_and_entropy import fresh_chance
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.tiers import tenant_pin_shares, tenant_shares
from tandem.config.cluster.workers import DiskTierConfig
from tandem.config.policies import eviction_order
from tandem.config.processes import PoolNodeSetup, WorkerSetup
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import Transfer
from tandem.kv.tiers.contract import BlockStore
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.pool.client import PoolClient, PoolClientTerms
from tandem.live.clock import now_ns
from tandem.live.processes.connectors import block_secret, random_bytes, transfer_secret

logger = logging.getLogger(__name__)


def tiers_config(
    cluster: Cluster, capacities: Mapping[Tier, int], limits: TierLimits, *, remote: bool = False
) -> TiersConfig:
    """Tiers of so many blocks, with what the cluster file has for all: eviction, quotas, pins."""
    return TiersConfig(
        capacities,
        eviction_order(cluster),
        remote=remote,
        quotas=tenant_shares(cluster),
        pin_share=cluster.tiers.pin_share,
        pin_shares=tenant_pin_shares(cluster),
        limits=limits,
    )


def local_stores(
    process: str,
    config: TiersConfig,
    disk: DiskTierConfig | None,
    block_format: BlockFormat,
    transfer: Transfer,
) -> dict[Tier, BlockStore]:
    """Memory, and the file of that process in the folder of `disk`, where there are such tiers.
    Raises `InvalidConfiguration`."""
    spare = config.limits.slack_blocks
    stores: dict[Tier, BlockStore] = {}
    # Memory first: where there is not enough of it nothing else is touched.
    if Tier.HOST in config.capacities:
        memory = HostStore(block_format, config.capacities[Tier.HOST] + spare, transfer)
        memory.warm()
        stores[Tier.HOST] = memory
    if disk is not None:
        assert disk.path is not None
        file = DiskConfig(Path(disk.path) / f"{process}.kv", config.capacities[Tier.DISK], spare)
        store = DiskStore(file, block_format, transfer)
        for note in store.notes:
            logger.warning("%s: %s", process, note)
        stores[Tier.DISK] = store
    return stores


def pool_client(
    setup: WorkerSetup | PoolNodeSetup,
    block_format: BlockFormat,
    transfer: Transfer,
    *,
    tagged: bool = False,
) -> PoolClient:
    """The way to the shared pool, whose blocks have that format; `tagged` as of
    `PoolClientTerms`."""
    terms = PoolClientTerms(
        block_format,
        transfer_secret(setup),
        block_secret(setup),
        transfer,
        random_bytes,
        now_ns,
        tagged=tagged,
        chance=fresh_chance,
    )
    return PoolClient(terms)
