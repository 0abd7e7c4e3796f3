"""Periodic work of a gateway: heartbeats (who has been silent for too long), renewing leases at
workers, following drains, letting drained workers go."""

from collections.abc import Iterator

from tandem.cluster.gateway.members import Member, Members
from tandem.cluster.gateway.operations import Drains
from tandem.cluster.gateway.routing import Routing
from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.migration import to_migrate
from tandem.cluster.router.request_state import Stage
from tandem.messages.cluster import LeasesRenewed, NotNeeded
from tandem.messages.gateway import GatewayEffect, SendToWorker
from tandem.messages.router import MigrationsRequested


class Heartbeats:
    """When each peer sent its last message; after `silence_ns` without one it counts as dead."""

    def __init__(self, silence_ns: int) -> None:
        assert silence_ns > 0
        self.silence_ns = silence_ns
        # By instant, the longest silent first.
        self._last_message_ns: dict[str, int] = {}

    def received(self, peer: str, now_ns: int) -> None:
        """A sign of life, the first or one more."""
        self._last_message_ns.pop(peer, None)
        self._last_message_ns[peer] = now_ns

    def forget(self, peer: str) -> None:
        self._last_message_ns.pop(peer, None)

    def silent_ns(self, peer: str, now_ns: int) -> int:
        """How long a known peer has been silent."""
        return now_ns - self._last_message_ns[peer]

    def slept(self, asleep_ns: int) -> None:
        """This process itself was paused for so long: that is no peer's silence."""
        for peer in self._last_message_ns:
            self._last_message_ns[peer] += asleep_ns

    def silent(self, now_ns: int) -> list[str]:
        """Who is to be taken for dead, the longest silent first."""
        found = []
        for peer, last_message_ns in self._last_message_ns.items():
            if now_ns - last_message_ns < self.silence_ns:
                break
            found.append(peer)
        return found

    def next_wakeup(self) -> int | None:
        """When the next one is to be taken for dead if nothing comes."""
        for last_message_ns in self._last_message_ns.values():
            return last_message_ns + self.silence_ns
        return None


# More ids than that go in several messages.
RENEWED_AT_ONCE = 4096
# So often a draining worker's requests are asked to go on elsewhere; the others finish where they
# are.
MIGRATIONS = 8


def renewals(router: RouterMachine, members: Members) -> Iterator[SendToWorker]:
    """To every worker, all requests that need it. It is also the gateway's heartbeat."""
    wanted: dict[str, list[str]] = {member.name: [] for member in members}
    for state in router.requests.values():
        for worker in dict.fromkeys((state.prefill, state.decode)):
            if worker in wanted and state.needs(worker):
                wanted[worker].append(state.name_at(worker))
    for member in members:
        wire_ids = wanted[member.name]
        for start in range(0, max(1, len(wire_ids)), RENEWED_AT_ONCE):
            some = tuple(wire_ids[start : start + RENEWED_AT_ONCE])
            yield SendToWorker(member.peer, LeasesRenewed(some))


def check_drains(
    drains: Drains, members: Members, routing: Routing, now_ns: int
) -> list[GatewayEffect]:
    """Release draining workers that are not needed any more; migrate requests off the others."""
    effects: list[GatewayEffect] = []
    router = routing.router
    for _, member in sorted(members.draining.items()):
        # Looking for who needs it takes time: once a report is often enough.
        if not member.reported:
            continue
        if not needed(router, member):
            if not member.let_go:
                member.let_go = True
                effects.append(SendToWorker(member.peer, NotNeeded()))
            if empty(member):
                effects += drains.emptied(member)
        elif wanted := migration(router, member):
            routing.gather(wanted)
        member.reported = False
    return effects + routing.flush(now_ns)


def needed(router: RouterMachine, member: Member) -> bool:
    """Whether a request of this gateway still needs the worker."""
    return any(state.needs(member.name) for state in router.requests.values())


def empty(member: Member) -> bool:
    """Whether the worker holds nothing by its last report."""
    load = member.load
    if load.running_sequences or load.waiting_requests:
        return False
    return load.free_blocks == member.registration.export.block_count


def migration(router: RouterMachine, member: Member) -> MigrationsRequested | None:
    """Where decoding requests of a draining worker may go on: at whoever has most room, up to half
    of that at a time."""
    decodes = any(
        state.stage is Stage.DECODING and state.decode == member.name
        for state in router.requests.values()
    )
    if not decodes or member.migrations >= MIGRATIONS:
        return None
    fleet = router.admission.fleet
    on_their_way = [each for each in router.requests.values() if each.stage is not Stage.QUEUED]
    room = [(view.free_blocks * view.block_size, view.worker) for view in fleet.views()]
    for tokens, target in sorted(room, reverse=True):
        wanted = MigrationsRequested(member.name, target, tokens // 2)
        if to_migrate(wanted, on_their_way, fleet):
            # Only what moves somebody is an attempt: another target may have room later.
            member.migrations += 1
            return wanted
    return None
