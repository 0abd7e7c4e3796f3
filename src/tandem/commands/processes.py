"""The commands that a launcher runs: one process of a cluster each, from the file it wrote.

`python -m tandem.commands.processes` has them alone: no process imports what only other verbs need.
"""

from pathlib import Path
from typing import Annotated

import typer

from tandem.commands.heavy_imports import import_heavy
from tandem.config.processes import GatewaySetup, PoolNodeSetup, WorkerSetup, read_setup
from tandem.live.process_end import run_to_the_end

SetupFile = Annotated[Path, typer.Argument(help="What the launcher wrote for it.")]


def gateway_process_command(file: SetupFile) -> None:
    """Run one gateway of a cluster."""
    setup = read_setup(GatewaySetup, file)
    # Neither process should wait for what only the other one imports.
    import_heavy("tandem.commands.cluster.gateway_process").run_gateway(setup)


def worker_process_command(file: SetupFile) -> None:
    """Run one worker of a cluster."""
    setup = read_setup(WorkerSetup, file)
    import_heavy("tandem.commands.cluster.worker_process").run_worker(setup)


def pool_process_command(file: SetupFile) -> None:
    """Run one process of the shared pool of a cluster."""
    setup = read_setup(PoolNodeSetup, file)
    import_heavy("tandem.commands.cluster.pool_process").run_pool_node(setup)


app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
app.command("gateway-process")(gateway_process_command)
app.command("worker-process")(worker_process_command)
app.command("pool-process")(pool_process_command)

if __name__ == "__main__":
    run_to_the_end(app)
