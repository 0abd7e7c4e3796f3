"""`tandem serve` with several workers: writes the cluster file that its flags mean, and runs it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console

from tandem.commands.cluster_screen import CTRL_C, Screen, run_cluster
from tandem.commands.late_imports import part
from tandem.commands.which_cluster import state_directory
from tandem.config.cluster.live import LiveFile, checked
from tandem.config.cluster.tree import FLAGS, parse
from tandem.config.environment import cache_directory, may_have_gpu
from tandem.config.hardware.worker import bundled_devices
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.live.launching.state_directory import sweep
from tandem.live.processes.before_start import check_before_start
from tandem.live.processes.cluster import RunLimits

OWN_NAME = "serve-"
# A GPU without a datasheet of its own is priced as this one.
USUAL_GPU = "h100"
_OWN_PLACE = ("device", "block-size", "max-model-len")
# A pool in a cluster file has other figures than `tandem serve` where nothing is said.
_ALWAYS_SAID = ("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization")


@dataclass(frozen=True, slots=True)
class Caches:
    """Room for KV beyond the devices, as it is written in a cluster file; empty: there is none.
    `host` and `disk` are of each worker, `shared` is everybody's."""

    host: str = ""
    disk: str = ""
    disk_dir: Path | None = None
    shared: str = ""

    def tiers(self) -> dict[str, object]:
        """As in a cluster file. Raises `InvalidConfiguration`."""
        if self.disk_dir is not None and not self.disk:
            raise InvalidConfiguration("--disk-cache-dir needs a size, too: --disk-cache 100GiB")
        folder = self.disk_dir or cache_directory() / "serve" / "kv"
        named: dict[str, dict[str, object]] = {
            "host": {"capacity": self.host},
            "disk": {"capacity": self.disk, "path": str(folder.expanduser().absolute())},
            "remote": {"capacity": self.shared},
        }
        return {tier: said for tier, said in named.items() if said["capacity"]}


@dataclass(frozen=True, slots=True)
class Shape:
    """How many workers of which role, over how many devices each is spread, which room for KV they
    have beyond them, and the folder of the gateway's journal, if it writes one."""

    prefill: int = 0
    decode: int = 0
    workers: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    connectors: tuple[str, ...] = ()
    caches: Caches = field(default_factory=Caches)
    journal: Path | None = None

    @property
    def wanted(self) -> bool:
        """Whether this is more than one process that does everything."""
        return self != Shape()

    def pools(self, device: str) -> list[dict[str, object]]:
        """As in a cluster file. Raises `InvalidConfiguration`."""
        if bool(self.prefill) != bool(self.decode) and not self.workers:
            one, other = ("--prefill", "--decode") if self.prefill else ("--decode", "--prefill")
            raise InvalidConfiguration(f"{one} alone cannot serve; give {other} or --workers, too")
        counts = {"prefill": self.prefill, "decode": self.decode, "worker": self.workers}
        if not any(counts.values()):
            counts["worker"] = 1
        return [
            {
                "name": name,
                "role": "both" if name == "worker" else name,
                "count": count,
                "device": device,
                "tensor_parallel": self.tensor_parallel,
                "pipeline_parallel": self.pipeline_parallel,
            }
            for name, count in counts.items()
            if count
        ]


def serve_cluster(model: str | None, options: ServeOptions, shape: Shape, console: Console) -> None:
    """Until a signal ends it. Raises `InvalidConfiguration` or `ProcessesFailed`."""
    file = cluster_file(model, options, shape)
    directory = state_directory(file.cluster.name, None)
    sweep(directory.path.parent, OWN_NAME)
    cuts = check_before_start(file, directory)
    console.print(f"[bold]Tandem[/bold] is starting {model or 'the bundled model'} …")
    for cut in cuts:
        console.print(f"  [dim]{cut}[/dim]", soft_wrap=True)
    run_cluster(file, directory, Screen(console, CTRL_C), RunLimits())


def cluster_file(model: str | None, options: ServeOptions, shape: Shape) -> LiveFile:
    """The cluster that `tandem up` would make of the same wishes."""
    said = _said(options)
    content: dict[str, Any] = {
        "name": f"{OWN_NAME}{os.getpid()}",
        "model": str(Path(model).absolute()) if model and Path(model).exists() else model,
        "block_size": options.block_size,
        "max_model_len": options.max_model_len,
        "serve": said,
        "pools": shape.pools(_device(options)),
        # Where every worker does both, a request that stays where it is moves no KV.
        "policies": {"dispatch": "local" if not shape.prefill else "remote"},
    }
    content["model"] = content["model"] or "tandem-mini"
    if tiers := shape.caches.tiers():
        content["tiers"] = tiers
    if shape.journal is not None:
        content["journal"] = {"directory": str(shape.journal.expanduser().absolute())}
    if shape.connectors:
        content["transport"] = {"connectors": list(shape.connectors)}
    return checked(parse(yaml.safe_dump(content), FLAGS), Path.cwd())


def _said(options: ServeOptions) -> Mapping[str, object]:
    """What differs from the defaults, as it stands under `serve`."""
    values = msgspec.to_builtins(options)
    defaults = msgspec.to_builtins(ServeOptions())
    return {
        name: value
        for name, value in values.items()
        if name not in _OWN_PLACE and (value != defaults[name] or name in _ALWAYS_SAID)
    }


def _device(options: ServeOptions) -> str:
    """The datasheet of this machine's devices."""
    if options.device == "cpu" or (options.device == "auto" and not may_have_gpu()):
        return "cpu"
    # Only a machine with a GPU waits for torch to look at it.
    gpus = part("GPUs").machine_facts().gpus
    if not gpus:
        if options.device == "cuda":
            raise InvalidConfiguration("device: cuda is not available here; use --device cpu")
        return "cpu"
    name = gpus[0].lower().replace(" ", "_")
    known = sorted(bundled_devices(), key=len, reverse=True)
    return next((device for device in known if device in name), USUAL_GPU)
