"""A small cluster of this machine that is started to be measured, and the processor time of its
gateway's event loop."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tandem.commands.which_cluster import RunningCluster
from tandem.config.environment import child_environment
from tandem.config.options import ServeOptions
from tandem.facts.errors import TandemError
from tandem.facts.step_totals import StepTotals
from tandem.live.launching.state_directory import StateDirectory
from tandem.messages.gateway import ClusterStatus

STOP_S = 30.0
# Options of `tandem serve` that a cluster file has in another place, or that this cluster must not
# have: it is measured on this machine, by whoever started it.
ELSEWHERE = ("device", "block_size", "max_model_len", "host", "port", "api_key", "api_key_file")
GATEWAY = "gateway-0"
# The nanoseconds that the first thread of a process, its event loop, has run for (Linux).
SCHEDULER = "/proc/{pid}/schedstat"


class ClusterFailed(TandemError):
    """The cluster to be measured did not start."""


def cluster_text(model: str, roles: tuple[str, ...], options: ServeOptions, datasheet: str) -> str:
    """A cluster file: one worker of each role, with these options where they differ from the usual
    ones. The workers share the cores."""
    changed = {
        entry.name: getattr(options, entry.name)
        for entry in msgspec.structs.fields(ServeOptions)
        if getattr(options, entry.name) != entry.default and entry.name not in ELSEWHERE
    }
    pools = [
        {
            "name": "worker" if role == "both" else role,
            "role": role,
            "device": datasheet,
            "max_num_seqs": options.max_num_seqs,
            "max_num_batched_tokens": options.max_num_batched_tokens,
        }
        for role in roles
    ]
    kept = {"max_num_seqs", "max_num_batched_tokens"}
    serve = {name: _plain(value) for name, value in changed.items() if name not in kept}
    if datasheet == "cpu":
        for pool in pools:
            pool["kv_dtype"] = "float32"
    return yaml.safe_dump(
        {
            "name": "calibration",
            "model": model,
            "block_size": options.block_size,
            "max_model_len": options.max_model_len,
            "pools": pools,
            "serve": serve | {"port": 0},
        },
        sort_keys=False,
    )


def with_profile(text: str, profile: Path) -> str:
    """The same cluster, whose workers take as long as this profile says."""
    tree = yaml.safe_load(text)
    for pool in tree["pools"]:
        pool["time_model"] = {"name": "profile", "path": str(profile.resolve())}
    return yaml.safe_dump(tree, sort_keys=False)


@dataclass(frozen=True)
class MeasuredCluster:
    """A cluster that is up."""

    url: str
    state: StateDirectory

    def gateway_busy_s(self) -> float | None:
        """Seconds for which the gateway's event loop has computed; None where the system does not
        tell."""
        record = self.state.read()
        process = record.processes.get(GATEWAY) if record else None
        if process is None:
            return None
        with suppress(OSError, ValueError, IndexError):
            return int(Path(SCHEDULER.format(pid=process.pid)).read_text().split()[0]) / 1e9
        return None

    async def statuses(self) -> list[ClusterStatus]:
        """What each gateway knows of itself and of all workers."""
        record = self.state.read()
        if record is None:
            return []
        return await RunningCluster(self.state, record).operators().statuses()

    async def steps(self) -> dict[str, tuple[StepTotals, ...]]:
        """What the steps of each worker took since its start, as last reported."""
        statuses = await self.statuses()
        return {worker.worker: worker.steps for status in statuses for worker in status.workers}


@contextmanager
def running(text: str, folder: Path) -> Iterator[MeasuredCluster]:
    """`tandem up` on this cluster file, in a process of its own, until the block ends. Raises
    `ClusterFailed` with what it said."""
    file, state = folder / "cluster.yaml", folder / "state"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-u", "-m", "tandem", "up", str(file), "--state-dir", str(state)]
    # Ctrl-C is for whoever measures, who ends the cluster then; also when told to end otherwise.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment(TANDEM_API_KEY=""),
        start_new_session=True,
    )
    try:
        yield MeasuredCluster(served_url(process), StateDirectory(state))
    finally:
        _stop(process)
        signal.signal(signal.SIGTERM, before)


def served_url(process: "subprocess.Popen[bytes]") -> str:
    """Where `tandem` serves that was started as this process, without the /v1, once it does. Raises
    `ClusterFailed` with the last that it printed."""
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        text = line.decode(errors="replace").rstrip()
        said.append(text)
        if found := re.search(r"served on (http://\S+)/v1", text):
            return found[1]
    told = "\n".join(line for line in said[-20:] if line)
    raise ClusterFailed(f"the cluster to be measured did not start:\n{told}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """As Ctrl-C does; by force if it does not end."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=STOP_S)
        return
    process.kill()
    process.communicate()


def _plain(value: object) -> Any:
    """As YAML has it."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
