"""A cluster to be hurt: `tandem up` on a dummy model, its figures, and who of it is killed."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem_process import TANDEM, serving

# KV of the model of bench/cluster.py is 16 KiB a token in float32.
TEXT = """
name: survive
model: {model}
block_size: 16
serve: {{port: 0, load-format: dummy, served-model-name: [bench], max-num-seqs: 16,
  kv-cache-memory: {kv}, threads: 1}}
pools:
{pools}
policies: {{dispatch: remote, transfer: push}}
health: {{heartbeat_timeout: 3s}}
{tiers}
"""
HOST = "tiers: {host: {capacity: 512 MiB}}"
DISK = "tiers: {{disk: {{capacity: 1 GiB, path: {folder}}}}}"
POOL = "tiers: {remote: {capacity: 512 MiB}}"
HOST_AND_POOL = "tiers: {host: {capacity: 512 MiB}, remote: {capacity: 512 MiB}}"
REDIS = (
    "tiers: {{remote: {{capacity: 64 MiB, redis: 'redis://127.0.0.1:{port}', "
    "redis_capacity: 512 MiB}}}}"
)


@dataclass(frozen=True)
class Running:
    """A cluster that serves at `url` and keeps its files in `state`."""

    url: str
    state: Path

    def status(self) -> dict[str, Any]:
        told = subprocess.run(
            [*TANDEM, "status", "--json", "--state-dir", str(self.state)],
            capture_output=True,
            check=True,
        )
        shown: dict[str, Any] = json.loads(told.stdout)
        return shown

    def total(self, figure: str) -> int:
        """Over all gateways."""
        return sum(int(gateway.get(figure, 0)) for gateway in self.status()["gateways"])

    def kill(self, name: str) -> None:
        """SIGKILL to whoever runs under this name now."""
        record = json.loads((self.state / "cluster.json").read_bytes())
        os.kill(record["processes"][name]["pid"], signal.SIGKILL)


@contextmanager
def cluster(
    model: Path, folder: Path, roles: dict[str, int], *, tiers: str = "", kv: str = "256MiB"
) -> Iterator[Running]:
    """`tandem up` with so many workers of each role, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    pools = "\n".join(
        f"  - {{name: {role}, role: {role}, device: cpu, count: {count}}}"
        for role, count in roles.items()
    )
    file, state = folder / "cluster.yaml", folder / "state"
    file.write_text(TEXT.format(model=model, kv=kv, pools=pools, tiers=tiers))
    with serving("up", str(file), "--state-dir", str(state)) as url:
        yield Running(url, state)


@contextmanager
def redis_server() -> Iterator[int]:
    """A Redis of our own with nothing on disk; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait()
