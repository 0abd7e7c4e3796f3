"""The shared pool as a gateway sees it: processes register, report their blocks, fall silent and
leave; workers and other pool processes are told."""

from tandem.cluster.gateway.housekeeping import Heartbeats
from tandem.cluster.gateway.members import Members
from tandem.cluster.gateway.operations import Inquiries
from tandem.cluster.gateway.pool_nodes import PoolNode, PoolNodes
from tandem.cluster.gateway.routing import Routing
from tandem.facts.fleet import Tier
from tandem.messages.cluster import (
    Audited,
    Deregister,
    LeasesRenewed,
    PoolNodeGone,
    PoolNodeJoined,
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
    """Owns no books of its own: `nodes` are also known to whoever sends to them."""

    def __init__(
        self, nodes: PoolNodes, members: Members, routing: Routing, *, heartbeats: Heartbeats
    ) -> None:
        self.nodes = nodes
        self._members = members
        self._routing = routing
        self._heartbeats = heartbeats

    def clash(self, peer: str, worker: str) -> str:
        """Why a worker cannot have this name or speak from there; empty when it can."""
        if self.nodes.of_name(worker) or self.nodes.of_peer(peer):
            return f"{worker} is already known as a process of the shared pool"
        return ""

    def register_pool_node(
        self, peer: str, register: RegisterPoolNode, terms: Registered, now_ns: int
    ) -> Effects:
        """A process presents itself."""
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
            # What it holds is told anew; for workers it was never gone.
            effects += self._lose_content(known, now_ns)
        elif known is not None:
            effects += self.deregister(known, "its process presents itself anew", now_ns)
        if not again and older is not None and older is not known:
            reason = "another process has taken its name"
            self.nodes.outdated(older)
            effects.append(Fence(older.peer, reason))
            effects += self.deregister(older, reason, now_ns)
        node = PoolNode(peer, register)
        self.nodes.add(node)
        self._heartbeats.heard(peer, now_ns)
        effects.append(SendToWorker(peer, terms))
        effects += [SendToWorker(peer, _introduction(each)) for each in self.nodes.others(node)]
        if not again:
            effects += self._tell_others(node, _introduction(node))
        return effects

    def introductions(self, peer: str) -> Effects:
        """What a worker that has just joined is to know."""
        return [SendToWorker(peer, _introduction(node)) for node in self.nodes]

    def signs_of_life(self) -> Effects:
        """The gateway is there, and wants nothing in particular."""
        return [SendToWorker(node.peer, LeasesRenewed(())) for node in self.nodes]

    def pool_message(
        self, node: PoolNode, message: ToGateway, inquiries: Inquiries, now_ns: int
    ) -> Effects:
        """A process that is known says something."""
        match message:
            case BlocksReported(tier=Tier.REMOTE) | BlocksListed(tier=Tier.REMOTE):
                self._routing.gather(message)
            case TiersReported(_, tiers):
                node.tiers = tiers
            case Audited():
                return inquiries.answered(message)
            case Deregister():
                return self.deregister(node, "", now_ns) + inquiries.gone(node.name)
            case _:
                # Nothing else is for a process of the pool to say.
                pass
        return []

    def deregister(self, node: PoolNode, reason: str, now_ns: int) -> Effects:
        """It is gone, for a `reason` or (empty) because it was to leave."""
        effects = self._lose_content(node, now_ns)
        if reason:
            self._members.lost.append((node.name, reason))
        gone = PoolNodeGone(node.name, node.registration.incarnation)
        return effects + self._tell_others(node, gone)

    def _lose_content(self, node: PoolNode, now_ns: int) -> Effects:
        self.nodes.remove(node)
        self._heartbeats.forget(node.peer)
        self._routing.gather(PoolNodeLost(node.name))
        return self._routing.flush(now_ns)

    def _tell_others(self, node: PoolNode, news: ToWorker) -> Effects:
        hearers = [*self._members, *self.nodes.others(node)]
        return [SendToWorker(hearer.peer, news) for hearer in hearers]


def _introduction(node: PoolNode) -> PoolNodeJoined:
    return PoolNodeJoined(node.name, node.registration.incarnation, node.registration.address)
