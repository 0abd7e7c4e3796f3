"""`tandem serve`: one model behind the OpenAI API, in this process or over several workers."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.api.key_ring import read_key_file
from tandem.commands.cluster_view import terminal
from tandem.commands.flags import ConfigFile, with_flags
from tandem.commands.late_imports import part
from tandem.commands.serve_cluster import Caches, Shape, serve_cluster
from tandem.config.api_options import check_exposure
from tandem.config.environment import host_facts
from tandem.config.options import ServeOptions, read_options

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="Directory of a checkpoint, or a name on the Hugging Face hub. "
        "Without one, the small bundled model is served.",
        show_default=False,
    ),
]
PANEL = "Several processes"
CACHES = "KV beyond the device"


def _count(*names: str, text: str, default: int = 0) -> Any:
    return typer.Option(
        *names, min=default, max=256, help=text, rich_help_panel=PANEL, show_default=False
    )


def _size(*names: str, text: str) -> Any:
    return typer.Option(
        *names,
        metavar="SIZE",
        help=f"{text} [dim](none)[/dim]",
        rich_help_panel=CACHES,
        show_default=False,
    )


@with_flags(ServeOptions)
def serve_command(
    model: ModelArgument = None,
    config: ConfigFile = None,
    prefill: Annotated[int, _count("--prefill", text="Workers that compute prompts.")] = 0,
    decode: Annotated[int, _count("--decode", text="Workers that draw the answers.")] = 0,
    workers: Annotated[int, _count("--workers", text="Workers that do both.")] = 0,
    tensor_parallel: Annotated[
        int, _count("--tensor-parallel", text="Devices that share each layer.", default=1)
    ] = 1,
    pipeline_parallel: Annotated[
        int, _count("--pipeline-parallel", text="Devices that share the layers.", default=1)
    ] = 1,
    connector: Annotated[
        list[str] | None,
        typer.Option(
            "--connector",
            help="How KV moves between workers; repeat by preference. "
            r"\[shm|tcp|nixl|cuda-ipc] [dim](what suits the devices)[/dim]",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None,
    host_cache: Annotated[
        str, _size("--host-cache", text="Memory of each worker for KV that left its device.")
    ] = "",
    disk_cache: Annotated[
        str, _size("--disk-cache", text="Disk of each worker for KV; found again after a restart.")
    ] = "",
    disk_cache_dir: Annotated[
        Path | None,
        typer.Option(
            "--disk-cache-dir",
            help="Folder of the disk cache. [dim](in the user's cache directory)[/dim]",
            rich_help_panel=CACHES,
            show_default=False,
        ),
    ] = None,
    shared_cache: Annotated[
        str, _size("--shared-cache", text="Memory of a process that keeps KV for all workers.")
    ] = "",
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="DIR",
            help="Write down what the gateway is told, for `tandem replay`. [dim](nothing)[/dim]",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Serve a model behind an OpenAI-compatible API.

    Every option may also stand in a YAML file under its own name (--config FILE); a flag wins.
    With --prefill and --decode, prompts are computed by other workers than answers; `tandem up`
    starts whatever a cluster file describes.
    """
    options = read_options(config, flags)
    exposure = _exposure_of(options)
    shape = Shape(
        prefill,
        decode,
        workers,
        tensor_parallel,
        pipeline_parallel,
        tuple(connector or ()),
        Caches(host_cache, disk_cache, disk_cache_dir, shared_cache),
        journal,
    )
    logging.basicConfig(level=options.log_level.upper())
    console = terminal()
    if shape.wanted:
        serve_cluster(model, options, shape, console)
        return
    if exposure:
        console.print(f"[yellow]{exposure}[/yellow]", soft_wrap=True)
    console.print(f"[bold]Tandem[/bold] is loading {model or 'the bundled model'} …")
    # torch takes seconds to import; the other commands should not wait for it.
    part("serving").serve(model, options, console)


def _exposure_of(options: ServeOptions) -> str:
    """A warning about who can use the server, or nothing: better known before a model is loaded.
    Raises `InvalidConfiguration` for key files without keys, and where everybody could use it and
    nobody asked for that."""
    in_files = [read_key_file(file) for file in options.api_key_file]
    has_keys = bool(options.api_key or in_files or host_facts().api_keys)
    return check_exposure(options, has_keys=has_keys)
