"""Plays the faults of a scenario: begins each at its instant and mends it afterwards."""

from functools import partial

from tandem.facts.fleet import Tier
from tandem.messages.router import RequestWithdrawn
from tandem.report.record import Decision
from tandem.twin.faults import (
    Crash,
    Fault,
    GatewayCrash,
    Hang,
    Partition,
    SlowLink,
    TierDown,
    TierLost,
    TierSpoilt,
    link_factor,
)
from tandem.twin.network_paths import fabric_ports
from tandem.twin.scenario import Scenario
from tandem.twin.staffing import Staffing
from tandem.twin.world import World


class Misfortune:
    """Begins and ends the faults. A crash or a hang hits whoever has the name at that instant."""

    def __init__(self, scenario: Scenario, world: World, staffing: Staffing) -> None:
        self._scenario = scenario
        self._world = world
        self._staffing = staffing
        self._agenda = world.agenda
        self._active: list[Fault] = []
        for fault in scenario.faults:
            self._agenda.at(fault.begin_ns, partial(self._begin, fault))

    def _begin(self, fault: Fault, now_ns: int) -> None:
        world = self._world
        world.decide(Decision(now_ns, "", "fault", str(fault)))
        self._active.append(fault)
        if fault.end_ns is not None:
            self._agenda.at(fault.end_ns, partial(self._end, fault))
        match fault.cause:
            case Crash(name):
                self._staffing.kill(name, now_ns)
            case Hang(name) if name in world.members.up:
                self._hang(name, fault, now_ns)
            case SlowLink(name):
                self._set_links(name, now_ns)
            case Partition(one, other):
                sides = [[port for n in side for port in fabric_ports(n)] for side in (one, other)]
                world.transport.shipping.network.cut(_name(fault), sides[0], sides[1], now_ns)
                world.transport.shipping.watch(now_ns)
            case TierDown(tier, name):
                self._set_tier(tier, name, False)
            case TierLost(tier, share, name):
                world.transport.tiers.damage.lose(tier, name, share, now_ns)
            case TierSpoilt(tier, name):
                world.transport.tiers.damage.spoil(tier, name)
            case GatewayCrash():
                self._lose_gateway(now_ns)

    def _end(self, fault: Fault, now_ns: int) -> None:
        world = self._world
        self._active.remove(fault)
        match fault.cause:
            case Crash(name):
                self._staffing.replace(name, now_ns)
            case SlowLink(name):
                self._set_links(name, now_ns)
            case Partition():
                world.transport.shipping.network.heal(_name(fault), now_ns)
                world.transport.shipping.watch(now_ns)
            case TierDown(tier, name):
                self._set_tier(tier, name, True)
            case GatewayCrash():
                world.gateway_up = not any(
                    isinstance(each.cause, GatewayCrash) for each in self._active
                )

    def _hang(self, name: str, fault: Fault, now_ns: int) -> None:
        """It moves again after the fault, unless it was given up for dead before: then it comes
        back empty."""
        timeout_ns = round(self._scenario.heartbeat_timeout_s * 1e9)
        duration_ns = None if fault.end_ns is None else fault.end_ns - now_ns
        member = self._world.members.up[name]
        self._world.members.freeze(name, duration_ns or 10 * timeout_ns, now_ns)
        if duration_ns is not None and duration_ns <= timeout_ns:
            return

        def give_up(at_ns: int) -> None:
            if self._world.members.up.get(name) is member:
                self._staffing.kill(name, at_ns)

        self._agenda.at(now_ns + timeout_ns, give_up)
        if fault.end_ns is not None:
            self._agenda.at(fault.end_ns, lambda at_ns: self._staffing.replace(name, at_ns))

    def _lose_gateway(self, now_ns: int) -> None:
        """What it was asked fails, and workers are told to drop it. Whoever comes before it is
        back fails, too."""
        world = self._world
        world.catch_up(now_ns)
        world.gateway_up = False
        under_way = list(world.router.requests)
        world.recorder.failed("its gateway died", now_ns)
        for request_id in under_way:
            world.tell_router(RequestWithdrawn(request_id), now_ns)

    def _set_links(self, name: str, now_ns: int) -> None:
        network = self._world.transport.shipping.network
        for port in fabric_ports(name):
            network.set_factor(port, link_factor(self._active, name), now_ns)
        self._world.transport.shipping.watch(now_ns)

    def _set_tier(self, tier: Tier, name: str, up: bool) -> None:
        for worker, hierarchy in self._world.transport.tiers.hierarchies.items():
            if tier in hierarchy.tiers and name in ("", worker):
                hierarchy.tiers[tier].up = up


def _name(fault: Fault) -> str:
    return f"{fault.begin_ns} {fault}"
