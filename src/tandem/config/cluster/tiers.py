"""KV tiers of a live cluster: what is refused, the size and folder of each process's part, and the
shares of tenants."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tandem.config.cluster.file import Cluster, worker_names
from tandem.config.cluster.workers import RemoteTierConfig, TierConfigs
from tandem.config.environment import cache_directory
from tandem.facts.fleet import Tier

REDIS_URLS = ("redis://", "rediss://", "unix://")


def refused_tiers(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """What cannot be, each with its place in the file."""
    tiers = cluster.tiers
    if not has_tiers(cluster):
        if cluster.policies.eviction.name != "lru":
            yield (
                "policies.eviction",
                "a live worker evicts the block used longest ago from its device; without tiers "
                "write lru, or leave it out",
            )
        if tiers.longest_pause_s:
            yield (
                "tiers.longest_pause",
                "tiers.longest_pause: KV of a session that pauses goes to a slower tier, and there "
                "is none; name tiers.host, tiers.disk or tiers.remote",
            )
        return
    if cluster.policies.eviction.parameters:
        yield "policies.eviction", f"eviction {cluster.policies.eviction.name} takes no parameters"
    for index, pool in enumerate(cluster.pools):
        ranks = pool.tensor_parallel * pool.pipeline_parallel
        if ranks > 1:
            key = "tensor_parallel" if pool.tensor_parallel > 1 else "pipeline_parallel"
            yield (
                f"pools.{index}.{key}",
                f"pool {pool.name}: tiers are for workers of one rank in this version; write "
                f"{key}: 1, or leave out the tiers",
            )
        if tiers.remote is not None and pool.name == "pool":
            yield (
                f"pools.{index}.name",
                "the processes of the remote tier are called pool-0, pool-1, ...; give these "
                "workers another name",
            )
    if tiers.disk is not None:
        yield from _refused_folder("tiers.disk", tiers.disk.path)
    if tiers.remote is None:
        return
    if tiers.remote.disk is not None and tiers.remote.redis is not None:
        yield (
            "tiers.remote.redis",
            "tiers.remote: what its memory does not hold goes to a disk or to Redis, not to both",
        )
    if tiers.remote.redis is not None and not tiers.remote.redis.startswith(REDIS_URLS):
        # Without the URL: there may be a password in it.
        yield (
            "tiers.remote.redis",
            "tiers.remote: no URL of a server; expected redis://[user:password@]host:port/db, "
            "rediss://... or unix://...",
        )
    yield from _refused_password(tiers.remote)
    if tiers.remote.redis is not None and tiers.remote.redis_capacity_bytes <= 0:
        yield (
            "tiers.remote.redis",
            "tiers.remote: how much may the server hold? Write redis_capacity: 10GiB",
        )
    if tiers.remote.disk is not None:
        yield from _refused_folder("tiers.remote.disk", tiers.remote.disk.path)


def _refused_password(remote: RemoteTierConfig) -> Iterator[tuple[str, str]]:
    """A password that is named twice, or that no server needs."""
    key = "redis_password_file" if remote.redis_password_file else "redis_password_env"
    sources = [remote.redis_password_file, remote.redis_password_env]
    if not any(sources):
        return
    if all(sources):
        yield f"tiers.remote.{key}", "tiers.remote: name a file or a variable for the password"
    if remote.redis is None:
        yield f"tiers.remote.{key}", f"tiers.remote: {key} is for a server, and redis names none"
    elif urlsplit(remote.redis).password:
        yield f"tiers.remote.{key}", "tiers.remote: there is a password in the URL, too"


def refused_sizes(cluster: Cluster, block_bytes: int) -> Iterator[tuple[str, str]]:
    """The same of what depends on how many bytes a block has."""
    tiers = cluster.tiers
    sizes = {f"tiers.{tier}": size_bytes for tier, size_bytes in worker_tier_bytes(tiers).items()}
    if remote := tiers.remote:
        behind = "tiers.remote.disk" if remote.disk is not None else "tiers.remote.redis"
        for tier, size_bytes in pool_node_bytes(remote).items():
            sizes["tiers.remote" if tier is Tier.HOST else behind] = size_bytes
    for place, size_bytes in sizes.items():
        if size_bytes < block_bytes:
            yield (
                place,
                f"{place}: a block of this model has {block_bytes:,} bytes, and each process would "
                f"have room for {size_bytes:,}; give it more",
            )


def has_tiers(cluster: Cluster) -> bool:
    tiers = cluster.tiers
    return tiers.host is not None or tiers.disk is not None or tiers.remote is not None


def pool_nodes(cluster: Cluster) -> tuple[str, ...]:
    """Names of the processes of the shared pool."""
    remote = cluster.tiers.remote
    return tuple(f"pool-{index}" for index in range(remote.nodes if remote else 0))


def process_names(cluster: Cluster) -> Iterator[str]:
    """Of everybody whom a supervisor may start, beside gateways."""
    for pool in cluster.pools:
        yield from worker_names(pool)[: cluster.most_workers(pool)]
    yield from pool_nodes(cluster)


def worker_tier_bytes(tiers: TierConfigs) -> dict[Tier, int]:
    """Room in each slower tier of one worker's own."""
    own = {Tier.HOST: tiers.host, Tier.DISK: tiers.disk}
    return {tier: int(config.capacity_bytes) for tier, config in own.items() if config is not None}


def pool_node_bytes(remote: RemoteTierConfig) -> dict[Tier, int]:
    """Room in each tier of one process of the shared pool; Redis stands where a disk would."""
    sizes = {Tier.HOST: remote.capacity_bytes}
    if remote.disk is not None:
        sizes[Tier.DISK] = remote.disk.capacity_bytes
    elif remote.redis is not None:
        sizes[Tier.DISK] = remote.redis_capacity_bytes
    return {tier: int(size_bytes / remote.nodes) for tier, size_bytes in sizes.items()}


def with_folders(cluster: Cluster) -> Cluster:
    """The cluster whose disk tiers name the folder that they lie in, as seen from here."""
    tiers = cluster.tiers
    if tiers.disk is not None:
        folder = str(disk_folder(cluster, tiers.disk.path))
        tiers = replace(tiers, disk=replace(tiers.disk, path=folder))
    if tiers.remote is not None and tiers.remote.disk is not None:
        folder = str(disk_folder(cluster, tiers.remote.disk.path))
        disk = replace(tiers.remote.disk, path=folder)
        tiers = replace(tiers, remote=replace(tiers.remote, disk=disk))
    return replace(cluster, tiers=tiers)


def tenant_shares(cluster: Cluster) -> dict[str, float]:
    """Of each slower tier, for those who may not have all of it."""
    return {tenant.name: tenant.kv_share for tenant in cluster.tenants if tenant.kv_share < 1}


def tenant_pin_shares(cluster: Cluster) -> dict[str, float]:
    """Of each slower tier, for those who may not have as much kept as all together."""
    most = cluster.tiers.pin_share
    return {each.name: each.pin_share for each in cluster.tenants if each.pin_share < most}


def disk_folder(cluster: Cluster, path: str | None) -> Path:
    """Where a disk tier keeps its files: they are still there when the cluster starts again."""
    if path is not None:
        return Path(path).expanduser().absolute()
    return cache_directory() / cluster.name / "kv"


def memory_bytes(cluster: Cluster) -> int:
    """Memory that all tiers together take where everybody runs on one machine."""
    tiers = cluster.tiers
    workers = sum(cluster.most_workers(pool) for pool in cluster.pools)
    host = int(tiers.host.capacity_bytes) * workers if tiers.host else 0
    return host + (int(tiers.remote.capacity_bytes) if tiers.remote else 0)


def _refused_folder(place: str, path: str | None) -> Iterator[tuple[str, str]]:
    """A folder that is named must be one, or be possible."""
    if path is None:
        return
    folder = Path(path).expanduser()
    if not folder.is_absolute():
        yield (
            f"{place}.path",
            f"{place}: {path} is no absolute path; write one that begins with /",
        )
    if folder.exists() and not folder.is_dir():
        yield f"{place}.path", f"{place}: {folder} is no folder"
