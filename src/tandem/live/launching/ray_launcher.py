"""Has processes on the machines of a Ray cluster: one actor each, which starts and watches it.

Only placing, starting, watching and ending go through Ray; processes talk to each other as
everywhere. A set-up goes to the actor in a call, so that Ray keeps it nowhere. Needs `ray`.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorUnavailableError, RayError

from tandem.live.launching.launcher import Ended, LocalLauncher, Program
from tandem.live.launching.ray_group import LOOK_S, RayGroup
from tandem.live.launching.ray_places import RayTerms

# A start that takes longer is waiting for a machine.
USUAL_START_S = 10.0
LOST = -int(signal.SIGKILL)


class _Words(NamedTuple):
    """What Python runs there, the changes of the environment, and the set-up."""

    words: tuple[str, ...]
    environment: dict[str, str]
    setup: bytes | None


@dataclass(slots=True)
class _Remote:
    """A process that runs; `killed` by us."""

    actor: Any
    pid: int
    host: str
    log: Path | None
    killed: bool = False


class RayLauncher:
    """`notify` gets, by a process's name, what a person may want to know."""

    def __init__(self, terms: RayTerms, notify: Callable[[str, str], None]) -> None:
        self._terms = terms
        self._notify = notify
        self._local = LocalLauncher()
        self._group = RayGroup(terms)
        self._running: dict[str, _Remote] = {}
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> Mapping[str, int]:
        return {**self._local.pids, **{name: each.pid for name, each in self._running.items()}}

    @property
    def hosts(self) -> Mapping[str, str]:
        return {name: each.host for name, each in self._running.items()}

    async def open(self, phase: Callable[[str], None]) -> None:
        """Raises `InvalidConfiguration` or `NoPlace`."""
        self._in_background(self._read_local_ends())
        await self._group.open(phase)
        _take_signals_back()

    async def start(self, program: Program) -> int:
        """Waits for a machine, however long. A process that cannot be begun ends at once, with the
        reason in its log."""
        assert program.name not in self.pids, f"{program.name} runs already"
        if program.name not in self._terms.bundles:
            return await self._local.start(program)
        if program.log is not None:
            program.log.touch(mode=0o600)
        beginning = asyncio.ensure_future(self._begin(program))
        try:
            await asyncio.wait((beginning,), timeout=USUAL_START_S)
            if not beginning.done():
                self._notify(program.name, self._group.why_waiting(program.name))
            remote = await beginning
        except RayError as error:
            _append(program.log, f"Ray could not start {program.name}: {error}\n".encode())
            self._ended.put_nowait(Ended(program.name, 0, 1))
            return 0
        finally:
            beginning.cancel()
        self._running[program.name] = remote
        self._in_background(self._watch(program.name, remote))
        return remote.pid

    def send(self, name: str, number: signal.Signals) -> None:
        remote = self._running.get(name)
        if remote is None:
            self._local.send(name, number)
        elif number == signal.SIGKILL:
            # The kernel ends the process with its actor, even if neither answers any more.
            remote.killed = True
            ray.kill(remote.actor)
        else:
            remote.actor.send.remote(int(number))

    async def ended(self) -> Ended:
        return await self._ended.get()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for remote in self._running.values():
            ray.kill(remote.actor)
        await self._group.close()

    async def _begin(self, program: Program) -> _Remote:
        """Raises `RayError` when the actor cannot be made, or the process not be started."""
        words = self._words_of(program)
        while True:
            actor = self._group.make_actor(program.name)
            try:
                pid = await actor.begin.remote(*words)
                return _Remote(actor, pid, await actor.host.remote(), program.log)
            except RayError as error:
                ray.kill(actor)
                if not _is_loss(error):
                    raise
                # Ray is about to find another machine.
                await asyncio.sleep(LOOK_S)
            except asyncio.CancelledError:
                ray.kill(actor)
                raise

    def _words_of(self, program: Program) -> _Words:
        ambient = self._terms.ambient
        environment = program.environment or {}
        changes = {key: value for key, value in environment.items() if ambient.get(key) != value}
        if program.setup is None:
            return _Words(program.command[1:], changes, None)
        assert program.command[-1] == str(program.setup)
        return _Words(program.command[1:-1], changes, program.setup.read_bytes())

    async def _watch(self, name: str, remote: _Remote) -> None:
        code, lost = await _follow(remote)
        ray.kill(remote.actor)
        del self._running[name]
        self._ended.put_nowait(Ended(name, remote.pid, code, remote.host, lost))

    async def _read_local_ends(self) -> None:
        while True:
            self._ended.put_nowait(await self._local.ended())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _follow(remote: _Remote) -> tuple[int, bool]:
    """Takes the process's output until its end: its status, and whether it was lost."""
    seen_bytes = 0
    while True:
        try:
            followed = await remote.actor.follow.remote(seen_bytes)
        except ActorUnavailableError:
            # Only for now, or it is dead: Ray knows within seconds.
            await asyncio.sleep(LOOK_S)
            continue
        except RayError:
            return LOST, not remote.killed
        _append(remote.log, followed.output)
        seen_bytes = followed.first_byte + len(followed.output)
        if followed.code is not None:
            return followed.code, False


def _take_signals_back() -> None:
    """Ray answers some with a dump of its stack before they reach their handlers."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.getsignal(number))
            signal.siginterrupt(number, False)


def _is_loss(error: RayError) -> bool:
    """Whether the machine went away while the process was starting on it."""
    return "node has died" in str(error)


def _append(log: Path | None, output: bytes) -> None:
    if log is not None and output:
        with suppress(FileNotFoundError), log.open("ab") as file:
            file.write(output)
