"""Does to a running cluster what a schedule says, and undoes it: signals, cables, bytes on disk."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tandem.live.launching.state_directory import ProcessRecord, StateDirectory
from tests.chaos.mishaps import Deed, Mishap
from tests.chaos.namespaces import isolate, pull_cable

SPOILT_BYTES = 64


@dataclass
class Redis:
    """A server of our own on `port`, with nothing on disk."""

    port: int
    process: subprocess.Popen | None = None

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Hands:
    """`workers` are all that there should be. `network` is the number of the cluster's switch, if
    it has one; `folder` is where tiers keep their files. `done` are the mishaps that hit somebody,
    with their instants; `seen` is every process that ever ran."""

    state: Path
    workers: frozenset[str]
    seed: int = 0
    network: int | None = None
    folder: Path | None = None
    redis: Redis | None = None
    done: list[tuple[float, Mishap]] = field(default_factory=list)
    seen: dict[str, set[ProcessRecord]] = field(default_factory=dict)

    def processes(self) -> dict[str, ProcessRecord]:
        """Those that the cluster says run now."""
        record = StateDirectory(self.state).read()
        found = {} if record is None else record.processes
        for name, process in found.items():
            self.seen.setdefault(name, set()).add(process)
        return found

    def all_run(self) -> bool:
        """Whether every process that there should be lives, as far as anybody knows."""
        running = self.processes()
        return self.workers <= running.keys() and all(each.alive for each in running.values())

    async def do_all(self, mishaps: Sequence[Mishap]) -> None:
        """Each at its time from now; returns when all that lasts is over."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as doing:
            for mishap in mishaps:
                await asyncio.sleep(max(0.0, began_s + mishap.at_s - time.monotonic()))
                doing.create_task(self.do(mishap))

    async def do(self, mishap: Mishap) -> None:
        self.done.append((time.monotonic(), mishap))
        match mishap.deed:
            case Deed.KILL:
                self._signal(self._targets(mishap), signal.SIGKILL)
            case Deed.STOP:
                targets = self._targets(mishap)
                self._signal(targets, signal.SIGSTOP)
                await asyncio.sleep(mishap.for_s)
                self._signal(targets, signal.SIGCONT)
            case Deed.CUT | Deed.ISOLATE:
                await self._disconnect(mishap)
            case Deed.SPOIL:
                self._spoil(Random(f"{self.seed} {mishap}"))
            case Deed.FILL:
                await self._fill(mishap.for_s)
            case Deed.KILL_REDIS:
                assert self.redis is not None
                self.redis.kill()
                await asyncio.sleep(mishap.for_s)
                self.redis.start()

    def _targets(self, mishap: Mishap) -> list[ProcessRecord]:
        running = self.processes()
        return [running[name] for name in mishap.victims if name in running]

    def _signal(self, targets: Sequence[ProcessRecord], number: signal.Signals) -> None:
        for target in targets:
            with suppress(ProcessLookupError):
                if target.alive:
                    os.kill(target.pid, number)

    async def _disconnect(self, mishap: Mishap) -> None:
        assert self.network is not None
        names = mishap.victims or sorted(self.workers)
        for name in names:
            self._cable(mishap.deed, name, True)
        await asyncio.sleep(mishap.for_s)
        for name in names:
            self._cable(mishap.deed, name, False)

    def _cable(self, deed: Deed, name: str, begins: bool) -> None:
        assert self.network is not None
        if deed is Deed.CUT:
            pull_cable(self.network, name, out=begins)
        else:
            isolate(self.network, name, apart=begins)

    def _files(self) -> list[Path]:
        assert self.folder is not None
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in found if path.stat().st_size > SPOILT_BYTES)

    def _spoil(self, chance: Random) -> None:
        """Bytes in the middle of every file are turned over."""
        for path in self._files():
            with suppress(OSError), path.open("r+b") as file:
                for _ in range(8):
                    file.seek(chance.randrange(path.stat().st_size - SPOILT_BYTES))
                    data = file.read(SPOILT_BYTES)
                    file.seek(-len(data), os.SEEK_CUR)
                    file.write(bytes(byte ^ 0xFF for byte in data))

    async def _fill(self, for_s: float) -> None:
        """The file system of the tiers is full for a while."""
        assert self.folder is not None
        ballast = self.folder / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(b"\0" * (1 << 20))
        await asyncio.sleep(for_s)
        ballast.unlink(missing_ok=True)
