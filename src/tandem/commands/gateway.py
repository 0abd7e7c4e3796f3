"""`tandem gateway`: one gateway in this terminal, for workers that join from anywhere."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

import tandem
from tandem.commands.foreground import Foreground
from tandem.commands.options import flag, flags, settings_flag, with_options
from tandem.commands.terminal import print_warning, terminal
from tandem.commands.which_cluster import listen_endpoint, process_name, state_directory
from tandem.config.cluster.live import LiveFile, read_live_cluster
from tandem.config.processes import GatewayListening, GatewaySetup
from tandem.live.channels.keys import make_pair
from tandem.live.launching.state_directory import ClusterRecord, ProcessRecord, StateDirectory
from tandem.live.processes.before_start import exposure_of
from tandem.live.processes.key_files import admitted_beside, read_gateway_keys
from tandem.live.processes.lifecycle import ended_by_signals, run_ended_by_signals
from tandem.live.processes.setups import Setups, program_of, write_cluster

POLL_S = 0.05
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@flags
class GatewayOptions:
    """Which one it is."""

    keys: Path = flag("The gateway.json of `tandem keys`.")
    listen: str | None = flag(
        "Where workers reach it, as 0.0.0.0:9000. (default: as in the file)", default=None
    )
    name: str | None = flag("Its name, another one each. (default: this host's)", default=None)
    settings: list[str] | None = settings_flag("serve.port=8080")
    state_dir: Path | None = flag(
        "Where it keeps its files while it runs. "
        "(default: a directory of this user, by the cluster's name and its own)",
        default=None,
    )


@with_options
def gateway_command(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="A cluster file.")],
    options: GatewayOptions,
) -> None:
    """Start one gateway of a cluster; workers come by `tandem join --gateway`.

    Beside it, commands such as `tandem status` and `tandem drain` work as for `tandem up`.
    """
    with ended_by_signals():
        _serve(cluster, options)


def _serve(cluster: str, options: GatewayOptions) -> None:
    """Until it is told to end. Raises `InvalidConfiguration`, `ClusterRunning` or
    `ProcessesFailed`."""
    settings = list(options.settings or ())
    if options.listen is not None:
        settings.append(f"listen={options.listen}")
    file = read_live_cluster(cluster, settings)
    keys = read_gateway_keys(options.keys)
    admitted = admitted_beside(options.keys)
    # For who may read its state directory: `tandem status` and others beside it.
    operator = make_pair()
    keys = msgspec.structs.replace(
        keys,
        # Workers stand in the file, where they can be revoked.
        worker_public="",
        operator_public=operator.public,
        operator_secret=operator.secret,
        transfer_secret="",
        kv_secret="",
    )
    name = process_name(options.name)
    endpoint = listen_endpoint(file.cluster.listen)
    setups = Setups(file.cluster, keys, alone=True)
    console = terminal()
    print_warning(console, exposure_of(file.cluster, setups.share.host.api_keys))
    if file.cluster.plans:
        console.print("nothing is planned: nobody here would start workers", soft_wrap=True)
    directory = state_directory(f"{file.cluster.name}-{name}", options.state_dir)
    directory.claim()
    try:
        write_cluster(file, setups, directory)
        setup = msgspec.structs.replace(
            setups.gateway(0, directory.path, endpoint), gateway=name, admitted=str(admitted)
        )
        run_ended_by_signals(lambda: _run(file, setup, directory, console))
    finally:
        directory.clear()


async def _run(
    file: LiveFile, setup: GatewaySetup, directory: StateDirectory, console: Console
) -> None:
    """Until the gateway has ended. Raises `ProcessesFailed`."""
    foreground = Foreground()
    announcing: list[asyncio.Task[None]] = []

    def started(pid: int) -> None:
        announcing.append(asyncio.create_task(_announce(file, setup, directory, pid, console)))

    try:
        was_ready = await foreground.run(replace(program_of(setup, directory), log=None), started)
    finally:
        for task in announcing:
            task.cancel()
    when = "" if was_ready else " before it was ready"
    console.print(f"{setup.gateway} has ended{when}")


async def _announce(
    file: LiveFile, setup: GatewaySetup, directory: StateDirectory, pid: int, console: Console
) -> None:
    """Writes, once it listens, what other commands find it by."""
    listening = await _until_listening(directory.path / f"{setup.gateway}.json")
    endpoint = listening.endpoint
    for any_address, own in ANY_ADDRESS.items():
        endpoint = endpoint.replace(f"//{any_address}:", f"//{own}:")
    directory.write(
        ClusterRecord(
            name=file.cluster.name,
            version=tandem.__version__,
            supervisor=ProcessRecord.own(),
            ready=True,
            url=listening.url,
            model=setup.model,
            gateways={setup.gateway: endpoint},
            processes={setup.gateway: ProcessRecord.of(pid)},
        )
    )
    console.print(
        f"[bold green]{setup.gateway}[/bold green] serves {listening.url}/v1 and waits for workers "
        f"on {listening.endpoint}; Ctrl-C ends it",
        soft_wrap=True,
    )


async def _until_listening(file: Path) -> GatewayListening:
    while True:
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(file.read_bytes(), type=GatewayListening)
        await asyncio.sleep(POLL_S)
