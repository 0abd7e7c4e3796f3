"""`tandem serve`: one model behind the OpenAI API, in this process, or over several workers by the
cluster file that its flags mean."""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console

from tandem.api.key_ring import read_key_file
from tandem.commands.cluster_screen import (
    CTRL_C,
    Screen,
    ending_text,
    print_ready,
    run_cluster,
)
from tandem.commands.late_imports import part
from tandem.commands.options import (
    ConfigFile,
    GivenOptions,
    ModelArgument,
    flag,
    flags,
    with_options,
)
from tandem.commands.terminal import print_detail, print_warning, terminal
from tandem.commands.which_cluster import state_directory
from tandem.config.api_options import check_exposure
from tandem.config.checkpoints import check_model
from tandem.config.cluster.live import LiveFile, checked
from tandem.config.cluster.tree import FLAGS, parse
from tandem.config.cluster.workers import CONNECTORS
from tandem.config.encoders import check_encoders
from tandem.config.environment import BUNDLED_MODEL, cache_directory, host_facts, may_have_gpu
from tandem.config.hardware.worker import bundled_devices
from tandem.config.options import ServeOptions, parse_bytes, read_options
from tandem.config.tracing import check_tracing
from tandem.facts.errors import InvalidConfiguration
from tandem.live.adapters import check_adapters
from tandem.live.grpc_port import try_grpc_port
from tandem.live.http_server import PATIENCE_S, listen, url_of
from tandem.live.launching.state_directory import sweep
from tandem.live.log_format import begin_log
from tandem.live.processes.before_start import check_before_start
from tandem.live.processes.cluster import RunLimits
from tandem.live.processes.lifecycle import end_within, ended_by_signals, loop_runner

OWN_NAME = "serve-"
# After a second Ctrl-C.
AT_ONCE_S = 1.0
# A GPU without a datasheet of its own is priced as this one.
USUAL_GPU = "h100"
_OWN_PLACE = ("device", "block-size", "max-model-len")
# A pool in a cluster file has other figures than `tandem serve` where nothing is written.
_ALWAYS_WRITTEN = ("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization")


def _count(text: str, least: int = 0) -> Any:
    return flag(text, default=least, min=least, max=256, show_default=False)


def _size(text: str) -> Any:
    return flag(f"{text} [dim](none)[/dim]", default="", metavar="SIZE", show_default=False)


@flags
class Caches:
    """KV beyond the device. Sizes as they are written in a cluster file; empty: there is none. The
    first two are of each worker, the shared one is everybody's."""

    host_cache: str = _size("Memory of each worker for KV that left its device.")
    disk_cache: str = _size("Disk of each worker for KV; found again after a restart.")
    disk_cache_dir: Path | None = flag(
        "Folder of the disk cache. [dim](in the user's cache directory)[/dim]",
        default=None,
        show_default=False,
    )
    shared_cache: str = _size("Memory of a process that keeps KV for all workers.")

    def tiers(self) -> dict[str, object]:
        """As in a cluster file. Raises `InvalidConfiguration`."""
        if self.disk_cache_dir is not None and not self.disk_cache:
            raise InvalidConfiguration("--disk-cache-dir needs a size, too: --disk-cache 100GiB")
        folder = self.disk_cache_dir or cache_directory() / "serve" / "kv"
        sizes = {
            "--host-cache": self.host_cache,
            "--disk-cache": self.disk_cache,
            "--shared-cache": self.shared_cache,
        }
        for flag_name, size in sizes.items():
            if size:
                parse_bytes(size, flag_name)
        named: dict[str, dict[str, object]] = {
            "host": {"capacity": self.host_cache},
            "disk": {"capacity": self.disk_cache, "path": str(folder.expanduser().absolute())},
            "remote": {"capacity": self.shared_cache},
        }
        return {tier: keys for tier, keys in named.items() if keys["capacity"]}


@flags
class Shape:
    """Several processes. How many workers of which role, over how many devices each is spread, and
    the folder of the gateway's journal, if it writes one."""

    prefill: int = _count("Workers that compute prompts.")
    decode: int = _count("Workers that draw the answers.")
    workers: int = _count("Workers that do both.")
    tensor_parallel: int = _count("Devices that share each layer.", 1)
    pipeline_parallel: int = _count("Devices that share the layers.", 1)
    connectors: list[str] | None = flag(
        "How KV moves between workers; repeat by preference. "
        rf"\[{'|'.join(CONNECTORS)}] [dim](what suits the devices)[/dim]",
        "--connector",
        default=None,
        show_default=False,
    )
    caches: Caches = field(default_factory=Caches)
    journal: Path | None = flag(
        "Write down what the gateway is told, for `tandem replay`. [dim](nothing)[/dim]",
        default=None,
        metavar="DIR",
        show_default=False,
    )

    @property
    def wanted(self) -> bool:
        """Whether this is more than one process that does everything."""
        return replace(self, connectors=self.connectors or None) != Shape()

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


@with_options
def serve_command(
    shape: Shape, given: GivenOptions, model: ModelArgument = None, config: ConfigFile = None
) -> None:
    """Serve a model behind an OpenAI-compatible API.

    Every option may also stand in a YAML file under its own name (--config FILE); a flag wins.
    With --prefill and --decode, prompts are computed by other workers than answers; `tandem up`
    starts whatever a cluster file describes.
    """
    options = read_options(config, given)
    begin_log(options.log_level, options.log_format, "server", logging.BASIC_FORMAT)
    console = terminal()
    with ended_by_signals():
        if shape.wanted:
            serve_cluster(model, options, shape, console)
        else:
            serve_here(model, options, console)


def serve_here(model: str | None, options: ServeOptions, console: Console) -> None:
    """Load, listen and serve until a signal ends it. Raises `InvalidConfiguration`."""
    # The address is taken before the model is loaded: a taken port is said at once.
    with listen(options.host, options.port) as listener:
        exposure = _exposure_of(options)
        try_grpc_port(options)
        check_tracing(options)
        check_adapters(options, check_model(model, options))
        check_encoders(options.encoder_models, options.revision)
        print_warning(console, exposure)
        console.print(f"[bold]Tandem[/bold] is loading {model or 'the bundled model'} …")
        # torch takes seconds to import; the other ways to serve do without it.
        assembly = part("server")
        server = assembly.assemble(model, options)
        with loop_runner() as runner:
            runner.run(_serve(assembly, server, listener, options.log_level, console))


async def _serve(
    assembly: Any, server: Any, listener: socket.socket, log_level: str, console: Console
) -> None:
    http = assembly.http_server(server, log_level)

    def signalled(again: bool) -> None:
        if again:
            # Clients get an error; who does not take it, and a step that lasts, are not waited for.
            end_within(AT_ONCE_S, code=1)
        else:
            print_detail(console, ending_text(server.load.calls, PATIENCE_S))

    http.end_on_signals(server.worker.close, signalled)
    async with assembly.running(server):
        for note in (*server.notes, server.startup.summary()):
            print_detail(console, note)
        print_ready(
            console,
            server.worker.card.names[0],
            url_of(listener),
            needs_key=server.api.has_keys,
            stops="Ctrl-C stops the server.",
        )
        await http.serve(sockets=[listener])


def _exposure_of(options: ServeOptions) -> str:
    """A warning about who can use the server, or nothing: better known before a model is loaded.
    Raises `InvalidConfiguration` for key files without keys, and where everybody could use it and
    nobody asked for that."""
    in_files = [read_key_file(file) for file in options.api_key_file]
    has_keys = bool(options.api_key or in_files or host_facts().api_keys)
    return check_exposure(options, has_keys=has_keys)


def serve_cluster(model: str | None, options: ServeOptions, shape: Shape, console: Console) -> None:
    """Until a signal ends it. Raises `InvalidConfiguration` or `ProcessesFailed`."""
    file = cluster_file(model, options, shape)
    directory = state_directory(file.cluster.name, None)
    sweep(directory.path.parent, OWN_NAME)
    screen = Screen(console, CTRL_C)
    screen.starting(model or "the bundled model", check_before_start(file, directory))
    run_cluster(file, directory, screen, RunLimits())


def cluster_file(model: str | None, options: ServeOptions, shape: Shape) -> LiveFile:
    """The cluster that `tandem up` would make of the same wishes."""
    changed = _changed(options)
    content: dict[str, Any] = {
        "name": f"{OWN_NAME}{os.getpid()}",
        "model": model,
        "block_size": options.block_size,
        "max_model_len": options.max_model_len,
        "serve": changed,
        "pools": shape.pools(_device(options)),
        # Where every worker does both, a request that stays where it is moves no KV.
        "policies": {"dispatch": "local" if not shape.prefill else "remote"},
    }
    content["model"] = content["model"] or BUNDLED_MODEL.name
    if tiers := shape.caches.tiers():
        content["tiers"] = tiers
    if shape.journal is not None:
        content["journal"] = {"directory": str(shape.journal.expanduser().absolute())}
    if shape.connectors:
        content["transport"] = {"connectors": shape.connectors}
    return checked(parse(yaml.safe_dump(content), FLAGS), Path.cwd())


def _changed(options: ServeOptions) -> Mapping[str, object]:
    """What differs from the defaults, as it stands under `serve`."""
    values = msgspec.to_builtins(options)
    defaults = msgspec.to_builtins(ServeOptions())
    return {
        name: value
        for name, value in values.items()
        if name not in _OWN_PLACE and (value != defaults[name] or name in _ALWAYS_WRITTEN)
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
