"""The shared pool of a gateway: its processes register, report their blocks, fall silent and leave,
which workers and the other pool processes receive."""

from tandem.cluster.gateway.housekeeping import Heartbeats
from tandem.cluster.gateway.members import Members, PoolNode, PoolNodes
from tandem.cluster.gateway.operations import Broadcasts
from tandem.cluster.gateway.routing import Routing
from tandem.facts.fleet import Tier
from tandem.messages.cluster import (
    Audited,
    Deregister,
    LeasesRenewed,
    PoolNodeGone,
    PrefixCacheEmptied,
    Registered,
    RegisterPoolNode,
    RegistrationRefused,
    TiersReported,
    ToGateway,
    ToWorker,
)
from tandem.messages.gateway import Fence, GatewayEffect, SendToWorker
from tandem.messages.router import BlocksListed, BlocksReported, PoolNodeLost

Effects = list[GatewayEffect]


class SharedPool:
    """Without state of its own: `nodes` are shared with `Routing`, which sends to them."""

    def __init__(
        self, nodes: PoolNodes, members: Members, routing: Routing, *, heartbeats: Heartbeats
    ) -> None:
        self.nodes = nodes
        self._members = members
        self._routing = routing
        self._heartbeats = heartbeats

    def clash(self, peer: str, worker: str) -> str:
        """Why a worker cannot have this name or this connection; empty when it can."""
        if self.nodes.of_name(worker) or self.nodes.of_peer(peer):
            return f"{worker} is already known as a process of the shared pool"
        return ""

    def register_pool_node(
        self, peer: str, register: RegisterPoolNode, terms: Registered, now_ns: int
    ) -> Effects:
        """A process registers."""
        effects: Effects = []
        known, older = self.nodes.of_peer(peer), self.nodes.of_name(register.worker)
        problem = self.nodes.objection(register)
        if self._members.of_name(register.worker) or self._members.of_peer(peer):
            problem = problem or f"{register.worker} is already known as a worker"
        if problem:
            if known is not None:
                effects += self.deregister(known, problem, now_ns)
            return [*effects, SendToWorker(peer, RegistrationRefused(problem))]
        again = known is not None and known.registration == register
        if known is not None and again:
            # It reports its content anew; for workers it was never gone.
            effects += self._lose_content(known, now_ns)
        elif known is not None:
            effects += self.deregister(known, "its process has registered again", now_ns)
        if not again and older is not None and older is not known:
            reason = "another process has taken its name"
            self.nodes.outdated(older)
            effects.append(Fence(older.peer, reason))
            effects += self.deregister(older, reason, now_ns)
        node = PoolNode(peer, register)
        self.nodes.add(node)
        self._heartbeats.received(peer, now_ns)
        effects.append(SendToWorker(peer, terms))
        effects += [SendToWorker(peer, each.joined) for each in self.nodes.others(node)]
        if not again:
            effects += self._send_others(node, node.joined)
        return effects

    def joined_messages(self, peer: str) -> Effects:
        """What a worker that has just registered receives about the pool."""
        return [SendToWorker(peer, node.joined) for node in self.nodes]

    def keepalives(self) -> Effects:
        """The gateway lives; it has no requests there."""
        return [SendToWorker(node.peer, LeasesRenewed(())) for node in self.nodes]

    def pool_message(
        self, node: PoolNode, message: ToGateway, broadcasts: Broadcasts, now_ns: int
    ) -> Effects:
        """A message of a registered process."""
        match message:
            case BlocksReported(tier=Tier.REMOTE) | BlocksListed(tier=Tier.REMOTE):
                self._routing.gather(message)
            case TiersReported(_, tiers):
                node.tiers = tiers
            case Audited() | PrefixCacheEmptied():
                return broadcasts.answered(message)
            case Deregister():
                return self.deregister(node, "", now_ns) + broadcasts.gone(node.name)
            case _:
                # Nothing else comes from a process of the pool.
                pass
        return []

    def deregister(self, node: PoolNode, reason: str, now_ns: int) -> Effects:
        """It is gone, for a `reason` or (empty) because it was to leave."""
        effects = self._lose_content(node, now_ns)
        if reason:
            self._members.lost.append((node.name, reason))
        gone = PoolNodeGone(node.name, node.registration.incarnation)
        return effects + self._send_others(node, gone)

    def _lose_content(self, node: PoolNode, now_ns: int) -> Effects:
        self.nodes.remove(node)
        self._heartbeats.forget(node.peer)
        self._routing.gather(PoolNodeLost(node.name))
        return self._routing.flush(now_ns)

    def _send_others(self, node: PoolNode, message: ToWorker) -> Effects:
        others = [*self._members, *self.nodes.others(node)]
        return [SendToWorker(other.peer, message) for other in others]
