"""The supervisor of processes: starts them, starts again what died (`Restarts` decides when, and
when to give up), ends them in order. `Vanished` finds those that hang.

Knows a process by its name and its program, not what it is for.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tandem.facts.backoff import backoff_s, longest, spread
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.launching.launcher import Ended, ExitCode, Launcher, Program, tail
from tandem.messages.gateway import ClusterStatus

# A new start mends nothing after these.
HOPELESS = (ExitCode.MISCONFIGURED, ExitCode.UNWELCOME)


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """The first restart comes after `first_delay_s`, every next one after twice as long, but never
    more than `longest_delay_s`; all are spread, so that many do not start together. After
    `most_in_a_row` it is given up; who ran for `steady_s` begins anew."""

    first_delay_s: float = 0.5
    longest_delay_s: float = 30.0
    most_in_a_row: int = 8
    steady_s: float = 60.0


class Restarts:
    """The books of all processes, by name."""

    def __init__(self, config: RestartConfig) -> None:
        self.config = config
        self._in_a_row: dict[str, int] = {}

    def delay_s(self, name: str, status: int, ran_s: float, *, chance: float = 1.0) -> float | None:
        """How long to wait before the process starts again that ended with this status after
        `ran_s`, spread by `chance`; None to give it up."""
        if status in HOPELESS:
            return None
        count = 0 if ran_s >= self.config.steady_s else self._in_a_row.get(name, 0)
        if count >= self.config.most_in_a_row:
            return None
        self._in_a_row[name] = count + 1
        config = self.config
        return backoff_s(config.first_delay_s, config.longest_delay_s, count, chance)

    def last_resort_s(self, *, chance: float = 1.0) -> float:
        """How long to wait with one that would be given up if anybody else did its work."""
        return spread(self.config.longest_delay_s, chance)


@dataclass(frozen=True, slots=True)
class ProcessFailed:
    """A process cannot be kept running; `log_tail` is the end of its log."""

    name: str
    code: int
    how: str
    log_tail: str


@dataclass(slots=True)
class _Kept:
    """`confirmed` once somebody saw it at work: what dies before has a reason that a new start
    does not mend."""

    program: Program
    started_ns: int
    confirmed: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something happened to a process that a person may want to know."""

    name: str
    text: str


class Supervisor:
    """`notify` gets every notice. Whom the cluster cannot do without (`indispensable`, given the
    name and those that are kept besides) is started again for ever. Used from one event loop."""

    def __init__(
        self,
        launcher: Launcher,
        notify: Callable[[Notice], None],
        restarts: RestartConfig | None = None,
        *,
        indispensable: Callable[[str, Collection[str]], bool] | None = None,
        chance: Callable[[], float] = longest,
    ) -> None:
        """`chance` spreads restarts (`facts.backoff`)."""
        self._chance = chance
        self._launcher = launcher
        self._notify = notify
        self._restarts = Restarts(restarts or RestartConfig())
        self._indispensable = indispensable
        self._kept: dict[str, _Kept] = {}
        self._failures: asyncio.Queue[ProcessFailed] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._waits: set[asyncio.Task[None]] = set()
        self._reader = asyncio.create_task(self._read_ends())

    @property
    def pids(self) -> Mapping[str, int]:
        """Of the processes that run."""
        return self._launcher.pids

    @property
    def names(self) -> list[str]:
        """Of everything that was ever started."""
        return list(self._kept)

    def keeps(self, name: str) -> bool:
        """Whether a process of this name runs, or is going to be started again."""
        return name in self._launcher.pids or (name in self._kept and not self._kept[name].ends)

    async def start(self, program: Program) -> None:
        """Run it, and again whenever it dies after it was confirmed."""
        self._kept[program.name] = _Kept(program, now_ns())
        try:
            await self._launcher.start(program)
        except OSError:
            del self._kept[program.name]
            raise
        self._processes_changed()

    def confirm(self, name: str) -> None:
        """The process was seen at work."""
        if name in self._kept:
            self._kept[name].confirmed = True

    def kill(self, name: str, reason: str) -> None:
        """End a process that hangs; it starts again like any that died."""
        self._notify(Notice(name, f"is killed: {reason}"))
        self._launcher.send(name, signal.SIGKILL)

    async def failed(self) -> ProcessFailed:
        """The next process that is given up."""
        return await self._failures.get()

    async def changed(self) -> None:
        """Until the next start or end of a process."""
        await self._changed.wait()

    async def stop(self, names: Iterable[str], patience_s: float, kill_after_s: float) -> None:
        """End these processes: asked once, after `patience_s` asked again (at once, this time), and
        killed `kill_after_s` later. None of them starts again."""
        wanted = [name for name in names if name in self._kept]
        for name in wanted:
            self._kept[name].ends = True
        for number, limit_s in (
            (signal.SIGTERM, patience_s),
            (signal.SIGTERM, kill_after_s),
            (signal.SIGKILL, kill_after_s),
        ):
            running = [name for name in wanted if name in self._launcher.pids]
            for name in running:
                self._launcher.send(name, number)
            if await self._gone(running, limit_s):
                return
        left = [name for name in wanted if name in self._launcher.pids]
        self._notify(Notice(", ".join(left), "could not be killed"))

    def end_now(self) -> None:
        """Kill all that runs, and start nothing again."""
        for name, kept in self._kept.items():
            kept.ends = True
            self._launcher.send(name, signal.SIGKILL)

    async def close(self) -> None:
        """Look after nothing any more."""
        for task in (self._reader, *self._waits):
            task.cancel()
        await asyncio.gather(self._reader, *self._waits, return_exceptions=True)

    async def _gone(self, names: list[str], limit_s: float) -> bool:
        """Whether these end within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while any(name in self._launcher.pids for name in names):
                    await self.changed()
        except TimeoutError:
            return False
        return True

    def _processes_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read_ends(self) -> None:
        while True:
            self._take(await self._launcher.ended())
            self._processes_changed()

    def _take(self, ended: Ended) -> None:
        kept = self._kept[ended.name]
        if kept.ends:
            return
        if not ended.code and kept.confirmed:
            # It was asked to leave.
            kept.ends = True
            self._notify(Notice(ended.name, "has left"))
            return
        again = ended.code == ExitCode.AGAIN and kept.confirmed
        ran_s = (now_ns() - kept.started_ns) / NS_PER_S
        delay_s = 0.0 if again else None
        # What was lost with its machine has no reason of its own.
        if not again and (kept.confirmed or ended.lost):
            delay_s = self._restarts.delay_s(ended.name, ended.code, ran_s, chance=self._chance())
        why = ""
        if delay_s is None and kept.confirmed:
            others = [name for name, each in self._kept.items() if not each.ends and each != kept]
            if self._indispensable and self._indispensable(ended.name, others):
                delay_s = self._restarts.last_resort_s(chance=self._chance())
                why = ": it keeps failing, but nobody else does its work"
        if delay_s is None:
            kept.ends = True
            log = kept.program.log
            words = "" if log is None else tail(log)
            self._failures.put_nowait(ProcessFailed(ended.name, ended.code, ended.how, words))
            return
        how = "has left" if again else ended.how
        self._notify(Notice(ended.name, f"{how} and starts again in {delay_s:.2g} s{why}"))
        task = asyncio.create_task(self._start_again(kept, delay_s))
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    async def _start_again(self, kept: _Kept, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not kept.ends:
            kept.started_ns = now_ns()
            try:
                await self._launcher.start(kept.program)
            except OSError as error:
                # No memory, a full disk: counts as one more death, and may be over next time.
                self._notify(Notice(kept.program.name, f"cannot be started: {error}"))
                self._take(Ended(kept.program.name, 0, 1))
            if kept.ends:
                self._launcher.send(kept.program.name, signal.SIGKILL)
            self._processes_changed()


# A worker that was only slow introduces itself anew within less than a look.
LOOKS = 3


class Vanished:
    """Finds workers that hang: their processes run, but every gateway has given them up. A gateway
    closes the channel of a worker that it takes for dead, and cannot end it; whoever started the
    process can. Remembers who was seen, which losses were known then, and how often they were
    missing since; every look counts, and no clock. A worker that left on its own wish is missing,
    too, but no gateway lost it."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        # By gateway and worker: how often it had been lost when it was last seen.
        self._losses: dict[tuple[str, str], int] = {}

    def look(
        self, pids: Mapping[str, int], statuses: Sequence[ClusterStatus]
    ) -> list[tuple[str, str]]:
        """Workers to be killed, each with why the gateways gave it up. `pids` are the processes
        that run, `statuses` those of all gateways at this moment."""
        known = {name for status in statuses for name in status.members}
        hung = []
        for worker, pid in pids.items():
            if worker in known:
                self._seen[worker] = pid
                self._missing[worker] = 0
                for status in statuses:
                    self._losses[status.gateway, worker] = len(_reasons(status, worker))
            elif self._seen.get(worker) == pid and (reason := self._lost(worker, statuses)):
                self._missing[worker] += 1
                if self._missing[worker] == LOOKS:
                    hung.append((worker, reason))
        return hung

    def _lost(self, worker: str, statuses: Sequence[ClusterStatus]) -> str:
        """Why a gateway has given it up since it was seen; empty if none has."""
        for status in statuses:
            reasons = _reasons(status, worker)
            before = self._losses.get((status.gateway, worker))
            if before is not None and len(reasons) > before:
                return reasons[-1]
        return ""


def _reasons(status: ClusterStatus, worker: str) -> list[str]:
    return [reason for lost, reason in status.lost if lost == worker]
