"""The world of the node laws in foul weather: far more goes wrong, channels and copies are cut for
a while, and every fault is counted by its kind."""

from random import Random

from tandem.cluster.worker.machine import WorkerConfig
from tests.cluster.node_cluster import Gate, NodeCluster, Process

# Turns in a hundred at which something goes wrong, besides those of the world itself.
STORM_TURNS = 14
KINDS = (
    "aborts",
    "kills",
    "hangs",
    "partitions",
    "gateway restarts",
    "copies lost",
    "copies cut off",
)


class StormyCluster(NodeCluster):
    """`faults` counts what was done to it, by kind; `seen` counts what came of it. `cut` are the
    pairs that cannot reach each other now: a gateway and a worker, or two workers, by name."""

    def __init__(self, configs: dict[str, WorkerConfig], gateways: int, chance: Random) -> None:
        self.cut: set[tuple[str, str]] = set()
        self.faults = dict.fromkeys(KINDS, 0)
        super().__init__(configs, gateways, chance)

    def turn(self) -> None:
        if self.chance.randrange(100) >= STORM_TURNS:
            super().turn()
            return
        choices = self.mischief()
        if choices:
            action, *arguments = self.chance.choice(choices)
            action(*arguments)

    def mischief(self) -> list[tuple]:
        choices = super().mischief()
        for pair in sorted(self.cut):
            choices += [(self.heal, pair)] * 2
        names = sorted({process.name for process in self.living()})
        for name in names:
            for other in (*sorted(self.gates), *names):
                if other < name and (other, name) not in self.cut and not self.chance.randrange(6):
                    choices.append((self.part, (other, name)))
        return choices

    # What goes wrong

    def crash_worker(self, process: Process) -> None:
        self.faults["kills"] += 1
        super().crash_worker(process)

    def hang(self, one: Process | Gate) -> None:
        self.faults["hangs"] += 1
        super().hang(one)

    def restart_gateway(self, name: str) -> None:
        self.faults["gateway restarts"] += 1
        super().restart_gateway(name)

    def withdraw(self, gate: Gate, request_id: str) -> None:
        self.faults["aborts"] += 1
        super().withdraw(gate, request_id)

    def part(self, pair: tuple[str, str]) -> None:
        """Nothing passes between these two."""
        self.faults["partitions"] += 1
        self.cut.add(pair)

    def heal(self, pair: tuple[str, str]) -> None:
        """What was said meanwhile comes late, or is lost along with the connection."""
        self.cut.remove(pair)
        gateway, name = pair
        if gateway not in self.gates or self.chance.randrange(2):
            return
        for process in self.living():
            if process.name == name and not process.hung:
                self._reconnect(gateway, process)

    # What it does to the others

    def routine(self) -> list[tuple]:
        return [choice for choice in super().routine() if self._passes(choice)]

    def _passes(self, choice: tuple) -> bool:
        action, *arguments = choice
        if action == self.deliver_up:
            gateway, peer = arguments
            return (gateway, peer.split("/")[0]) not in self.cut
        if action == self.deliver_down:
            gateway, process = arguments
            return (gateway, process.name) not in self.cut
        return True

    def end_move(self, process: Process, move_id: int) -> None:
        lost = self.seen["transfers failed"]
        super().end_move(process, move_id)
        self.faults["copies lost"] += self.seen["transfers failed"] - lost

    def _read(self, process: Process, order) -> list[bytes] | None:
        if tuple(sorted((process.name, order.source))) in self.cut:
            self.faults["copies cut off"] += 1
            return None
        return super()._read(process, order)

    def settle(self) -> None:
        for pair in sorted(self.cut):
            self.heal(pair)
        super().settle()
