"""Small clusters: read from the text of a file, and as the set-ups of processes hold them, for
tests that start a process alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import LiveFile, read_live_cluster
from tandem.config.cluster.requests import PolicyConfig, TenantConfig
from tandem.config.cluster.workers import (
    DiskTierConfig,
    PoolConfig,
    RemoteTierConfig,
    TierConfigs,
    TransportConfig,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.health import Health
from tandem.facts.kv import BlockFormat

POOL = "p"


def written(folder: Path, text: str) -> str:
    """The path of a cluster file."""
    file = folder / "cluster.yaml"
    file.write_text(text)
    return str(file)


def live(folder: Path, text: str, *overrides: str) -> LiveFile:
    return read_live_cluster(written(folder, text), overrides)


def mistake(reader: Callable[..., object], folder: Path, text: str, *overrides: str) -> str:
    """How a reader of cluster files refuses this one."""
    with pytest.raises(InvalidConfiguration) as caught:
        reader(folder, text, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def cluster_of_one(
    *,
    health: Health | None = None,
    connectors: tuple[str, ...] | None = None,
    wire_dtype: str | None = None,
    tiers: TierConfigs | None = None,
    tenants: tuple[TenantConfig, ...] = (),
    **pool: Any,
) -> Cluster:
    """One pool of workers on a CPU; what else is given is the pool's."""
    return Cluster(
        model="tandem-mini",
        pools=(PoolConfig(POOL, "cpu", **pool),),
        health=health or Health(),
        transport=TransportConfig(connectors, wire_dtype),
        tiers=tiers or TierConfigs(),
        policies=PolicyConfig(),
        tenants=tenants,
    )


def shared_pool_of_one(
    capacity_bytes: float,
    *,
    disk: str | None = None,
    disk_bytes: float = 0,
    redis: str | None = None,
    redis_bytes: float = 0,
    quotas: dict[str, float] | None = None,
) -> Cluster:
    """A shared pool that is one process, with room behind its memory on a disk or in Redis."""
    remote = RemoteTierConfig(
        capacity_bytes,
        disk=DiskTierConfig(disk_bytes, path=disk) if disk is not None else None,
        redis=redis,
        redis_capacity_bytes=redis_bytes,
    )
    tenants = tuple(TenantConfig(name, kv_share=share) for name, share in (quotas or {}).items())
    return cluster_of_one(tiers=TierConfigs(remote=remote), tenants=tenants)


def node_setup(
    shared_format: BlockFormat, capacity_bytes: float, changes: dict[str, Any]
) -> dict[str, Any]:
    """The fields of a `PoolNodeSetup` that say what it keeps: those of `shared_pool_of_one` among
    `changes` make its cluster, the others stay."""
    tier_keys = ("capacity_bytes", "disk", "disk_bytes", "redis", "redis_bytes", "quotas")
    of_tier = {key: changes[key] for key in tier_keys if key in changes}
    kept = {key: value for key, value in changes.items() if key not in tier_keys}
    cluster = shared_pool_of_one(**{"capacity_bytes": capacity_bytes, **of_tier})
    return {"shared_format": shared_format, "cluster": cluster, **kept}
