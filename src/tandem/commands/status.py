"""`tandem status`: who does what in a running cluster, and how many bytes moved."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from tandem.commands.cluster_view import (
    pool_nodes_of,
    print_audit,
    print_status,
    status_shown,
    together,
)
from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import plain_table, terminal
from tandem.commands.which_cluster import NoCluster, RunningCluster, WhichCluster, find_running
from tandem.config.environment import BUNDLED_MODEL, runtime_directory
from tandem.facts.errors import InvalidConfiguration
from tandem.live.adapters import names_in
from tandem.live.launching.state_directory import ADAPTERS_FILE, running_clusters
from tandem.messages.gateway import ClusterStatus
from tandem.messages.operator import AuditReported


@flags
class StatusOptions:
    """What is shown."""

    json: bool = flag("Every figure, for programs.", "--json", default=False)
    audit: bool = flag("Also count what each worker holds, and check it.", "--audit", default=False)
    watch: float | None = flag(
        "Show it anew so often; Ctrl-C ends.",
        default=None,
        metavar="SECONDS",
        min=0.1,
        show_default=False,
    )


@with_options
def status_command(which: WhichCluster, options: StatusOptions) -> None:
    """Show a running cluster: its workers, their load, and the KV that moved between them.

    Of each worker: state (ready, drains: it takes nothing new, spare: it stands by), runs
    (sequences in its steps), waits (requests in its queue), KV (share of its KV blocks that
    sequences hold; what is only cached counts as free), prompts (computed), tokens (generated),
    KV read (from other workers, in so many transfers), KV given (to others), by (the connectors
    that it was read with).

    Of each place that keeps KV, where there are some: blocks (kept, of so many), stored, fetched,
    missed (looked for and not found), corrupt (failed their check), us a token (to fetch it).
    """
    console = terminal()
    several = running_clusters(runtime_directory())
    if which == WhichCluster() and len(several) > 1 and not options.json:
        table = plain_table("cluster", "API", "model", header_style="dim")
        for directory in several:
            if record := directory.read():
                table.add_row(record.name, f"{record.url}/v1", record.model or BUNDLED_MODEL.name)
        console.print(table)
        console.print("\n[dim]--cluster NAME shows one of them[/dim]")
        return
    cluster = find_running(which)
    if options.watch:
        if options.json or options.audit:
            raise InvalidConfiguration("--watch shows the table only; leave out --json and --audit")
        with suppress(KeyboardInterrupt):
            asyncio.run(_watch(cluster, console, options.watch))
        return
    statuses, audits = asyncio.run(_ask(cluster, options.audit))
    if options.json:
        typer.echo(json.dumps(_figures(cluster, statuses, audits), indent=1))
        return
    print_status(console, cluster.record.url, statuses, _adapter_names(cluster))
    if console.is_terminal:
        console.print("\n[dim]tandem status --help explains the columns[/dim]")
    if options.audit:
        print_audit(console, audits[0].workers, [audit.problem for audit in audits])


async def _ask(
    cluster: RunningCluster, audit: bool
) -> tuple[list[ClusterStatus], list[AuditReported]]:
    operators = cluster.operators()
    statuses = await operators.statuses()
    if not statuses:
        raise NoCluster(f"no gateway of cluster {cluster.record.name} answers")
    return statuses, await operators.audits() if audit else []


async def _watch(cluster: RunningCluster, console: Console, every_s: float) -> None:
    """Until it is cancelled. Raises `NoCluster` when the cluster ends."""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            statuses, _ = await _ask(cluster, audit=False)
            shown = status_shown(cluster.record.url, statuses, _adapter_names(cluster))
            live.update(shown, refresh=True)
            await asyncio.sleep(every_s)


def _adapter_names(cluster: RunningCluster) -> Mapping[str, str]:
    """What its gateways call adapters, by digest."""
    return names_in(cluster.directory.path / ADAPTERS_FILE)


def _figures(
    cluster: RunningCluster, statuses: Sequence[ClusterStatus], audits: Sequence[AuditReported]
) -> dict[str, Any]:
    """As plain values; what each worker did is added up over the gateways."""
    record = cluster.record
    pids = {name: process.pid for name, process in record.processes.items()}
    gateways, workers = [], []
    for status in statuses:
        figures = msgspec.to_builtins(status)
        del figures["workers"], figures["pool_nodes"]
        gateways.append({**figures, "pid": pids.get(status.gateway)})
    for worker in together(statuses):
        figures = msgspec.to_builtins(worker)
        # How to reach its memory is nobody's business here.
        del figures["export"]
        identity = worker.export.identity
        workers.append({**figures, "identity": identity, "pid": pids.get(worker.worker)})
    nodes = [
        {**msgspec.to_builtins(node), "pid": pids.get(node.node)}
        for node in pool_nodes_of(statuses)
    ]
    shown: dict[str, Any] = {
        "name": record.name,
        "url": record.url,
        "model": cluster.model,
        "supervisor_pid": record.supervisor.pid,
        "gateways": gateways,
        "workers": workers,
        "pool_nodes": nodes,
    }
    if audits:
        problem = next((audit.problem for audit in audits if audit.problem), "")
        shown["audit"] = {
            "problem": problem,
            "workers": msgspec.to_builtins(audits[0].workers),
        }
    return shown
