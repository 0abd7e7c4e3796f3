"""Every process of a cluster on a network of its own: a namespace each, a cable to one switch, and
scissors. The processes are those of `tandem up`; this has to run as root on Linux.

python -m tests.chaos.namespaces CLUSTER.yaml --state-dir DIRECTORY --network N

does what `tandem up` does. Gateways and the supervisor stay on the switch itself, at 10.213.N.1.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tandem.commands.cluster_screen import CTRL_C, Screen
from tandem.config.cluster.live import read_live_cluster
from tandem.live.launching.launcher import LocalLauncher, Program
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.processes.cluster import ClusterRun, RunLimits, View


def possible() -> bool:
    """Whether namespaces can be made here."""
    if not shutil.which("ip") or os.geteuid() != 0:
        return False
    name = f"tandem-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class Switch:
    """The network of number `number`, below 250. `host(name)` is the namespace of a process, made
    when it is asked for first."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.bridge = f"tndm{number}"
        self._hosts: dict[str, int] = {}

    @property
    def address(self) -> str:
        return f"10.213.{self.number}.1"

    def cable(self, name: str) -> str:
        """The end of a host's cable at the switch."""
        return f"tn{self.number}-{name}"[:15]

    def open(self) -> None:
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.address}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")

    def host(self, name: str) -> str:
        space = f"{self.bridge}-{name}"
        if name in self._hosts:
            return space
        self._hosts[name] = number = len(self._hosts) + 2
        cable = self.cable(name)
        run("ip", "netns", "add", space)
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", cable, "master", self.bridge, "up")
        run("ip", "-n", space, "addr", "add", f"10.213.{self.number}.{number}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        return space

    def close(self) -> None:
        for name in self._hosts:
            subprocess.run(["ip", "netns", "del", f"{self.bridge}-{name}"], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)


def pull_cable(number: int, name: str, *, out: bool) -> None:
    """Nothing reaches this process, and it reaches nobody, until the cable is back."""
    run("ip", "link", "set", Switch(number).cable(name), "down" if out else "up")


def isolate(number: int, name: str, *, apart: bool) -> None:
    """Those that are isolated reach the gateways, but not each other."""
    cable = Switch(number).cable(name)
    run("bridge", "link", "set", "dev", cable, "isolated", "on" if apart else "off")


class NamespaceLauncher(LocalLauncher):
    """Starts gateways where it is itself, and everybody else on a host of their own."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._switch = switch

    async def start(self, program: Program) -> int:
        if not program.name.startswith("gateway-"):
            inside = ("ip", "netns", "exec", self._switch.host(program.name))
            program = replace(program, command=(*inside, *program.command))
        return await super().start(program)


async def up(path: Path, state: Path, switch: Switch) -> None:
    """Until a signal ends it."""
    file = read_live_cluster(str(path))
    directory = StateDirectory(state)
    directory.claim()
    screen = Screen(Console(width=120), CTRL_C)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    view = View(screen.phase, screen.notice, screen.ready)
    cluster = ClusterRun(
        file, directory, view, limits=RunLimits(), launcher=NamespaceLauncher(switch)
    )
    try:
        await cluster.run(stop)
    finally:
        screen.stop()
        directory.clear()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cluster", type=Path)
    options.add_argument("--state-dir", type=Path, required=True)
    options.add_argument("--network", type=int, required=True)
    wanted = options.parse_args()
    switch = Switch(wanted.network)
    switch.open()
    try:
        asyncio.run(up(wanted.cluster, wanted.state_dir.absolute(), switch))
    finally:
        switch.close()


if __name__ == "__main__":
    main()
