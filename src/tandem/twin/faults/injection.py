"""Plays the faults of a scenario: begins each at its instant and mends it afterwards."""

from collections.abc import Sequence
from functools import partial

from tandem.facts.fleet import Tier
from tandem.messages.cluster import Drain
from tandem.messages.gateway import DrainAsked, UndrainAsked
from tandem.policy.chance import draw
from tandem.report.record import Decision
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.faults.kinds import (
    ClientsLeave,
    Crash,
    Drained,
    Fault,
    GatewayCrash,
    Hang,
    LossyLink,
    Partition,
    SlowLink,
    Throttled,
    TierCorrupted,
    TierDown,
    TierFull,
    TierLost,
    link_factor,
    lost_share_of,
    speed_of,
)
from tandem.twin.launcher import Launcher
from tandem.twin.network.paths import fabric_ports
from tandem.twin.scenario import Scenario


class FaultInjection:
    """Begins and ends the faults. A crash or a hang hits whoever has the name at that instant; what
    follows from it is what the machines make of it."""

    def __init__(self, scenario: Scenario, cluster: SimulatedCluster, launcher: Launcher) -> None:
        self._cluster = cluster
        self._launcher = launcher
        self._active: list[Fault] = []
        self._operations = 0
        for fault in scenario.faults:
            cluster.queue.at(fault.begin_ns, partial(self._begin, fault))

    def _begin(self, fault: Fault, now_ns: int) -> None:
        cluster, network = self._cluster, self._cluster.transfers.network
        cluster.decided(Decision(now_ns, "", "fault", str(fault)))
        self._active.append(fault)
        if fault.end_ns is not None:
            cluster.queue.at(fault.end_ns, partial(self._end, fault))
        match fault.cause:
            case Crash(name) if name in cluster.pool_names:
                if name in cluster.pool_nodes:
                    cluster.kill_pool_node(name)
            case Crash(name, silently):
                self._launcher.kill(name, silently=silently)
            case Hang(name, replaced):
                self._hang(name, fault.end_ns, now_ns)
                if replaced and name in cluster.workers:
                    cluster.replace_worker(name, cluster.workers[name].role)
            case SlowLink(name) | LossyLink(name):
                self._set_links(name, now_ns)
            case Throttled(name):
                cluster.set_speed(name, speed_of(self._active, name))
            case Partition(one, other):
                sides = [self._ports(side) for side in (one, other)]
                network.cut(_name(fault), sides[0], sides[1], now_ns)
                cluster.transfers.watch()
                cluster.bus.cut(_name(fault), one, other)
            case TierDown(tier, name):
                cluster.set_tier(tier, name, up=False)
            case TierFull(tier, name):
                self._set_full(tier, name)
            case TierLost(tier, share, name):
                self._lose_tier(tier, name, share)
            case TierCorrupted(tier, name):
                for store in cluster.stores(tier, name):
                    store.spoil()
            case GatewayCrash(name) if name in cluster.gateways:
                cluster.lose_gateway(name)
            case Drained(name, then_role):
                self._ask(DrainAsked(self._next_operation(), name, Drain(then_role)))
            case ClientsLeave(share):
                self._leave(share, now_ns)

    def _end(self, fault: Fault, now_ns: int) -> None:
        cluster = self._cluster
        self._active.remove(fault)
        match fault.cause:
            case Crash(name) if name in cluster.pool_names:
                if name not in cluster.pool_nodes:
                    cluster.start_pool_node(name)
            case Crash(name):
                self._launcher.replace(name)
            case SlowLink(name) | LossyLink(name):
                self._set_links(name, now_ns)
            case Throttled(name):
                cluster.set_speed(name, speed_of(self._active, name))
            case Partition():
                cluster.transfers.network.heal(_name(fault), now_ns)
                cluster.transfers.watch()
                cluster.bus.heal(_name(fault))
            case TierDown(tier, name):
                cluster.set_tier(tier, name, up=True)
            case TierFull(tier, name):
                self._set_full(tier, name)
            case GatewayCrash(name):
                if not any(each.cause == fault.cause for each in self._active):
                    cluster.start_gateway(name)
            case Drained(name, None):
                self._ask(UndrainAsked(self._next_operation(), name))

    def _hang(self, name: str, until_ns: int | None, now_ns: int) -> None:
        cluster = self._cluster
        if name in cluster.workers:
            cluster.workers[name].hang(until_ns, now_ns)
        elif name in cluster.pool_nodes:
            cluster.pool_nodes[name].hang(until_ns, now_ns)
        elif name in cluster.gateways:
            cluster.gateways[name].hang(until_ns, now_ns)

    def _ports(self, names: Sequence[str]) -> list[str]:
        """Of the workers among them, those that lead to others."""
        workers = [name for name in names if name in self._cluster.pools]
        return [port for name in workers for port in fabric_ports(name)]

    def _set_full(self, tier: Tier, name: str) -> None:
        full = any(each.cause == TierFull(tier, name) for each in self._active)
        for store in self._cluster.stores(tier, name):
            store.full = full

    def _next_operation(self) -> int:
        self._operations += 1
        return self._operations

    def _ask(self, operation: DrainAsked | UndrainAsked) -> None:
        """An operator asks the first gateway that is up."""
        if self._cluster.gateway is not None:
            self._cluster.gateway.receive(operation)

    def _leave(self, share: float, now_ns: int) -> None:
        """Who leaves is drawn by name and instant."""
        for record in self._cluster.recorder.open_records():
            if draw(0, "client leaves", record.request_id, now_ns) < share:
                self._cluster.withdraw(record.request_id)

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
        self._cluster.transfers.set_loss(fabric_ports(name), lost_share_of(self._active, name))
        self._cluster.transfers.watch()


def _name(fault: Fault) -> str:
    return f"{fault.begin_ns} {fault}"
