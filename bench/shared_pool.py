"""Times the shared pool beside a raw socket, in the same run: blocks of 2,000 tokens written to a
process of the pool and read from it, checked at both ends, beside as many bytes copied between the
same two processes without any care.

Usage: python bench/shared_pool.py [--repetitions N] [--block-kib N ...] [--blocks N]
"""

import argparse
import asyncio
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from figures import Figure, show, write
from limits import summarised
from tandem.cluster.shared_pool.machine import PoolNodeConfig, PoolNodeMachine
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import choose_transfer
from tandem.kv.connectors.tcp.protocol import Credentials
from tandem.kv.connectors.tcp.stream import listening_socket
from tandem.kv.tiers.block_records import BlockTags
from tandem.kv.tiers.contract import TierCalls
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.pool.client import PoolClient, PoolClientTerms
from tandem.kv.tiers.pool.protocol import batch_blocks, incarnation_proof
from tandem.kv.tiers.pool.server import PoolServer, PoolTerms
from tandem.kv.tiers.pool.stores import PoolStores
from tandem.live.pool_node import PoolInbox, PoolNode, Replicas
from tandem.messages.cluster import PROTOCOL, RegisterPoolNode

SECRET = b"of this benchmark alone"
ROOT = b"of a benchmark.."
START = "the only one"
TOKENS, BLOCK_TOKENS = 2_000, 16
# After these the memory of the pool is full: every write takes the place of an older block.
WARMUPS = 4


def serve(block_bytes: int, capacity_blocks: int) -> None:
    """The other process: one of the pool without gateways, and a raw socket beside it."""
    block_format, transfer = BlockFormat(ROOT, block_bytes), choose_transfer()
    tags = BlockTags(SECRET, block_format, transfer)
    limits = TierLimits(stagings=16, copies=1, copy_blocks=batch_blocks(block_bytes))
    tiers = TiersConfig({Tier.HOST: capacity_blocks}, limits=limits)
    memory = HostStore(tags.stored, capacity_blocks + limits.slack_blocks, transfer)
    inbox = PoolInbox()
    calls = TierCalls(lambda _: None, lambda: None, time.monotonic_ns)
    stores = PoolStores({Tier.HOST: memory}, tags.stored, calls)
    register = RegisterPoolNode(PROTOCOL, "", "pool-0", START, "", block_format, capacity_blocks)
    machine = PoolNodeMachine(PoolNodeConfig(register, tiers), time.monotonic_ns())
    replicas = Replicas(stores, client_of(block_format), tags.stored, inbox)
    node = PoolNode(machine, inbox, stores, replicas)
    credentials = Credentials(SECRET, incarnation_proof(START))
    terms = PoolTerms(tags, credentials, secrets.token_bytes)
    server = PoolServer(listening_socket("127.0.0.1", 0), terms, node.coordinator)
    raw = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(raw,), daemon=True).start()
    print(server.port, raw.getsockname()[1], flush=True)
    asyncio.run(node.run({}))


def echo(listening: socket.socket) -> None:
    """A request is a direction and a count: takes or sends so many bytes."""
    connection, _ = listening.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(1 << 30))
    while head := connection.recv(9, socket.MSG_WAITALL):
        count = int.from_bytes(head[1:], "little")
        if head[:1] == b"<":
            connection.sendall(memory[:count])
        else:
            fill(connection, memory[:count])
            connection.sendall(b"!")


def fill(connection: socket.socket, memory: memoryview) -> None:
    while len(memory):
        memory = memory[connection.recv_into(memory) :]


def client_of(block_format: BlockFormat) -> PoolClient:
    return PoolClient(
        PoolClientTerms(
            block_format, SECRET, SECRET, choose_transfer(), secrets.token_bytes, time.monotonic_ns
        )
    )


@contextmanager
def other_process(block_bytes: int, capacity_blocks: int) -> Iterator[tuple[int, int]]:
    command = [sys.executable, __file__, "--serve", str(block_bytes), str(capacity_blocks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pool_port, raw_port = map(int, process.stdout.readline().split())
        try:
            yield pool_port, raw_port
        finally:
            process.kill()


def bench(block_bytes: int, blocks: int, repetitions: int) -> list[Figure]:
    block_format = BlockFormat(ROOT, block_bytes)
    rows = np.random.default_rng(1).integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
    room = np.zeros_like(rows)
    count = rows.nbytes.to_bytes(8, "little")
    client = client_of(block_format)
    with (
        other_process(block_bytes, 2 * blocks) as (pool_port, raw_port),
        ExitStack() as undo,
        socket.create_connection(("127.0.0.1", raw_port)) as raw,
    ):
        undo.callback(client.close_store)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.connect_pool_node("pool-0", START, f"127.0.0.1:{pool_port}")

        def send_raw(_: list[BlockName]) -> None:
            raw.sendall(b">" + count)
            raw.sendall(rows.data.cast("B"))
            fill(raw, memoryview(bytearray(1)))

        def receive_raw(_: list[BlockName]) -> None:
            raw.sendall(b"<" + count)
            fill(raw, room.data.cast("B"))

        def put(names: list[BlockName]) -> None:
            assert len(client.put_blocks(names, list(rows)).digests) == blocks

        def get(names: list[BlockName]) -> None:
            assert client.get_blocks(names, list(room)).blocks == blocks

        works: dict[str, Callable[[list[BlockName]], None]] = {
            "raw send": send_raw,
            "put": put,
            "raw receive": receive_raw,
            "get": get,
            "put again": put,
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for repetition in range(repetitions + WARMUPS):
            names = chain(repetition, blocks)
            for name, work in works.items():
                begin = time.perf_counter()
                work(names)
                if repetition >= WARMUPS:
                    seconds[name].append(time.perf_counter() - begin)
        assert (room == rows).all()
    found = []
    for name, limit in (("put", "raw send"), ("get", "raw receive")):
        ours, most = summarised(seconds[name]), summarised(seconds[limit])
        rate = rows.nbytes / ours.median / 1e9
        spread = rate * ours.spread / ours.median
        title = f"{name} {blocks} blocks of {block_bytes >> 10} KiB"
        found.append(
            Figure(title, rate, "GB/s", spread, rows.nbytes / most.median / 1e9, limit, "≥ 0.50")
        )
    again = summarised(seconds["put again"])
    title = f"put what is there, {blocks} blocks"
    found.append(Figure(title, again.median * 1e3, "ms", again.spread * 1e3))
    return found


def chain(number: int, blocks: int) -> list[BlockName]:
    digests = [bytes((number, 1)) + block.to_bytes(14, "little") for block in range(blocks)]
    return [BlockName(digest, digest, digests[0]) for digest in digests]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--block-kib", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--blocks", type=int, default=TOKENS // BLOCK_TOKENS)
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/shared_pool.json"))
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    figures = []
    for kib in arguments.block_kib:
        # Large blocks would fill the memory of a small machine.
        blocks = max(8, min(arguments.blocks, (256 << 10) // kib // 4))
        figures += bench(kib << 10, blocks, arguments.repetitions)
    show(figures, "the shared pool")
    write(figures, arguments.out)


if __name__ == "__main__":
    main()
