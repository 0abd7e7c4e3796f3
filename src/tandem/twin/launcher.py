"""The launcher of a simulated cluster: starts the first workers, those that the gateway's planner
wants, and those that a fault has killed."""

from tandem.facts.fleet import Role
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.scenario import Scenario


class Launcher:
    """Whoever starts is paid for from the moment it was asked for. `starting` and `dead` are by
    name, with the role that they take or had."""

    def __init__(self, scenario: Scenario, cluster: SimulatedCluster) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._queue = cluster.queue
        self._starting: dict[str, Role] = {}
        self._dead: dict[str, Role] = {}
        self._asked_ns: dict[str, int] = {}
        cluster.launcher = self

    def open(self) -> None:
        """The first workers are up at instant 0."""
        for pool in self._scenario.pools:
            for name in pool.workers()[: pool.count]:
                self._cluster.start_worker(name, pool.role)

    def start(self, name: str, role: Role) -> None:
        """It is up after its start-up time, unless it is up or on its way already."""
        if name in self._cluster.workers or name in self._starting:
            return
        self._starting[name] = role
        self._asked_ns[name] = self._queue.now_ns
        startup_ns = round(self._cluster.pools[name].kind.startup_s * 1e9)
        self._queue.at(self._queue.now_ns + startup_ns, lambda _: self._up(name))

    @property
    def starting(self) -> list[str]:
        """Who is on the way up."""
        return list(self._starting)

    def give_up(self, name: str) -> None:
        """A worker that is on the way up does not get there."""
        role = self._starting.pop(name, None)
        if role is not None:
            self._charge_start(name, role)

    def replace(self, name: str) -> None:
        """A worker that died is up again at once (its start-up time is part of the fault)."""
        role = self._dead.pop(name, None)
        if role is not None and name not in {**self._cluster.workers, **self._starting}:
            self._starting[name] = role
            self._up(name)

    def kill(self, name: str, *, silently: bool = False) -> None:
        """The worker dies, wherever it is on its way."""
        role = self._starting.get(name)
        self.give_up(name)
        if worker := self._cluster.workers.get(name):
            role = worker.role
            self._cluster.steps.of(name).crashes += 1
            self._cluster.kill_worker(name, silently=silently)
        if role is not None:
            self._dead[name] = role

    def _charge_start(self, name: str, role: Role) -> None:
        now_ns = self._queue.now_ns
        record = self._cluster.record_of(name, role)
        self._cluster.steps.worker(record).up_ns += now_ns - self._asked_ns.pop(name, now_ns)

    def _up(self, name: str) -> None:
        role = self._starting.pop(name, None)
        if role is not None:
            self._charge_start(name, role)
            self._cluster.start_worker(name, role)
