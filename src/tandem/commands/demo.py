"""`tandem demo`; with `--overload` a small cluster, two tenants and a load, and what the control of
it makes of that, act by act, with the figures that the clients measured."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from tandem.bench.load import start_clock
from tandem.commands.cluster_screen import CTRL_C, Screen, run_cluster
from tandem.commands.cluster_view import print_status
from tandem.commands.demo_kill import CLUSTER as KILL_CLUSTER
from tandem.commands.demo_kill import OVERRIDES as KILL_OVERRIDES
from tandem.commands.demo_kill import KillDemo
from tandem.commands.demo_load import DemoTenant, Rejection, Shape, TenantLoad
from tandem.commands.demo_tour import CLUSTER as TOUR_CLUSTER
from tandem.commands.demo_tour import OVERRIDES as TOUR_OVERRIDES
from tandem.commands.demo_tour import Tour
from tandem.commands.explain import find_histories, print_histories
from tandem.commands.options import flag, flags, with_options
from tandem.commands.terminal import plain_table, print_plain, terminal
from tandem.commands.which_cluster import RunningCluster, state_directory
from tandem.config.cluster.file import Cluster, find_cluster
from tandem.config.cluster.live import read_live_cluster
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.gateway.operators import NobodyAnswers, Operators
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.launching.supervisor import Notice
from tandem.live.processes.before_start import check_before_start
from tandem.live.processes.cluster import RunLimits
from tandem.messages.planning import ActionKind, PlanDecision

CLUSTER = "demo"
POLL_S = 0.25
LONG_PROMPTS = Shape(prompt_tokens=512, answer_tokens=16)
LONG_ANSWERS = Shape(prompt_tokens=32, answer_tokens=128)
# Clients that find out how much the cluster serves: more than it has workers, so that none idles.
PROBING_CLIENTS = 6
LEAST_PROBE_S = 2.0
# Of what the cluster served to clients without pause: each tenant at first, and free in its flood;
# more and more where the machine was busy with other things just then.
MODEST = 0.25
FLOODS = (3.0, 6.0, 12.0)
# Clients of each class with long answers: more than one decode worker runs at once.
PREMIUM_CLIENTS, FREE_CLIENTS = 6, 18
# A flip comes within some ticks of the planner, when answers of the new lengths have ended; and its
# worker then has so long to show itself in its new role.
FLIP_LIMIT_S, NEW_ROLE_S = 60.0, 2.0


class NothingServed(TandemError):
    """The cluster of the demo is up and answers nothing."""


@flags
class DemoOptions:
    """How it is shown."""

    seconds: float = flag("How long each load lasts.", default=15.0, min=3)
    overload: bool = flag(
        "Instead: two tenants, a flood, and a load that shifts.", "--overload", default=False
    )
    kill: bool = flag(
        "Instead: tell a story, kill the worker that tells it, and compare.",
        "--kill",
        default=False,
    )
    keep: bool | None = flag(
        "Leave the cluster running at the end, until Ctrl-C. (default: the first demo does, in a "
        "terminal)",
        default=None,
        show_default=False,
    )
    browser: bool = flag("Open the page in a browser.", default=True)
    state_dir: Path | None = flag(
        "Where the cluster keeps its files while it runs. "
        "(default: a directory of this user, by the cluster's name)",
        default=None,
    )


@with_options
def demo_command(options: DemoOptions) -> None:
    """Show on this machine what a cluster does: two prefill and two decode workers with a shared
    pool tell stories to six clients, a worker is killed in the middle of it, no stream breaks; the
    page is opened in a browser. Takes half a minute, two cores and no network; then Ctrl-C.

    With --overload another one of a minute: early rejection protects a premium tenant from a flood,
    a worker changes its role with the load, `explain` says why. With --kill one of some seconds:
    the worker that tells a story dies in mid-sentence, and the story goes on, letter by letter as
    undisturbed.
    """
    if options.kill and options.overload:
        raise InvalidConfiguration("--kill and --overload are two demos; choose one of both")
    if options.kill:
        demo_kill(options)
        return
    if not options.overload:
        demo_tour(options)
        return
    file = read_live_cluster(CLUSTER)
    directory = state_directory(file.cluster.name, options.state_dir)
    console = terminal()
    cuts = check_before_start(file, directory)
    screen = Screen(console, CTRL_C)
    screen.starting(f"cluster {file.cluster.name} with {file.cluster.model}", cuts)
    _say(console, _greeting(file.cluster), f"tandem up {CLUSTER}")

    async def visit() -> None:
        await Demo(console, directory, file.cluster, options.seconds).play()
        if options.keep:
            console.print(f"\n{CTRL_C}")
            await asyncio.Event().wait()

    run_cluster(file, directory, screen, RunLimits(), visit)
    console.print("The cluster has ended.")


def demo_tour(options: DemoOptions) -> None:
    """The demo of everything at once."""
    with TemporaryDirectory(prefix="tandem-demo-") as journal:
        file = read_live_cluster(TOUR_CLUSTER, (*TOUR_OVERRIDES, f"journal.directory={journal}"))
        directory = state_directory(file.cluster.name, options.state_dir)
        console = terminal()
        cuts = check_before_start(file, directory)
        screen = Screen(console, CTRL_C)
        screen.starting(f"cluster {file.cluster.name} with {file.cluster.model}", cuts)
        stays = console.is_terminal if options.keep is None else options.keep

        async def visit() -> None:
            tour = Tour(console, directory, options.seconds, options.browser)
            await tour.play(stays=stays)

        run_cluster(file, directory, screen, RunLimits(), visit)
    console.print("The cluster has ended.")


class StoryScreen(Screen):
    """Leaves out what a supervisor does, which would stand in mid-sentence."""

    def notice(self, notice: Notice) -> None:
        """Of a process that died."""
        del notice


def demo_kill(options: DemoOptions) -> None:
    """The demo of a worker that dies."""
    file = read_live_cluster(KILL_CLUSTER, KILL_OVERRIDES)
    directory = state_directory(file.cluster.name, options.state_dir)
    console = terminal()
    cuts = check_before_start(file, directory)
    screen = StoryScreen(console, CTRL_C)
    screen.starting(f"cluster {file.cluster.name} with {file.cluster.model}", cuts)

    async def visit() -> None:
        await KillDemo(console, directory).play()
        if options.keep:
            console.print(f"\n{CTRL_C}")
            await asyncio.Event().wait()

    run_cluster(file, directory, screen, RunLimits(), visit)
    console.print("The cluster has ended.")


def _greeting(cluster: Cluster) -> str:
    workers = " + ".join(f"{pool.count} {pool.role.value}" for pool in cluster.pools)
    tenants = ", ".join(
        f"{tenant.name} of class {tenant.service_class} ({tenant.api_keys[0]})"
        for tenant in cluster.tenants
    )
    reserved = next(each for each in cluster.classes if each.reserved)
    return (
        f"A gateway and {workers} workers, each a process. Two tenants, each with its API key: "
        f"{tenants}. {reserved.reserved:.0%} of the places are kept for {reserved.name}, which is "
        f"promised {reserved.slo}. A request that would not get what its class is promised is "
        "rejected at once. A planner may change the roles of workers."
    )


def _say(console: Console, text: str, command: str = "") -> None:
    """What happens, and the command by which one does it oneself."""
    console.print(text, markup=False)
    if command:
        print_plain(console, f"  $ {command}", "dim")


@dataclass
class Demo:
    """The acts and what a later one needs of an earlier one: how much the cluster serves, the
    requests that are worth explaining."""

    console: Console
    directory: StateDirectory
    cluster: Cluster
    seconds: float
    served_per_s: float = 0.0
    to_explain: list[str] = field(default_factory=list)
    _loads: int = 0

    async def play(self) -> None:
        """All acts, one after the other. Raises `TandemError` when the cluster does not answer."""
        for number, (title, act) in enumerate(ACTS, 1):
            self.console.print(f"\n[bold]{number}. {title}[/bold]")
            await act(self)

    @property
    def running(self) -> RunningCluster:
        """The cluster as its directory describes it now."""
        record = self.directory.read()
        assert record is not None, "the demo runs beside its cluster"
        return RunningCluster(self.directory, record)

    def load(self, service_class: str) -> TenantLoad:
        """An empty one of the tenant of this class."""
        self._loads += 1
        tenant = DemoTenant.of_class(self.cluster, service_class)
        return TenantLoad(tenant, self.running.record.url, self._loads)

    async def share(self) -> None:
        """Both tenants together ask for half of what the cluster serves."""
        probe = self.load("premium")
        await probe.in_turns(LONG_PROMPTS, PROBING_CLIENTS, max(LEAST_PROBE_S, self.seconds / 3))
        self.served_per_s = probe.per_second
        if not self.served_per_s:
            raise NothingServed("; ".join(probe.failures[:1]) or "no answer came in time")
        rate_rps = MODEST * self.served_per_s
        _say(
            self.console,
            f"Prompts of {LONG_PROMPTS.prompt_tokens} tokens, answers of "
            f"{LONG_PROMPTS.answer_tokens}: {PROBING_CLIENTS} clients that ask without pause get "
            f"{self.served_per_s:.1f} answers a second here. Now each tenant asks for "
            f"{rate_rps:.1f} a second, for {self.seconds:g} s.",
        )
        await self._both(rate_rps, rate_rps)

    async def flood(self) -> None:
        """Free asks for several times of what the cluster serves, premium for what it did."""
        for times in FLOODS:
            _say(
                self.console,
                f"premium goes on as before; free sends {times * self.served_per_s:.1f} requests a "
                f"second, {times:g} times of what the cluster served.",
                "tandem status --watch 1",
            )
            rates = MODEST * self.served_per_s, times * self.served_per_s
            premium, free = await self._both(*rates)
            if free.rejections:
                break
            _say(self.console, "Nobody had to be rejected: the cluster serves more by now.")
        self.to_explain += [record.request_id for record in premium.finished[-1:]]
        if free.rejections:
            self._show_rejection(free.rejections[-1])
            self.to_explain.append(free.rejections[-1].request_id)

    async def shift(self) -> None:
        """Both want long answers, until the planner has given a worker another role."""
        operators = self.running.operators()
        flips = len(await _flips(operators))
        _say(
            self.console,
            f"The load changes: prompts of {LONG_ANSWERS.prompt_tokens} tokens, answers of "
            f"{LONG_ANSWERS.answer_tokens}, {PREMIUM_CLIENTS} + {FREE_CLIENTS} clients that ask "
            "without pause. Little to prefill, much to decode. The planner looks every second:",
            "tandem flip prefill-1 decode      # the same by hand",
        )
        premium, free = self.load("premium"), self.load("free")
        asking = asyncio.gather(
            premium.in_turns(LONG_ANSWERS, PREMIUM_CLIENTS, 2 * FLIP_LIMIT_S),
            free.in_turns(LONG_ANSWERS, FREE_CLIENTS, 2 * FLIP_LIMIT_S),
        )
        try:
            _say(self.console, await self._flip_awaited(operators, flips))
            print_status(self.console, self.running.record.url, await operators.statuses())
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    async def _flip_awaited(self, operators: Operators, flips: int) -> str:
        """What the planner did that had flipped so many workers before."""
        clock = start_clock()
        try:
            async with asyncio.timeout(FLIP_LIMIT_S):
                while len(flipped := await _flips(operators)) == flips:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return f"No worker changed its role within {FLIP_LIMIT_S:g} s here.\n"
        after_s = clock()
        await asyncio.sleep(NEW_ROLE_S)
        actions = "; ".join(action.text for action in flipped[-1].actions)
        return f"{after_s:.1f} s after the load changed: {actions}.\n"

    async def explain(self) -> None:
        """A request that ran and one that was rejected."""
        operators = self.running.operators()
        for request in self.to_explain:
            _say(self.console, "", f"tandem explain {request}")
            print_histories(self.console, await find_histories(operators, request))

    async def next(self) -> None:
        """What to do with the cluster oneself."""
        request = self.to_explain[-1] if self.to_explain else "REQUEST"
        _say(
            self.console,
            f"The cluster file is {find_cluster(CLUSTER)}. In another terminal, beside "
            "`tandem demo --overload --keep` or `tandem up demo`:",
        )
        for command in (
            "tandem status --watch 1",
            f"tandem explain {request}",
            f"tandem apply {CLUSTER} --set classes.premium.reserved=25%",
        ):
            print_plain(self.console, f"  $ {command}", "dim")

    async def _both(self, premium_rps: float, free_rps: float) -> tuple[TenantLoad, TenantLoad]:
        """Long prompts of both tenants at these rates, and what became of them."""
        premium, free = self.load("premium"), self.load("free")
        await asyncio.gather(
            premium.at_rate(LONG_PROMPTS, premium_rps, self.seconds),
            free.at_rate(LONG_PROMPTS, free_rps, self.seconds),
        )
        self._show_loads(premium, free)
        return premium, free

    def _show_loads(self, *loads: TenantLoad) -> None:
        figures = ("sent", "admitted", "rejected", "failed", "kept SLO", "TTFT median", "worst")
        table = plain_table("class", *figures, right=figures, header_style="dim")
        for load in loads:
            admitted = load.sent - len(load.rejections)
            ttfts_s = sorted(each.ttft_s or 0.0 for each in load.finished)
            table.add_row(
                load.tenant.service_class,
                str(load.sent),
                str(admitted),
                str(len(load.rejections)),
                str(len(load.failures)),
                f"{load.kept / admitted:.0%}" if admitted else "-",
                f"{ttfts_s[len(ttfts_s) // 2]:.2f} s" if ttfts_s else "-",
                f"{ttfts_s[-1]:.2f} s" if ttfts_s else "-",
            )
        self.console.print(table)

    def _show_rejection(self, rejection: Rejection) -> None:
        after = "-" if rejection.retry_after_s is None else f"{rejection.retry_after_s:g} s"
        _say(self.console, f"One 429 of free: {rejection.reason}\n  Retry-After: {after}")


Act = Callable[[Demo], Awaitable[None]]
ACTS: tuple[tuple[str, Act], ...] = (
    ("Two tenants share the cluster", Demo.share),
    ("The free tenant floods", Demo.flood),
    ("The load shifts, and a worker follows it", Demo.shift),
    ("Why a request fared as it did", Demo.explain),
    ("What to try next", Demo.next),
)


async def _flips(operators: Operators) -> list[PlanDecision]:
    statuses = await operators.statuses()
    if not statuses:
        raise NobodyAnswers("no gateway answers")
    return [
        decision
        for status in statuses
        if status.planning is not None
        for decision in status.planning.decisions
        if any(action.kind is ActionKind.FLIP for action in decision.actions)
    ]
