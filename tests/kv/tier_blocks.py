"""Blocks for the tests of tiers: a chain of names, each with bytes that only it has."""

import hashlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.facts.kv import BlockFormat, BlockName
from tests.waiting import until

ROOT = hashlib.blake2b(b"a model", digest_size=16).digest()
# No multiple of anything: padding and tails are taken along.
FORMAT = BlockFormat(ROOT, 3_000)
PATIENCE_S = 20.0


def name(number: int, chain: int = 0, tenant: str = "") -> BlockName:
    """Block `number` of a chain."""
    return BlockName(
        _digest(number, chain),
        _digest(number - 1, chain) if number else ROOT,
        _digest(0, chain),
        tenant,
    )


def names(count: int, chain: int = 0, tenant: str = "") -> list[BlockName]:
    return [name(number, chain, tenant) for number in range(count)]


def content(named: BlockName, size_bytes: int = FORMAT.block_bytes) -> NDArray[np.uint8]:
    """What that block holds, wherever it lies."""
    seed = int.from_bytes(named.digest[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, size_bytes, dtype=np.uint8)


def contents(blocks: Sequence[BlockName]) -> list[NDArray[np.uint8]]:
    return [content(block) for block in blocks]


def rows(count: int, size_bytes: int = FORMAT.block_bytes) -> list[NDArray[np.uint8]]:
    """To be read into, full of something else."""
    return list(np.full((count, size_bytes), 0xEE, dtype=np.uint8))


def digests(blocks: Sequence[BlockName]) -> tuple[bytes, ...]:
    return tuple(block.digest for block in blocks)


def whole(blocks: Sequence[BlockName], read: Sequence[NDArray[np.uint8]]) -> bool:
    """Whether the rows hold these blocks."""
    return all(
        (row == content(block, len(row))).all() for block, row in zip(blocks, read, strict=True)
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def redis_server(folder: Path, *options: str, port: int = 0) -> Iterator["RedisServer"]:
    """A server of the test's own that keeps nothing on disk."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server")
    server = RedisServer(port or free_port(), folder, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class RedisServer:
    def __init__(self, port: int, folder: Path, options: Sequence[str]) -> None:
        self.port = port
        self._command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1"]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder), *options]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until(self._answers, PATIENCE_S)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It answers nobody in here."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            self.process = None

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except ConnectionRefusedError:
            return False
        return True


def _digest(number: int, chain: int) -> bytes:
    return hashlib.blake2b(b"%d of %d" % (number, chain), digest_size=16).digest()
