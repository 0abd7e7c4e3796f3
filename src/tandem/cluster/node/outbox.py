"""The outbox of a worker: tokens and KV reports go to the gateway that owns the request, cache
events to all gateways; KV is reported once its metadata is exported."""

from collections.abc import Iterable, Mapping, Sequence

from tandem.cluster.node.gateway_connections import GatewayConnections
from tandem.cluster.node.leases import Leases
from tandem.cluster.node.publications import Publications, reported
from tandem.cluster.worker.output import rows_of
from tandem.facts.errors import Overloaded
from tandem.facts.fleet import Tier
from tandem.messages.cluster import ToGateway
from tandem.messages.node import NodeEffect, SendToGateway
from tandem.messages.router import (
    BlocksReported,
    ImportReported,
    KvReported,
    RequestBroken,
    RequestRefused,
    TokensReported,
)
from tandem.messages.worker import (
    EmitTokens,
    FailRequest,
    ImportBlocks,
    KvComputed,
    Refuse,
    ReportBlocks,
    RunStep,
    WorkerEffect,
)

Effects = list[NodeEffect]


class Outbox:
    """Owns the `leases`, which say whose a request is, and the `publications`."""

    def __init__(self, worker: str, block_size: int, gateways: GatewayConnections) -> None:
        self.worker = worker
        self.leases = Leases()
        self.publications = Publications(block_size)
        self._links = gateways

    def address(self, landed: Iterable[WorkerEffect]) -> Effects:
        """What the worker machine has said, to whom it concerns. What concerns nobody any more is
        left out."""
        effects: Effects = []
        for effect in landed:
            match effect:
                case RunStep():
                    effects.append(effect)
                case EmitTokens():
                    self._emit(effect, effects)
                case ReportBlocks(changes):
                    news = BlocksReported(self.worker, Tier.DEVICE, changes)
                    effects += (SendToGateway(name, news) for name, _ in self._links.serving())
                case ImportBlocks(request_id):
                    self._say(request_id, ImportReported(self.worker, effect), effects)
                case KvComputed():
                    self._announce(effect, effects)
                case Refuse(request_id, error):
                    again_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
                    refused = RequestRefused(self.worker, request_id, str(error), again_s)
                    self._say(request_id, refused, effects)
                case FailRequest(request_id, reason):
                    broken = RequestBroken(self.worker, request_id, reason)
                    self._say(request_id, broken, effects)
        return effects

    def published(self, publication_id: int) -> Effects:
        """The headers are written: what waited for them can be said."""
        ready = self.publications.published(publication_id)
        if not ready:
            return []
        rows_by_owner = self._by_owner([request_id for request_id, _ in ready])
        return [
            SendToGateway(owner, KvReported(self.worker, reported([ready[row] for row in rows])))
            for owner, rows in rows_by_owner.items()
        ]

    def end(self, request_ids: Iterable[str]) -> None:
        """These hold nothing here any more."""
        for request_id in request_ids:
            self.leases.end(request_id)
            self.publications.drop(request_id)

    def _emit(self, emission: EmitTokens, effects: Effects) -> None:
        rows_by_owner = self._by_owner(emission.request_ids)
        for owner, rows in rows_by_owner.items():
            whole = len(rows) == len(emission.request_ids)
            mine = emission if whole else rows_of(emission, rows)
            effects.append(SendToGateway(owner, TokensReported(self.worker, mine)))
        if emission.finish_reasons.count(None) < len(emission.finish_reasons):
            ends = zip(emission.request_ids, emission.finish_reasons, strict=True)
            self.end([request_id for request_id, reason in ends if reason is not None])

    def _announce(self, computed: KvComputed, effects: Effects) -> None:
        if computed.tokens == (0,):
            # It is lost: what waits to be said of it is not true any more.
            self._say(computed.request_ids[0], KvReported(self.worker, computed), effects)
            self.publications.drop(computed.request_ids[0])
            return
        publish = self.publications.add(computed)
        if publish is None:
            return
        if publish.blocks:
            effects.append(publish)
        else:
            effects += self.published(publish.publication_id)

    def _say(self, request_id: str, message: ToGateway, effects: Effects) -> None:
        owner = self.leases.owner(request_id)
        if owner is not None:
            effects.append(SendToGateway(owner, message))

    def _by_owner(self, request_ids: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Which rows belong to which gateway. Every request that the machine speaks of has one."""
        sole_owner = self.leases.sole_owner
        if sole_owner is not None:
            return {sole_owner: range(len(request_ids))}
        found: dict[str, list[int]] = {}
        owner_of = self.leases.owner
        for row, request_id in enumerate(request_ids):
            owner = owner_of(request_id)
            if owner is not None:
                found.setdefault(owner, []).append(row)
        return found
