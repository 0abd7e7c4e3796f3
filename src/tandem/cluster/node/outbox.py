"""The outbox of a worker: tokens and KV reports go to the gateway that owns the request, cache
events to all. KV that others may read is reported once its block metadata is exported."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.cluster.node.gateways import GatewayConnections, Leases
from tandem.cluster.worker.output import rows_of
from tandem.facts.errors import Overloaded
from tandem.facts.fleet import Tier
from tandem.messages.cluster import ToGateway
from tandem.messages.node import ExportBlocks, NodeEffect, SendToGateway
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


@dataclass(frozen=True, slots=True)
class Announcement:
    """What will be said of one request once publication `export_id` is done."""

    export_id: int
    tokens: int
    blocks: tuple[int, ...]
    held: bool
    versions: tuple[int, ...]


@dataclass(slots=True)
class Announced:
    """One request: `tokens` have been announced or wait in `coming` to be."""

    tokens: int = 0
    coming: deque[Announcement] = field(default_factory=deque)


class BlockExports:
    """Owns the publications under way. Announcements of one request keep their order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._requests: dict[str, Announced] = {}
        # Whose announcements wait for a publication under way, and which blocks it covers.
        self._under_way: dict[int, tuple[list[str], dict[int, int]]] = {}
        # Under which version a block's header was last written; whole blocks never change.
        self._written: dict[int, int] = {}
        self._count = 0

    @property
    def request_ids(self) -> set[str]:
        return set(self._requests)

    def add(self, computed: KvComputed) -> ExportBlocks | None:
        """KV of these has been computed further. Gives what is to be published for it."""
        export_id = self._count
        to_write: dict[int, int] = {}
        waiting: list[str] = []
        for index, request_id in enumerate(computed.request_ids):
            row = self._row(computed, index)
            entry = self._requests.setdefault(request_id, Announced())
            if row.tokens <= entry.tokens and not row.held:
                continue
            known = entry.tokens // self.block_size
            new = zip(row.blocks[known:], row.versions[known:], strict=True)
            to_write |= {block: g for block, g in new if self._written.get(block) != g}
            entry.tokens = row.tokens
            entry.coming.append(row)
            waiting.append(request_id)
        if not waiting:
            return None
        self._count += 1
        self._under_way[export_id] = waiting, to_write
        return ExportBlocks(export_id, tuple(to_write), tuple(to_write.values()))

    def published(self, export_id: int) -> list[tuple[str, Announcement]]:
        """A publication is done. Gives what may be said now, with the request's id, in order."""
        waiting, written = self._under_way.pop(export_id)
        self._written |= written
        found = []
        for request_id in waiting:
            entry = self._requests.get(request_id)
            while entry and entry.coming and entry.coming[0].export_id not in self._under_way:
                found.append((request_id, entry.coming.popleft()))
        return found

    def drop(self, request_id: str) -> None:
        """Nothing is to be said of this one any more."""
        self._requests.pop(request_id, None)

    def _row(self, computed: KvComputed, index: int) -> Announcement:
        tokens, held = computed.tokens[index], computed.held[index]
        if not held:
            tokens -= tokens % self.block_size
        block_count = -(-tokens // self.block_size)
        return Announcement(
            export_id=self._count,
            tokens=tokens,
            blocks=computed.blocks[index][:block_count],
            held=held,
            versions=computed.versions[index][:block_count],
        )


def reported(announcements: Iterable[tuple[str, Announcement]]) -> KvComputed:
    """These announcements in one message."""
    rows = list(announcements)
    return KvComputed(
        request_ids=tuple(request_id for request_id, _ in rows),
        tokens=tuple(row.tokens for _, row in rows),
        blocks=tuple(row.blocks for _, row in rows),
        held=tuple(row.held for _, row in rows),
        versions=tuple(row.versions for _, row in rows),
    )


Effects = list[NodeEffect]


class Outbox:
    """Owns the `leases`, which say whose a request is, and the `publications`."""

    def __init__(self, worker: str, block_size: int, gateways: GatewayConnections) -> None:
        self.worker = worker
        self.leases = Leases()
        self.block_exports = BlockExports(block_size)
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
                    self._emit(effect, 1, effects)
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

    def repeated(self, emission: EmitTokens, repeats: int) -> Effects:
        """The worker machine has said this so many times in a row."""
        effects: Effects = []
        self._emit(emission, repeats, effects)
        return effects

    def published(self, export_id: int) -> Effects:
        """The headers are written: what waited for them can be said."""
        ready = self.block_exports.published(export_id)
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
            self.block_exports.drop(request_id)

    def _emit(self, emission: EmitTokens, repeats: int, effects: Effects) -> None:
        rows_by_owner = self._by_owner(emission.request_ids)
        for owner, rows in rows_by_owner.items():
            whole = len(rows) == len(emission.request_ids)
            mine = emission if whole else rows_of(emission, rows)
            effects.append(SendToGateway(owner, TokensReported(self.worker, mine, repeats)))
        if emission.finish_reasons.count(None) < len(emission.finish_reasons):
            ends = zip(emission.request_ids, emission.finish_reasons, strict=True)
            self.end([request_id for request_id, reason in ends if reason is not None])

    def _announce(self, computed: KvComputed, effects: Effects) -> None:
        if computed.tokens == (0,):
            # It is lost: what waits to be said of it is not true any more.
            self._say(computed.request_ids[0], KvReported(self.worker, computed), effects)
            self.block_exports.drop(computed.request_ids[0])
            return
        publish = self.block_exports.add(computed)
        if publish is None:
            return
        if publish.blocks:
            effects.append(publish)
        else:
            effects += self.published(publish.export_id)

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
