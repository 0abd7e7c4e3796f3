"""How a cluster looks in a terminal: its workers, what moved between them, what it went through,
what its planner did."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from tandem.commands.terminal import bytes_text, plain_table, seconds_text
from tandem.facts.adapter import named_adapters
from tandem.facts.calibration import Calibration
from tandem.facts.fleet import PlanningMode
from tandem.facts.kv import TierFigures
from tandem.messages.cluster import Audited
from tandem.messages.gateway import ClusterStatus, PauseStatus, PoolNodeStatus, WorkerStatus
from tandem.messages.planning import HeldWorker, PlanningStatus, SimulationStatus

NO_NAMES: Mapping[str, str] = {}
# What a worker does for one gateway; the rest of a status is about the worker itself.
_SUMMED = (
    "prompts", "output_tokens", "transfers", "failed_transfers", "moved_bytes", "sent_bytes",
    "spans", "seconds", "fetches", "failed_fetches", "fetched_tokens", "fetched_bytes",
    "fetch_seconds",
)  # fmt: skip


def members_table(workers: Sequence[WorkerStatus]) -> Table:
    """Who there is when a cluster has just started."""
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for name in ("worker", "role", "ranks", "KV cache", "read over"):
        table.add_column(name, no_wrap=True)
    for worker in sorted(workers, key=lambda worker: worker.worker):
        export = worker.export
        ways = [endpoint.connector for endpoint in export.shards[0].endpoints]
        table.add_row(
            worker.worker,
            worker.role.value,
            str(len(export.shards)),
            f"{export.block_count * export.geometry.block_size:,} tokens in "
            f"{export.geometry.dtype}, blocks of {export.geometry.block_size}",
            ", ".join(ways),
        )
    return table


def workers_table(workers: Sequence[WorkerStatus], gone: Mapping[str, str]) -> Table:
    """A row for each worker; `gone` says why others are not there."""
    figures = ("runs", "waits", "KV", "prompts", "tokens", "KV read", "KV given")
    table = _state_table(("worker", "role"), figures)
    table.add_column("by")
    for worker in workers:
        drains = "spare" if worker.spare else "[yellow]drains[/yellow]"
        state = "ready" if worker.accepting else drains
        used = 1 - worker.load.free_blocks / max(1, worker.total_blocks)
        failed = f" [red]({worker.failed_transfers} failed)[/red]" * bool(worker.failed_transfers)
        table.add_row(
            worker.worker,
            worker.role.value,
            state,
            str(worker.load.running_sequences),
            str(worker.load.waiting_requests),
            f"{used:.0%}",
            f"{worker.prompts:,}",
            f"{worker.output_tokens:,}",
            f"{bytes_text(worker.moved_bytes)} in {worker.transfers:,}{failed}"
            if worker.transfers
            else "-",
            bytes_text(worker.sent_bytes) if worker.sent_bytes else "-",
            ", ".join(worker.connectors),
        )
    for name, state in gone.items():
        table.add_row(name, "", f"[red]{state}[/red]")
    return table


def _breaker_lines(status: ClusterStatus) -> Iterator[str]:
    """Of those that hold something back now."""
    for each in status.breakers:
        if each.share < 1.0:
            whose = f"class {each.service_class}" if each.service_class else "requests of no class"
            yield (
                f"{status.gateway}: [yellow]the breaker of {whose} is {each.stage}[/yellow]: "
                f"{each.share:.0%} of what it promises is given out, because {each.cause}"
            )


def print_status(
    console: Console,
    url: str,
    statuses: Sequence[ClusterStatus],
    adapter_names: Mapping[str, str] = NO_NAMES,
) -> None:
    """What every gateway knows; figures of workers are added up over gateways. `adapter_names` are
    by digest."""
    console.print(status_shown(url, statuses, adapter_names))


def status_shown(
    url: str, statuses: Sequence[ClusterStatus], adapter_names: Mapping[str, str] = NO_NAMES
) -> Group:
    """The same, for whoever shows it."""
    workers = together(statuses)
    known = {worker.worker for worker in workers}
    lost = [entry for status in statuses for entry in status.lost]
    nodes = pool_nodes_of(statuses)
    known |= {node.node for node in nodes}
    gone = {name: f"lost: {reason}" for name, reason in lost if name not in known}
    lines = [f"[bold]{url}/v1[/bold]"]
    lines += [
        f"{status.gateway}: up {seconds_text(status.up_s)}, {status.running_requests} requests "
        f"running, {status.waiting_requests} waiting, {status.finished_requests:,} finished, "
        f"{status.takeovers} taken over from another worker"
        + f" ({status.recomputed_tokens:,} tokens computed again)" * bool(status.takeovers)
        + f", configuration {status.configuration}" * bool(status.configuration)
        for status in statuses
    ]
    calibration = Calibration()
    for status in statuses:
        if status.planning is not None:
            lines += _planning_lines(status.planning)
        if status.pauses is not None and status.pauses.followed:
            lines.append(_pauses_line(status.gateway, status.pauses))
        lines += _breaker_lines(status)
        calibration.add(status.calibration)
    if not calibration.empty:
        lines.append(f"predictions of the last ten minutes: {calibration}")
    again = [f"{name} ({reason})" for name, reason in lost if name in known]
    came_back = [f"\n[dim]died and came back: {', '.join(again)}[/dim]"] if again else []
    tiers = tiers_table(workers, nodes)
    below: list[RenderableType] = ["", tiers] if tiers is not None else []
    table = workers_table(workers, gone)
    return Group(
        "\n".join(lines) + "\n",
        table,
        *_drafts(workers),
        *_adapters(workers, adapter_names),
        *_corrections(workers),
        *_unlike(workers),
        *below,
        *came_back,
    )


def _pauses_line(gateway: str, pauses: PauseStatus) -> str:
    """What became of sessions that paused for tools."""
    returned = pauses.before + pauses.after
    error = f", {seconds_text(pauses.error_s)} off on average" if returned else ""
    return (
        f"{gateway}: {pauses.paused} of {pauses.sessions} sessions pause; {pauses.followed:,} "
        f"pauses followed ({pauses.announced:,} announced), {pauses.prefetches:,} times KV was "
        f"brought back before its session{error}"
    )


def _planning_lines(planning: PlanningStatus) -> Iterator[str]:
    """What the planner did last, what is under way, and whom it leaves alone."""
    counts = [
        f"{count} {what}"
        for count, what in (
            (planning.starts, "started"),
            (planning.stops, "sent away"),
            (planning.flips, "flipped"),
            (planning.activations, "spares activated"),
            (planning.migrations, "migrations"),
            (planning.failed_starts, "could not be started"),
        )
        if count
    ]
    advisory = " (advisory)" if planning.mode is PlanningMode.ADVISORY else ""
    yield f"planner {planning.policy}{advisory}: {', '.join(counts) or 'nothing changed yet'}"
    if planning.decisions:
        yield f"  {seconds_text(planning.decided_ago_s)} ago: {planning.decisions[-1].text}"
    if planning.last_reason:
        yield f"  now: {planning.last_reason}"
    for what, names in (
        ("starting", [f"{each.worker} as {each.role}" for each in planning.starting]),
        ("draining", planning.draining),
        ("standing by", planning.spares),
        ("left alone, changed by hand", [_held(each) for each in planning.held]),
        ("not waited for", [f"{each.worker} ({each.why})" for each in planning.stuck]),
    ):
        if names:
            yield f"  {what}: {', '.join(names)}"
    if planning.simulation is not None:
        yield from _simulation_lines(planning.simulation)


def _simulation_lines(simulation: SimulationStatus) -> Iterator[str]:
    """What the simulator answered last, and what all answers took."""
    if simulation.text:
        yield f"  simulated {seconds_text(simulation.ago_s)} ago: {simulation.text}"
    failures = f", {simulation.failures} without an answer" * bool(simulation.failures)
    asking = ", one is being asked" * simulation.is_open
    yield (
        f"  {simulation.answers} questions to the simulator answered{failures}{asking}; "
        f"{simulation.cpu_s:.1f} s of a processor in all"
    )


def _held(held: HeldWorker) -> str:
    until = "until it is undrained" if held.left_s is None else f"for {seconds_text(held.left_s)}"
    return f"{held.worker} ({held.why}, {until})"


def _drafts(workers: Sequence[WorkerStatus]) -> list[RenderableType]:
    """What came of speculation, a line for each worker that did some."""
    lines = []
    for worker in workers:
        drafts = worker.drafts
        if drafts is None or not (drafts.drafts or drafts.declined):
            continue
        kept = drafts.accepted_tokens / max(1, drafts.draft_tokens)
        tokens_a_step = 1 + drafts.accepted_tokens / max(1, drafts.drafts)
        left_out = drafts.declined / (drafts.drafts + drafts.declined)
        lines.append(
            f"  {worker.worker}: {drafts.draft_tokens:,} draft tokens checked, {kept:.0%} kept, "
            f"{tokens_a_step:.1f} tokens a draft; {left_out:.0%} of all steps without, because "
            "drafts would cost more than they bring"
        )
    return ["\nspeculation:\n" + "\n".join(lines)] if lines else []


def _adapters(workers: Sequence[WorkerStatus], names: Mapping[str, str]) -> list[RenderableType]:
    """Which adapters run and wait, and what memory holds of them, a line for each worker that
    serves some."""
    lines = []
    for worker in workers:
        figures = worker.adapters
        if figures is None:
            continue
        memory = figures.memory
        running = ", ".join(named_adapters(figures.running, names)) or "none"
        waiting = ", ".join(named_adapters(figures.waiting, names)) or "none"
        lines.append(
            f"  {worker.worker}: {running} running (of {figures.most_running} at once), {waiting} "
            f"waiting; {memory.held} in memory with {bytes_text(memory.held_bytes)} of "
            f"{bytes_text(memory.limit_bytes)}, {memory.loads:,} loads, {memory.evictions:,} "
            "evictions"
        )
    return ["\n" + escape("adapters:\n" + "\n".join(lines))] if lines else []


def _corrections(workers: Sequence[WorkerStatus]) -> list[RenderableType]:
    """By what the costs of workers are corrected, those alike in one line."""
    named: dict[str, list[str]] = {}
    for worker in workers:
        if words := str(worker.correction):
            named.setdefault(words, []).append(worker.worker)
    if not named:
        return []
    lines = [f"  {', '.join(names)}: {words}" for words, names in named.items()]
    return ["\ncosts corrected by what was measured", *lines]


def _unlike(workers: Sequence[WorkerStatus]) -> list[RenderableType]:
    """Who computes other numbers than the others, if anybody does."""
    of_identity: dict[str, list[str]] = {}
    for worker in workers:
        of_identity.setdefault(worker.export.identity, []).append(worker.worker)
    if len(of_identity) < 2:
        return []
    shown = "; ".join(f"{key[:8]}: {', '.join(names)}" for key, names in of_identity.items())
    return [
        f"\n[yellow]no KV moves between workers of other weights, precision or arithmetic ({shown})"
        "[/yellow]"
    ]


def print_audit(console: Console, workers: Sequence[Audited], problems: Sequence[str]) -> None:
    """What every worker holds at this moment, and which law is broken, if any."""
    counted = [name for name in Audited.__struct_fields__ if name not in ("worker", "problem")]
    titles = [name.replace("_", " ") for name in counted]
    table = plain_table("worker", *titles, right=titles, header_style="dim")
    for audited in workers:
        table.add_row(audited.worker, *(f"{getattr(audited, name):,}" for name in counted))
    console.print()
    console.print(table)
    broken = [f"{each.worker}: {each.problem}" for each in workers if each.problem]
    broken += [problem for problem in problems if problem]
    console.print(
        "[red]broken: " + "; ".join(broken) + "[/red]" if broken else "[green]books agree[/green]"
    )


def together(statuses: Sequence[ClusterStatus]) -> list[WorkerStatus]:
    """Every worker once, by name, with what it did for all gateways."""
    by_name: dict[str, list[WorkerStatus]] = {}
    for worker in (worker for status in statuses for worker in status.workers):
        by_name.setdefault(worker.worker, []).append(worker)
    return [_sum(by_name[name]) for name in sorted(by_name)]


def _sum(views: Sequence[WorkerStatus]) -> WorkerStatus:
    """One worker as several gateways see it."""
    sums = {name: sum(getattr(view, name) for view in views) for name in _SUMMED}
    connectors = dict.fromkeys(name for view in views for name in view.connectors)
    read_from: Counter[str] = Counter()
    for view in views:
        read_from.update(dict(view.read_from))
    return structs.replace(
        views[0], connectors=tuple(connectors), read_from=tuple(read_from.items()), **sums
    )


_NUMBERS = ("blocks", "of", "stored", "fetched", "missed", "corrupt", "us a token")


def tiers_table(workers: Sequence[WorkerStatus], nodes: Sequence[PoolNodeStatus]) -> Table | None:
    """A row for each tier of each worker and process of the shared pool; None where there are
    none."""
    rows = list(_rows(workers, nodes))
    if not rows:
        return None
    table = _state_table(("KV kept by", "in"), _NUMBERS)
    for name, place, figures in rows:
        state = "on" if figures.on else f"[yellow]off: {figures.reason}[/yellow]"
        if figures.failures:
            state += f" [red]({figures.failures:,} failed)[/red]"
        table.add_row(name, place, state, *_numbers(figures))
    return table


def _state_table(names: Sequence[str], figures: Sequence[str]) -> Table:
    """Columns of names, of a state that may take several lines, and of figures."""
    table = plain_table(*names, "state", *figures, right=figures, header_style="dim")
    for column in table.columns[: len(names)]:
        column.no_wrap = True
    return table


def pool_nodes_of(statuses: Sequence[ClusterStatus]) -> list[PoolNodeStatus]:
    """Every process of the shared pool once, by name."""
    by_name = {node.node: node for status in statuses for node in status.pool_nodes}
    return [by_name[name] for name in sorted(by_name)]


def _rows(
    workers: Sequence[WorkerStatus], nodes: Sequence[PoolNodeStatus]
) -> Iterator[tuple[str, str, TierFigures]]:
    for worker in workers:
        for figures in worker.tiers:
            yield worker.worker, _PLACES[figures.tier.value], figures
    for node in nodes:
        for figures in node.tiers:
            yield node.node, _PLACES_OF_A_NODE.get(figures.tier.value, "shared"), figures


# What a process of the pool keeps behind its memory may be a disk or a server.
_PLACES = {"device": "device", "host": "memory", "disk": "disk", "remote": "shared pool"}
_PLACES_OF_A_NODE = {"host": "memory", "disk": "disk or Redis"}


def _numbers(figures: TierFigures) -> tuple[str, ...]:
    room = f"{figures.capacity_blocks:,}" if figures.capacity_blocks else ""
    pace = f"{figures.fetch_s_per_token * 1e6:,.1f}" if figures.fetch_s_per_token else "-"
    return (
        f"{figures.blocks:,}" if room else "",
        room,
        f"{figures.stored_blocks:,}",
        f"{figures.fetched_blocks:,}",
        f"{figures.missed_blocks:,}",
        f"{figures.corrupt_blocks:,}",
        pace,
    )
