"""Times the moving of KV between two processes beside what the machine can do, in the same run.

The KV is that of 7,500 tokens of a model of Llama 3's 8B shape: 469 blocks of 2 MiB, scattered at
both ends. "with checks" reads the metadata before and their versions after, and verifies every
checksum, a few chunks in flight. Usage: python bench/connectors.py [--repetitions N] [--blocks N]
"""

import argparse
import ctypes
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from figures import Figure, show, write
from limits import Summary, summarised
from tandem.kernels.transfer import Transfer, choose_transfer
from tandem.kv.connectors.contract import Connector, ConnectorError, Spans
from tandem.kv.connectors.nixl import NixlConnector
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp.connector import TcpConnector
from tandem.kv.layout import KvLayout, RegionLayout
from tandem.kv.region import SharedRegion
from tandem.kv.transfer.export import BlockMetadata, parse_metadata

LLAMA_8B = KvLayout(layers=32, kv_heads=8, block_size=16, head_dim=128, dtype="bfloat16")
TOKENS = 7_500
SECRET = b"of this benchmark alone"
CHUNK_BLOCKS = 4
CHUNKS_IN_FLIGHT = 4
END_S = 60.0

Work = Callable[[], object]


def make_connector(name: str, role: str) -> Connector:
    if name == "shm":
        return ShmConnector()
    if name == "tcp":
        return TcpConnector("127.0.0.1", SECRET, entropy=secrets.token_bytes)
    return NixlConnector(f"{role}-{secrets.token_hex(8)}")


def names() -> Iterator[str]:
    """The connectors that work here."""
    for name in ("shm", "tcp", "nixl"):
        try:
            make_connector(name, "probe").close_connector()
        except ConnectorError:
            continue
        yield name


def serve(blocks: int, wanted: Sequence[str]) -> None:
    """The other process: exports its memory in all ways, and sends it over a raw socket."""
    layout = RegionLayout(LLAMA_8B, blocks)
    shared = filled(layout)
    every = list(range(blocks))
    BlockMetadata(shared.view, layout, choose_transfer()).write_metadata(every, [1] * blocks)
    connectors = [make_connector(name, "source") for name in wanted]
    for connector in connectors:
        connector.register_region(shared.region, exported=True)
        print(connector.describe_endpoint().hex(), flush=True)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    pool = shared.view.data[layout.pool_offset :]
    threading.Thread(target=send_raw, args=(listening, pool), daemon=True).start()
    sys.stdin.read()
    for connector in connectors:
        connector.close_connector()


def send_raw(listening: socket.socket, pool: memoryview) -> None:
    connection, _ = listening.accept()
    with connection:
        while connection.recv(1):
            connection.sendall(pool)


def filled(layout: RegionLayout) -> SharedRegion:
    shared = SharedRegion.create(layout.bytes, "bench")
    noise = np.random.default_rng(1).integers(0, 256, LLAMA_8B.block_bytes, dtype=np.uint8)
    for block in range(layout.blocks):
        start = layout.block_offset(block)
        shared.view[start : start + len(noise)] = np.roll(noise, block)
    return shared


@dataclass(frozen=True)
class PoolReader:
    """Reads the whole pool of "peer" through one connector into a pool of the same layout."""

    connector: Connector
    handle: int
    own: SharedRegion
    layout: RegionLayout
    transfer: Transfer
    ended: set[int] = field(default_factory=set)

    def spans(self, remote_blocks: NDArray[np.int64], local_blocks: NDArray[np.int64]) -> Spans:
        block_bytes, pool = self.layout.layout.block_bytes, self.layout.pool_offset
        return Spans(
            pool + remote_blocks * block_bytes,
            pool + local_blocks * block_bytes,
            np.full(len(remote_blocks), block_bytes, dtype=np.int64),
        )

    def contiguous(self) -> None:
        every = np.arange(self.layout.blocks, dtype=np.int64)
        self.take(self.spans(every, every))

    def scattered(self, seed: int = 1) -> None:
        self.take(self.spans(*self.places(seed)))

    def places(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        generator = np.random.default_rng(seed)
        remote, local = (generator.permutation(self.layout.blocks) for _ in range(2))
        return remote.astype(np.int64), local.astype(np.int64)

    def checked(self, seed: int = 1) -> None:
        """As the KV transfer engine does it: nothing counts before its version and checksums
        agree."""
        remote, local = self.places(seed)
        self.take(self.metadata_spans())
        versions, checksums = self.metadata()
        under_way: deque[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = deque()
        for first in range(0, len(remote), CHUNK_BLOCKS):
            chunk = remote[first : first + CHUNK_BLOCKS], local[first : first + CHUNK_BLOCKS]
            handle = self.connector.begin_read("peer", self.spans(*chunk), self.handle)
            under_way.append((handle, *chunk))
            if len(under_way) == CHUNKS_IN_FLIGHT:
                self.verify(*under_way.popleft(), checksums=checksums)
        while under_way:
            self.verify(*under_way.popleft(), checksums=checksums)
        self.take(self.metadata_spans())
        assert (self.metadata()[0] == versions).all()

    def verify(
        self,
        handle: int,
        remote: NDArray[np.int64],
        local: NDArray[np.int64],
        *,
        checksums: NDArray[np.uint64],
    ) -> None:
        self.wait(handle)
        found = BlockMetadata(self.own.view, self.layout, self.transfer).computed(local)
        assert (found == checksums[remote]).all()

    def metadata_spans(self) -> Spans:
        zero = np.zeros(1, dtype=np.int64)
        return Spans(zero, zero, zero + self.layout.metadata_bytes * self.layout.blocks)

    def metadata(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        table = self.own.view[: self.layout.metadata_bytes * self.layout.blocks]
        versions, checksums = parse_metadata(table, self.layout)
        return versions.copy(), checksums.copy()

    def take(self, spans: Spans) -> None:
        self.wait(self.connector.begin_read("peer", spans, self.handle))

    def wait(self, handle: int) -> None:
        while handle not in self.ended:
            completions = self.connector.poll_completions(END_S)
            assert completions
            assert not any(completion.problem for completion in completions), completions
            self.ended.update(completion.handle for completion in completions)
        self.ended.remove(handle)

    def small(self) -> None:
        zero = np.zeros(1, dtype=np.int64)
        self.take(Spans(zero, zero, zero + 4096))


@contextmanager
def source(blocks: int, wanted: Sequence[str]) -> Iterator[tuple[dict[str, bytes], int]]:
    """The other process: the descriptions of its memory, and the port of its raw socket."""
    command = [sys.executable, __file__, "--serve", ",".join(wanted), "--blocks", str(blocks)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        descriptions = {name: bytes.fromhex(process.stdout.readline()) for name in wanted}
        yield descriptions, int(process.stdout.readline())


def side_by_side(works: Mapping[str, Work], repetitions: int) -> dict[str, Summary]:
    """Seconds of each, taken in turns: what disturbs one disturbs the others."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            # The first touches memory and fills caches.
            if repetition:
                seconds[name].append(time.perf_counter() - begin)
    return {name: summarised(values) for name, values in seconds.items()}


def bench(blocks: int, repetitions: int) -> list[Figure]:
    layout = RegionLayout(LLAMA_8B, blocks)
    own, wanted, transfer = filled(layout), list(names()), choose_transfer()
    with source(blocks, wanted) as (descriptions, raw_port):
        works: dict[str, Work] = memory_works(own, layout, transfer)
        raw = socket.create_connection(("127.0.0.1", raw_port))
        works["raw socket"] = lambda: receive_raw(raw, own.view.data[layout.pool_offset :])
        readers = []
        for name in wanted:
            connector = make_connector(name, "reader")
            handle = connector.register_region(own.region, exported=False)
            connector.connect_peer("peer", descriptions[name])
            reader = PoolReader(connector, handle, own, layout, transfer)
            readers.append(reader)
            works[f"{name} contiguous"] = reader.contiguous
            works[f"{name} scattered"] = reader.scattered
            works[f"{name} checked"] = reader.checked
        seconds = side_by_side(works, repetitions)
        small = {
            reader.connector.name: side_by_side({"small": reader.small}, 200)["small"]
            for reader in readers
        }
        for reader in readers:
            reader.connector.close_connector()
        raw.close()
    return figures_of(seconds, small, blocks * LLAMA_8B.block_bytes)


def memory_works(own: SharedRegion, layout: RegionLayout, transfer: Transfer) -> dict[str, Work]:
    other = filled(layout)
    bytes_moved = layout.bytes - layout.pool_offset
    to, origin = (region.region.address + layout.pool_offset for region in (own, other))
    every = np.arange(layout.blocks, dtype=np.int64)
    metadata = BlockMetadata(other.view, layout, transfer)
    return {
        "memcpy": lambda: ctypes.memmove(to, origin, bytes_moved),
        "read": lambda: other.view[layout.pool_offset :].view("u8").sum(),
        "checksums": lambda: metadata.computed(every),
    }


def receive_raw(connection: socket.socket, pool: memoryview) -> None:
    connection.sendall(b"?")
    received = 0
    while received < len(pool):
        received += connection.recv_into(pool[received:])


def figures_of(
    seconds: Mapping[str, Summary], small: Mapping[str, Summary], bytes_moved: int
) -> list[Figure]:
    def rate(name: str) -> float:
        return bytes_moved / seconds[name].median / 1e9

    def beside(name: str, limit: str, goal: str) -> Figure:
        spread = rate(name) * seconds[name].spread / seconds[name].median
        return Figure(name, rate(name), "GB/s", spread, rate(limit), limit, goal)

    found = [beside("checksums", "read", "")]
    for name in small:
        limit, goal = ("raw socket", "≥ 0.60") if name == "tcp" else ("memcpy", "≥ 0.80")
        goal = "" if name == "nixl" else goal
        found += [beside(f"{name} {way}", limit, goal) for way in ("scattered", "checked")]
        one, many = seconds[f"{name} contiguous"], seconds[f"{name} scattered"]
        found.append(
            Figure(
                f"{name}: scattered blocks beside one chunk",
                many.median * 1e3,
                "ms",
                many.spread * 1e3,
                one.median * 1e3,
                "ms",
                "≤ 1.2",
                higher_is_better=False,
            )
        )
        trip = small[name]
        found.append(Figure(f"{name}: 4 KiB", trip.median * 1e6, "µs", trip.spread * 1e6))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--blocks", type=int, default=-(-TOKENS // LLAMA_8B.block_size))
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/connectors.json"))
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.blocks, arguments.serve.split(","))
        return
    figures = bench(arguments.blocks, arguments.repetitions)
    megabytes = arguments.blocks * LLAMA_8B.block_bytes / 1e6
    show(figures, f"KV of {megabytes:.0f} MB between two processes")
    write(figures, arguments.out)


if __name__ == "__main__":
    main()
