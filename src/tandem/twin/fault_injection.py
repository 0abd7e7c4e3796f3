"""Plays the faults of a scenario: begins each at its instant and mends it afterwards."""

from functools import partial

from tandem.facts.fleet import Tier
from tandem.report.record import Decision
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.faults import (
    Crash,
    Fault,
    GatewayCrash,
    Hang,
    Partition,
    SlowLink,
    TierCorrupted,
    TierDown,
    TierLost,
    link_factor,
)
from tandem.twin.launcher import Launcher
from tandem.twin.network_paths import fabric_ports
from tandem.twin.scenario import Scenario


class FaultInjection:
    """Begins and ends the faults. A crash or a hang hits whoever has the name at that instant; what
    follows from it is what the machines make of it."""

    def __init__(self, scenario: Scenario, cluster: SimulatedCluster, launcher: Launcher) -> None:
        self._cluster = cluster
        self._launcher = launcher
        self._active: list[Fault] = []
        for fault in scenario.faults:
            cluster.queue.at(fault.begin_ns, partial(self._begin, fault))

    def _begin(self, fault: Fault, now_ns: int) -> None:
        cluster, network = self._cluster, self._cluster.transfers.network
        cluster.decided(Decision(now_ns, "", "fault", str(fault)))
        self._active.append(fault)
        if fault.end_ns is not None:
            cluster.queue.at(fault.end_ns, partial(self._end, fault))
        match fault.cause:
            case Crash(name):
                self._launcher.kill(name)
            case Hang(name) if name in cluster.workers:
                cluster.workers[name].hang(fault.end_ns, now_ns)
            case SlowLink(name):
                self._set_links(name, now_ns)
            case Partition(one, other):
                sides = [[port for n in side for port in fabric_ports(n)] for side in (one, other)]
                network.cut(_name(fault), sides[0], sides[1], now_ns)
                cluster.transfers.watch()
            case TierDown(tier, name):
                cluster.set_tier(tier, name, up=False)
            case TierLost(tier, share, name):
                self._lose_tier(tier, name, share)
            case TierCorrupted(tier, name):
                for store in cluster.stores(tier, name):
                    store.spoil()
            case GatewayCrash() if cluster.gateway is not None:
                cluster.lose_gateway()
                cluster.recorder.failed("its gateway died", now_ns)

    def _end(self, fault: Fault, now_ns: int) -> None:
        cluster = self._cluster
        self._active.remove(fault)
        match fault.cause:
            case Crash(name):
                self._launcher.replace(name)
            case SlowLink(name):
                self._set_links(name, now_ns)
            case Partition():
                cluster.transfers.network.heal(_name(fault), now_ns)
                cluster.transfers.watch()
            case TierDown(tier, name):
                cluster.set_tier(tier, name, up=True)
            case GatewayCrash():
                if not any(isinstance(each.cause, GatewayCrash) for each in self._active):
                    cluster.start_gateway()

    def _lose_tier(self, tier: Tier, name: str, share: float) -> None:
        """That a part of a tier is gone is found out by whoever reads it; a pool that loses all of
        it has been started anew."""
        if tier is Tier.REMOTE and share >= 1:
            for process in list(self._cluster.pool_nodes):
                self._cluster.kill_pool_node(process)
                self._cluster.start_pool_node(process)
            return
        for store in self._cluster.stores(tier, name):
            store.lose(share)

    def _set_links(self, name: str, now_ns: int) -> None:
        network = self._cluster.transfers.network
        for port in fabric_ports(name):
            network.set_factor(port, link_factor(self._active, name), now_ns)
        self._cluster.transfers.watch()


def _name(fault: Fault) -> str:
    return f"{fault.begin_ns} {fault}"
