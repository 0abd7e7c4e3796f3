"""A process of the shared pool of a cluster: keeps KV blocks for all workers until it has to leave.
It has no tensors, so nothing it imports may import torch."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import tandem
from tandem.api.clock_and_entropy import fresh_chance
from tandem.cluster.shared_pool.contents import HotBlocksConfig
from tandem.cluster.shared_pool.machine import PoolNodeConfig, PoolNodeMachine
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.config.cluster.live import gateway_options
from tandem.config.cluster.tiers import pool_node_bytes
from tandem.config.cluster.workers import RemoteTierConfig
from tandem.config.environment import host_facts
from tandem.config.memory import refused_blocks
from tandem.config.processes import PoolNodeSetup, read_setup
from tandem.facts.errors import EngineFailed, InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import Transfer, choose_transfer
from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.tcp.protocol import Credentials
from tandem.kv.connectors.tcp.stream import listening_socket
from tandem.kv.tiers.block_records import BlockTags
from tandem.kv.tiers.contract import BlockStore, TierCalls, TierEvent
from tandem.kv.tiers.pool.protocol import batch_blocks, incarnation_proof
from tandem.kv.tiers.pool.server import BUFFERS, PoolServer, PoolTerms
from tandem.kv.tiers.pool.stores import CHUNK_BYTES, CHUNKS, PoolStores
from tandem.kv.tiers.redis import RedisStore
from tandem.kv.tiers.redis_client import RedisConfig
from tandem.live.clock import now_ns
from tandem.live.pool_node import PoolInbox, PoolNode, Replicas
from tandem.live.processes.connectors import (
    block_secret,
    own_address,
    random_bytes,
    transfer_secret,
)
from tandem.live.processes.lifecycle import (
    StartUp,
    end_as,
    end_with_parent,
    log_of_process,
    loop_runner,
    run_to_the_end,
)
from tandem.live.processes.member import LINGER_S, run_member
from tandem.live.processes.stores import local_stores, pool_client, tiers_config
from tandem.messages.cluster import PROTOCOL, RegisterPoolNode
from tandem.messages.node import BlocksKept, Leave

# Under its own name, which is another one while this is what was started.
logger = logging.getLogger("tandem.live.processes.shared_pool")

# A server that hangs is given up before clients give up this process, which has other blocks too.
REDIS_CONNECT_S: Final = 0.5
REDIS_SILENCE_S: Final = 1.0
# Memory goes down in so many copies at once, each so small a part of it at most.
COPIES: Final = 4
LEAST_SHARE: Final = 32
SMALL_COPY_BLOCKS: Final = 16


def run_pool_node(setup: PoolNodeSetup) -> None:
    """Until it has to leave. Raises `SystemExit` as `end_as`."""
    end_with_parent(setup.parent)
    log_of_process(gateway_options(setup.cluster, ()), setup.node)
    end_as(setup.node, lambda: _run(setup))


def _run(setup: PoolNodeSetup) -> Leave:
    startup = StartUp(setup.node)
    startup.so_far("import")
    block_format, inbox = setup.shared_format, PoolInbox()
    options = gateway_options(setup.cluster, ())
    transfer = choose_transfer(options.native_kernels, options.instruction_set)
    tags = BlockTags(block_secret(setup), block_format, transfer)
    with ExitStack() as undo:
        with startup.phase("memory"):
            tiers = tiers_of(setup)
            check_memory(setup, tiers, tags.stored, host_facts().free_memory_bytes)
            by_tier = _stores(setup, tiers, tags.stored, transfer)
        with startup.phase("what was kept"):
            tiers = _with_found(tiers, by_tier)
        stores = PoolStores(by_tier, tags.stored, _calls(inbox))
        undo.callback(stores.stop_stores, LINGER_S)
        client = pool_client(setup, block_format, transfer, tagged=True)
        replicas = Replicas(stores, client, tags.stored, inbox)
        undo.callback(replicas.close, LINGER_S)
        listening = _listening(setup)
        undo.callback(listening.close)
        register = RegisterPoolNode(
            protocol=PROTOCOL,
            version=tandem.__version__,
            worker=setup.node,
            incarnation=f"{os.getpid():x}-{now_ns():x}",
            address=_address(listening.getsockname()),
            format=block_format,
            capacity_blocks=sum(tiers.capacities.values()),
        )
        config = PoolNodeConfig(
            register, tiers, HotBlocksConfig(replicas=remote_of(setup).replicas)
        )
        node = PoolNode(PoolNodeMachine(config, now_ns()), inbox, stores, replicas)
        credentials = Credentials(transfer_secret(setup), incarnation_proof(register.incarnation))
        terms = PoolTerms(tags, credentials, random_bytes)
        failure = EngineFailed("the port of the shared pool failed")
        server = PoolServer(listening, terms, node.coordinator, lambda: inbox.fail(failure))
        undo.callback(server.stop_serving, LINGER_S)
        startup.ready()
        with loop_runner() as runner:
            return runner.run(run_member(setup, register, inbox, node.run))


def remote_of(setup: PoolNodeSetup) -> RemoteTierConfig:
    """The tier that the process is a part of."""
    remote = setup.cluster.tiers.remote
    assert remote is not None
    return remote


def tiers_of(setup: PoolNodeSetup) -> TiersConfig:
    """How much it keeps, and how. Raises `InvalidConfiguration`."""
    remote, block_bytes = remote_of(setup), setup.shared_format.block_bytes
    if remote.disk is not None and remote.redis is not None:
        raise InvalidConfiguration("tiers.remote: disk and redis exclude each other; name one")
    capacities = {tier: size // block_bytes for tier, size in pool_node_bytes(remote).items()}
    if min(capacities.values()) < 1:
        raise InvalidConfiguration(
            f"tiers.remote: a block takes {block_bytes} bytes, and {setup.node} has room for "
            "none; choose a larger capacity"
        )
    together = max(SMALL_COPY_BLOCKS, batch_blocks(block_bytes))
    together = min(together, capacities[Tier.HOST] // LEAST_SHARE)
    # Of what clients bring at once, each buffer may be about to be written.
    limits = TierLimits(stagings=BUFFERS, copies=COPIES, copy_blocks=max(1, together))
    return tiers_config(setup.cluster, capacities, limits)


def check_memory(
    setup: PoolNodeSetup, tiers: TiersConfig, stored: BlockFormat, free_bytes: int
) -> None:
    """Raises `InvalidConfiguration` when it does not fit into what is free here."""
    # For clients, each buffer a batch; for what goes to another process; for what goes down.
    batches = (BUFFERS + 1) * batch_blocks(setup.shared_format.block_bytes)
    moving = CHUNKS * max(1, CHUNK_BYTES // stored.block_bytes)
    besides = tiers.limits.slack_blocks + batches + moving
    if problem := refused_blocks(
        f"{setup.node}: tiers.remote",
        tiers.capacities[Tier.HOST] * stored.block_bytes,
        free_bytes,
        beside_bytes=besides * stored.block_bytes,
        beside="what is on its way",
    ):
        raise InvalidConfiguration(problem)


def _stores(
    setup: PoolNodeSetup, tiers: TiersConfig, block_format: BlockFormat, transfer: Transfer
) -> dict[Tier, BlockStore]:
    """Raises `InvalidConfiguration`."""
    remote = remote_of(setup)
    stores = local_stores(setup.node, tiers, remote.disk, block_format, transfer)
    if remote.redis is not None:
        redis = RedisConfig(
            remote.redis,
            tiers.capacities[Tier.DISK],
            owner=setup.node,
            password=password_of(setup),
            connect_s=REDIS_CONNECT_S,
            silence_s=REDIS_SILENCE_S,
            call_s=REDIS_SILENCE_S,
            chance=fresh_chance,
        )
        secret = block_secret(setup)
        stores[Tier.DISK] = RedisStore(redis, block_format, transfer, now_ns, secret=secret)
    return stores


def password_of(setup: PoolNodeSetup) -> Callable[[], str] | None:
    """Of the server; None where the URL has it, or it needs none. A file is read at every
    connection, so that the password can be changed."""
    if (password_file := remote_of(setup).redis_password_file) is not None:
        file = Path(password_file)
        return lambda: file.read_text().strip()
    return (lambda: setup.redis_password) if setup.redis_password else None


def _with_found(tiers: TiersConfig, stores: Mapping[Tier, BlockStore]) -> TiersConfig:
    """What lies there from before the start is found again."""
    if Tier.DISK not in stores:
        return tiers
    store = stores[Tier.DISK]
    found = store.stored_blocks()
    if isinstance(store, RedisStore) and store.problem:
        logger.warning("nothing is found again yet: %s", store.problem)
    return replace(tiers, found=found)


def _calls(inbox: PoolInbox) -> TierCalls:
    def answered(event: TierEvent) -> None:
        assert isinstance(event, BlocksKept)
        inbox.enqueue_threadsafe(event)

    failure = EngineFailed("a store of the shared pool failed")
    return TierCalls(answered, lambda: inbox.fail(failure), now_ns)


def _listening(setup: PoolNodeSetup) -> socket.socket:
    """Raises `InvalidConfiguration`."""
    try:
        return listening_socket(*place_of(setup))
    except ConnectorError as error:
        raise InvalidConfiguration(f"{setup.node}: {error}") from error


def place_of(setup: PoolNodeSetup) -> tuple[str, int]:
    """Where to listen; port 0 is any free one. Raises `InvalidConfiguration`."""
    listen = setup.listen or own_address(setup.gateways)
    if listen.count(":") > 1 and not listen.startswith("["):
        # An address of IPv6 alone.
        return listen, 0
    parts = urlsplit(f"//{listen}")
    if not parts.hostname:
        raise InvalidConfiguration(f"{setup.node}: listen is {listen!r}; expected address:port")
    return parts.hostname, parts.port or 0


def _address(name: tuple[str | int, ...]) -> str:
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main() -> None:
    """What a launcher starts as `python -m`; the last word names the file with the set-up."""
    run_pool_node(read_setup(PoolNodeSetup, Path(sys.argv[-1])))


if __name__ == "__main__":
    run_to_the_end(main)
