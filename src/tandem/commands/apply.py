"""`tandem apply`: changes a running cluster to what a cluster file says, after showing what that
is."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tandem.commands.options import flag, flags, settings_flag, with_options
from tandem.commands.terminal import plain_table, print_plain, terminal
from tandem.commands.which_cluster import (
    RunningCluster,
    WhichCluster,
    find_running,
    state_directory,
)
from tandem.config.cluster.keys import Change
from tandem.config.cluster.live import LiveFile, live_model, read_live_cluster
from tandem.config.environment import BUNDLED_MODEL
from tandem.config.hardware.pools import pool_models
from tandem.facts.errors import InvalidConfiguration
from tandem.live.launching.control import ControlFailed, ask_supervisor
from tandem.messages.supervisor import (
    AskApply,
    ChangeEnded,
    ChangePlanned,
    ChangeProgress,
    SupervisorAnswer,
)

REFUSED = 1


@flags
class ApplyOptions:
    """What is applied, and how."""

    settings: list[str] | None = settings_flag("policies.admission=prediction")
    yes: bool = flag("Apply it without asking.", "--yes", "-y", default=False)
    dry_run: bool = flag("Only show what would change.", "--dry-run", default=False)
    json: bool = flag("All of it, for programs.", "--json", default=False)


class ApplyAnswer(msgspec.Struct, frozen=True):
    """What `--json` prints: `applied` is whether the cluster has run by the file since."""

    applied: bool
    plan: ChangePlanned
    progress: tuple[ChangeProgress, ...] = ()
    problems: tuple[str, ...] = ()


@with_options
def apply_command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The cluster file, as `tandem up` takes it.")
    ],
    which: WhichCluster,
    options: ApplyOptions,
) -> None:
    """Change a running cluster to what a cluster file says: the changes are shown first, no request
    fails for them, and where one of them cannot be none is made.

    Ends with 1 where nothing could be applied, or not all of it.
    """
    wanted = read_live_cluster(file, options.settings or ())
    cluster = _find(which, wanted)
    asked = options.yes or options.dry_run or (sys.stdin.isatty() and not options.json)
    if not asked:
        raise InvalidConfiguration(
            "nobody is there to be asked: look with --dry-run, and apply it with --yes"
        )
    if asyncio.run(_apply(cluster, wanted, options, terminal())):
        raise typer.Exit(REFUSED)


def _find(which: WhichCluster, wanted: LiveFile) -> RunningCluster:
    """The one that is named, else the one that the file names if it runs, else the only one."""
    name = wanted.cluster.name
    if which == WhichCluster() and state_directory(name, None).claimed:
        which = WhichCluster(name=name)
    return find_running(which)


def _spelled(model: str) -> str:
    """The model as it means the same from any folder."""
    return live_model(model) or BUNDLED_MODEL.name


async def _apply(
    cluster: RunningCluster, wanted: LiveFile, options: ApplyOptions, console: Console
) -> bool:
    """Whether something is not as the file has it."""
    folder = cluster.directory.path
    own = {pool: _spelled(model) for pool, model in pool_models(wanted.cluster).items()}
    text = wanted.text(_spelled(wanted.cluster.model), own)
    plan = await _planned(ask_supervisor(folder, AskApply(text, dry_run=True)))
    nothing = not plan.keys and not plan.workers
    if not options.json:
        _print_plan(console, cluster.record.name, plan)
    if plan.refusals or nothing or options.dry_run:
        if options.json:
            _print_json(ApplyAnswer(nothing and not plan.refusals, plan))
        return bool(plan.refusals)
    if not options.yes and not typer.confirm("Apply this?"):
        console.print("nothing was changed")
        return True
    progress: list[ChangeProgress] = []
    answers = ask_supervisor(folder, AskApply(text, dry_run=False, seen=plan.number))
    async for answer in answers:
        match answer:
            case ChangePlanned(refusals=refusals) if refusals:
                if options.json:
                    _print_json(ApplyAnswer(applied=False, plan=answer))
                else:
                    _print_refusals(console, answer)
                return True
            case ChangeProgress(name, words):
                progress.append(answer)
                if not options.json:
                    print_plain(console, f"{name} {words}", "")
            case ChangeEnded(number, problems):
                if options.json:
                    _print_json(ApplyAnswer(not problems, plan, tuple(progress), problems))
                else:
                    _print_end(console, cluster.record.name, number, problems)
                return bool(problems)
    raise ControlFailed("the supervisor ended before the change was made; see `tandem status`")


async def _planned(answers: AsyncIterator[SupervisorAnswer]) -> ChangePlanned:
    async for answer in answers:
        if isinstance(answer, ChangePlanned):
            return answer
    raise ControlFailed("the supervisor ended without an answer")


def _print_plan(console: Console, name: str, plan: ChangePlanned) -> None:
    if plan.keys:
        table = plain_table("key", "now", "then", "changes", header_style="dim")
        for key in plan.keys:
            style = "red" if key.when == Change.NEVER else ""
            when = f"{key.when}: {key.instead}" if key.instead else key.when
            when = "cannot change live" if key.when == Change.NEVER else when
            table.add_row(key.place, key.old, key.new, when, style=style)
        console.print(table)
    for worker in plan.workers:
        print_plain(console, worker, "")
    if plan.refusals:
        console.print()
        _print_refusals(console, plan)
    elif not plan.keys and not plan.workers:
        console.print(f"cluster {name} runs by this file already")


def _print_refusals(console: Console, plan: ChangePlanned) -> None:
    print_plain(console, "nothing is changed, because this cannot be:", "bold red")
    for refusal in plan.refusals:
        _print_line(console, f"  {refusal}")


def _print_end(console: Console, name: str, number: int, problems: tuple[str, ...]) -> None:
    for problem in problems:
        _print_line(console, problem, "red")
    if not problems:
        print_plain(console, f"cluster {name} runs by this file (configuration {number})", "green")


def _print_line(console: Console, text: str, style: str = "") -> None:
    """However long it is; paths and names may hold brackets."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _print_json(answer: ApplyAnswer) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
