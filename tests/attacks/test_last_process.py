"""Whoever makes the last gateway, or the last worker of a phase, fail again and again does not get
rid of it."""

import asyncio
import signal

import pytest

from tandem.facts.fleet import Role
from tandem.live.launching.launcher import Ended, Program
from tandem.live.launching.supervisor import RestartConfig, Supervisor
from tandem.live.processes.cluster import indispensable

IMPATIENT = RestartConfig(first_delay_s=0.0, longest_delay_s=0.0, most_in_a_row=2)


class FailingLauncher:
    """Every process ends as soon as it is told to."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self.hosts: dict[str, str] = {}
        self.starts: list[str] = []
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()

    async def open(self, phase) -> None:
        pass

    async def close(self) -> None:
        pass

    async def start(self, program: Program) -> int:
        self.starts.append(program.name)
        self.pids[program.name] = len(self.starts)
        return len(self.starts)

    def send(self, name: str, number: signal.Signals) -> None:
        if name in self.pids:
            self.end(name, -number)

    def end(self, name: str, code: int) -> None:
        self._ended.put_nowait(Ended(name, self.pids.pop(name), code))

    async def ended(self) -> Ended:
        return await self._ended.get()


async def times(launcher: FailingLauncher, name: str, starts: int) -> None:
    while launcher.starts.count(name) < starts:
        await asyncio.sleep(0)


@pytest.mark.parametrize("code", [2, 1, -signal.SIGSEGV])
async def test_the_last_one_is_started_for_ever_and_others_are_given_up(code):
    launcher, notices = FailingLauncher(), []
    gateways = {"gateway-0", "gateway-1"}
    supervisor = Supervisor(
        launcher,
        notices.append,
        IMPATIENT,
        indispensable=lambda name, others: name in gateways and gateways.isdisjoint(others),
    )
    for name in sorted(gateways):
        await supervisor.start(Program(name, ("-",)))
        supervisor.confirm(name)
    allowed = 1 if code == 2 else 1 + IMPATIENT.most_in_a_row
    for start in range(allowed):
        await times(launcher, "gateway-0", start + 1)
        launcher.end("gateway-0", code)
    assert (await supervisor.failed()).name == "gateway-0"
    for start in range(50):
        await times(launcher, "gateway-1", start + 1)
        launcher.end("gateway-1", code)
    await times(launcher, "gateway-1", 51)
    assert launcher.starts.count("gateway-0") == allowed
    assert "nobody else does its work" in notices[-1].text
    await supervisor.close()


@pytest.mark.parametrize(
    ("roles", "name", "others", "last"),
    [
        ("pd", "gateway-0", (), True),
        ("pd", "gateway-0", ("gateway-1", "w0"), False),
        ("ppd", "w0", ("gateway-0", "w1", "w2"), False),
        ("ppd", "w0", ("gateway-0", "w2"), True),
        ("ppd", "w2", ("w0", "w1"), True),
        ("bpd", "w0", ("w1", "w2"), False),
        ("bpd", "w1", ("w0",), False),
        ("b", "w0", ("gateway-0", "pool-0"), True),
        ("b", "pool-0", ("gateway-0",), False),
    ],
)
def test_who_is_the_last(roles, name, others, last):
    kinds = {"p": Role.PREFILL, "d": Role.DECODE, "b": Role.BOTH}
    known = {f"w{index}": kinds[each] for index, each in enumerate(roles)}
    assert indispensable(name, others, {"gateway-0", "gateway-1"}, known) is last
