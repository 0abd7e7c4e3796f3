"""Injects the faults of a schedule into a running cluster, and undoes them: signals, cables, bytes
on disk."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tandem.live.launching.state_directory import ProcessRecord, StateDirectory
from tests.chaos.live_faults import FaultKind, LiveFault
from tests.chaos.namespaces import isolate, pull_cable
from tests.kv.tier_blocks import RedisServer

DAMAGED_BYTES = 64


@dataclass
class FaultInjector:
    """`workers` are all that there should be. `network` is the number of the cluster's switch, if
    it has one; `folder` is where tiers keep their files. `done` are the faults that hit somebody,
    with their instants; `seen` is every process that ever ran."""

    state: Path
    workers: frozenset[str]
    seed: int = 0
    network: int | None = None
    folder: Path | None = None
    redis: RedisServer | None = None
    done: list[tuple[float, LiveFault]] = field(default_factory=list)
    seen: dict[str, set[ProcessRecord]] = field(default_factory=dict)

    def processes(self) -> dict[str, ProcessRecord]:
        """Those that run now, by the cluster's own record."""
        record = StateDirectory(self.state).read()
        found = {} if record is None else record.processes
        for name, process in found.items():
            self.seen.setdefault(name, set()).add(process)
        return found

    def all_run(self) -> bool:
        """Whether every process that there should be lives, as far as anybody knows."""
        running = self.processes()
        return self.workers <= running.keys() and all(each.alive for each in running.values())

    async def do_all(self, faults: Sequence[LiveFault]) -> None:
        """Each at its time from now; returns when all that lasts is over."""
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as doing:
            for fault in faults:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                doing.create_task(self.do(fault))

    async def do(self, fault: LiveFault) -> None:
        self.done.append((time.monotonic(), fault))
        match fault.kind:
            case FaultKind.KILL:
                self._signal(self._targets(fault), signal.SIGKILL)
            case FaultKind.STOP:
                targets = self._targets(fault)
                self._signal(targets, signal.SIGSTOP)
                await asyncio.sleep(fault.for_s)
                self._signal(targets, signal.SIGCONT)
            case FaultKind.CUT | FaultKind.ISOLATE:
                await self._disconnect(fault)
            case FaultKind.CORRUPT:
                self._corrupt_files(Random(f"{self.seed} {fault}"))
            case FaultKind.FILL:
                await self._fill(fault.for_s)
            case FaultKind.KILL_REDIS:
                assert self.redis is not None
                self.redis.kill()
                await asyncio.sleep(fault.for_s)
                self.redis.start()

    def _targets(self, fault: LiveFault) -> list[ProcessRecord]:
        running = self.processes()
        return [running[name] for name in fault.victims if name in running]

    def _signal(self, targets: Sequence[ProcessRecord], number: signal.Signals) -> None:
        for target in targets:
            with suppress(ProcessLookupError):
                if target.alive:
                    os.kill(target.pid, number)

    async def _disconnect(self, fault: LiveFault) -> None:
        assert self.network is not None
        names = fault.victims or sorted(self.workers)
        for name in names:
            self._cable(fault.kind, name, True)
        await asyncio.sleep(fault.for_s)
        for name in names:
            self._cable(fault.kind, name, False)

    def _cable(self, kind: FaultKind, name: str, begins: bool) -> None:
        assert self.network is not None
        if kind is FaultKind.CUT:
            pull_cable(self.network, name, out=begins)
        else:
            isolate(self.network, name, apart=begins)

    def _files(self) -> list[Path]:
        assert self.folder is not None
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in found if path.stat().st_size > DAMAGED_BYTES)

    def _corrupt_files(self, chance: Random) -> None:
        """Bytes in the middle of every file are turned over."""
        for path in self._files():
            with suppress(OSError), path.open("r+b") as file:
                for _ in range(8):
                    file.seek(chance.randrange(path.stat().st_size - DAMAGED_BYTES))
                    data = file.read(DAMAGED_BYTES)
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
