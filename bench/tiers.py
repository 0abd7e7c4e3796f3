"""Times the tiers of KV beside what the machine can do, in the same run: blocks to and from host
memory beside a plain copy, a file beside plain reads and writes, Redis beside plain GET and SET of
values as large. Everything of ours computes and compares checksums.

Usage: python bench/tiers.py [--repetitions N] [--megabytes N] [--block-kib N]
"""

import argparse
import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis
from numpy.typing import NDArray

from figures import Figure, show, write
from limits import Summary, summarised
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import choose_transfer
from tandem.kv.tiers.contract import BlockStore
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.redis import RedisStore
from tandem.kv.tiers.redis_client import RedisConfig

Work = Callable[[], object]
MOST_BUFFERS = 512


@dataclass(frozen=True)
class Data:
    """`rows[block]` are full of noise; `room` is as much memory to read into."""

    rows: NDArray[np.uint8]
    room: NDArray[np.uint8]

    @classmethod
    def of(cls, blocks: int, block_bytes: int) -> "Data":
        noise = np.random.default_rng(1).integers(0, 256, block_bytes, dtype=np.uint8)
        rows = np.stack([np.roll(noise, block) for block in range(blocks)])
        return cls(rows, np.zeros_like(rows))

    @property
    def format(self) -> BlockFormat:
        return BlockFormat(b"of this benchmark", self.rows.shape[1])

    @property
    def names(self) -> list[BlockName]:
        digests = [block.to_bytes(16, "little") for block in range(len(self.rows))]
        return [BlockName(digest, digest, digests[0]) for digest in digests]

    def putting(self, store: BlockStore) -> Work:
        names, rows = self.names, list(self.rows)
        digests = [name.digest for name in names]

        def work() -> None:
            store.forget_blocks(digests)
            assert len(store.put_blocks(names, rows).digests) == len(names)

        return work

    def getting(self, store: BlockStore) -> Work:
        names, room = self.names, list(self.room)

        def work() -> None:
            assert store.get_blocks(names, room).blocks == len(names)

        return work


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


def memory_works(data: Data) -> dict[str, Work]:
    store = HostStore(data.format, len(data.rows), choose_transfer())
    to, origin, size = data.room.ctypes.data, data.rows.ctypes.data, data.rows.nbytes
    return {
        "memcpy": lambda: ctypes.memmove(to, origin, size),
        "host put": data.putting(store),
        "host get": data.getting(store),
    }


def disk_works(data: Data, folder: Path) -> dict[str, Work]:
    config = DiskConfig(folder / "ours.kv", len(data.rows))
    store = DiskStore(config, data.format, choose_transfer())
    descriptor = os.open(folder / "plain", os.O_RDWR | os.O_CREAT)

    def plainly(rows: NDArray[np.uint8], call: Callable[..., int]) -> None:
        for first in range(0, len(rows), MOST_BUFFERS):
            some = [row.data for row in rows[first : first + MOST_BUFFERS]]
            call(descriptor, some, first * rows.shape[1])

    return {
        "file write": lambda: plainly(data.rows, os.pwritev),
        "disk put": data.putting(store),
        "file read": lambda: plainly(data.room, os.preadv),
        "disk get": data.getting(store),
    }


def redis_works(data: Data, port: int) -> dict[str, Work]:
    config = RedisConfig(f"redis://127.0.0.1:{port}/0", len(data.rows), call_s=60)
    store = RedisStore(config, data.format, choose_transfer(), time.monotonic_ns, secret=bytes(32))
    client = redis.Redis(port=port)
    values = [row.tobytes() for row in data.rows]

    def set_plainly() -> None:
        for number, value in enumerate(values):
            client.set(f"plain-{number}", value)

    def get_plainly() -> None:
        for number in range(len(values)):
            client.get(f"plain-{number}")

    return {
        "redis SET": set_plainly,
        "redis put": data.putting(store),
        "redis GET": get_plainly,
        "redis get": data.getting(store),
    }


@contextmanager
def redis_port(folder: Path) -> Iterator[int | None]:
    """Of a server of our own; None where there is none to start."""
    if shutil.which("redis-server") is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis(port=port)
            deadline = time.monotonic() + 10
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline
            yield port
        finally:
            server.kill()


def bench(data: Data, repetitions: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name, redis_port(Path(name)) as port:
        works = memory_works(data) | disk_works(data, Path(name))
        if port is not None:
            works |= redis_works(data, port)
        seconds = side_by_side(works, repetitions)
    pairs = [
        ("host put", "memcpy", "≥ 0.80"),
        ("host get", "memcpy", "≥ 0.80"),
        ("disk put", "file write", "≥ 0.80"),
        ("disk get", "file read", "≥ 0.70"),
        ("redis put", "redis SET", "≥ 0.80"),
        ("redis get", "redis GET", "≥ 0.80"),
    ]
    found = []
    for ours, limit, goal in pairs:
        if ours in seconds:
            rate = data.rows.nbytes / seconds[ours].median / 1e9
            spread = rate * seconds[ours].spread / seconds[ours].median
            most = data.rows.nbytes / seconds[limit].median / 1e9
            found.append(Figure(ours, rate, "GB/s", spread, most, limit, goal))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--block-kib", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("results/tiers.json"))
    arguments = parser.parse_args()
    block_bytes = arguments.block_kib << 10
    data = Data.of(max(1, arguments.megabytes * 1_000_000 // block_bytes), block_bytes)
    figures = bench(data, arguments.repetitions)
    show(figures, f"KV of {data.rows.nbytes / 1e6:.0f} MB in blocks of {arguments.block_kib} KiB")
    write(figures, arguments.out)


if __name__ == "__main__":
    main()
