"""Starts, watches and ends processes; decides nothing about them.

`Launcher` is all that a supervisor asks of whoever has the processes; `LocalLauncher` has them on
this machine, `ray_launcher` on those of a Ray cluster.
"""

import asyncio
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Protocol


class ExitCode(IntEnum):
    """The status of a process of a cluster that ends otherwise than wanted (0). A new start may
    mend FAILED alone; AGAIN asks for one."""

    FAILED = 1
    MISCONFIGURED = 2
    UNWELCOME = 3
    AGAIN = 75


# How much of a log explains an end.
TAIL_BYTES, TAIL_LINES = 4096, 15


@dataclass(frozen=True, slots=True)
class Program:
    """What to run under `name`: a command, its whole environment (None: that of this process), and
    where its output goes (None: where this process's goes). `setup` is the file that the last word
    of the command names, if it does: whoever runs the command elsewhere takes it along."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    log: Path | None = None
    setup: Path | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A process is gone. `code` is its exit status, or minus the signal that killed it. `host` is
    the machine that it ran on, if another; it is `lost` where nobody saw the process itself end."""

    name: str
    pid: int
    code: int
    host: str = ""
    lost: bool = False

    @property
    def how(self) -> str:
        where = f" on {self.host}" if self.host else ""
        if self.lost:
            return f"was lost{where}"
        if self.code >= 0:
            return f"ended with status {self.code}{where}"
        return f"was killed by {signal.Signals(-self.code).name}{where}"


class Launcher(Protocol):
    """Processes by name, one at a time under each."""

    async def open(self, phase: Callable[[str], None]) -> None:
        """Have all that processes need before the first one starts; `phase` gets what takes time.
        Raises `TandemError`."""
        ...

    async def close(self) -> None:
        """After the last process: give everything back."""
        ...

    @property
    def hosts(self) -> Mapping[str, str]:
        """The machines of those that run on another one."""
        ...

    @property
    def pids(self) -> Mapping[str, int]:
        """Of those that run."""
        ...

    async def start(self, program: Program) -> int:
        """Gives its number."""
        ...

    def send(self, name: str, number: signal.Signals) -> None:
        """A signal to a process; nothing happens if it is gone."""
        ...

    async def ended(self) -> Ended:
        """The next end of a process, each given once."""
        ...


class LocalLauncher:
    """Every process leads a group of its own, so that Ctrl-C in the terminal reaches the
    supervisor alone, and a kill reaches what the process started, too."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()
        self._watchers: set[asyncio.Task[None]] = set()

    async def open(self, phase: Callable[[str], None]) -> None:
        """This machine is there already."""

    async def close(self) -> None:
        """Nothing of it is left."""

    @property
    def hosts(self) -> Mapping[str, str]:
        return {}

    @property
    def pids(self) -> Mapping[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    async def start(self, program: Program) -> int:
        assert program.name not in self._running, f"{program.name} runs already"
        log = None
        if program.log is not None:
            program.log.touch(mode=0o600)
            log = program.log.open("ab")
        try:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                env=program.environment,
                start_new_session=True,
            )
        finally:
            if log is not None:
                log.close()
        self._running[program.name] = process
        watcher = asyncio.create_task(self._watch(program.name, process))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return process.pid

    def send(self, name: str, number: signal.Signals) -> None:
        process = self._running.get(name)
        if process is not None and process.returncode is None:
            process.send_signal(number)

    async def ended(self) -> Ended:
        return await self._ended.get()

    async def _watch(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        del self._running[name]
        self._ended.put_nowait(Ended(name, process.pid, code))


def tail(log: Path) -> str:
    """The last lines of a log, for a person."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
