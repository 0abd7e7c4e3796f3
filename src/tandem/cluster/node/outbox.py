"""The outbox of a worker: tokens and KV reports go to the gateway that owns the request, cache
events to all. KV that others may read is reported once its block metadata is exported."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

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
    BlocksCommitted,
    EmitTokens,
    FailRequest,
    ImportBlocks,
    KvComputed,
    Refuse,
    ReportBlocks,
    RunStep,
    WorkerEffect,
)


class PendingReport(Struct, frozen=True):
    """The report on one request that is sent once the export `export_id` is done."""

    export_id: int
    tokens: int
    blocks: tuple[int, ...]
    held: bool
    versions: tuple[int, ...]


@dataclass(slots=True)
class ExportProgress:
    """One request: `tokens` have been reported, or will be by what is `pending`."""

    tokens: int = 0
    pending: deque[PendingReport] = field(default_factory=deque)


class BlockExports:
    """Owns the exports under way. Reports on one request keep their order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._requests: dict[str, ExportProgress] = {}
        # Whose reports wait for an export under way, and which blocks it covers.
        self._under_way: dict[int, tuple[list[str], dict[int, int]]] = {}
        # Under which version a block's metadata was last written; whole blocks never change.
        self._written: dict[int, int] = {}
        self._count = 0

    @property
    def request_ids(self) -> set[str]:
        return set(self._requests)

    def add(self, computed: KvComputed) -> ExportBlocks | None:
        """KV of these has been computed further. Gives the export that its report waits for."""
        export_id = self._count
        to_write: dict[int, int] = {}
        waiting: list[str] = []
        for index, request_id in enumerate(computed.request_ids):
            row = self._row(computed, index)
            entry = self._requests.setdefault(request_id, ExportProgress())
            if row.tokens <= entry.tokens and not row.held:
                continue
            known = entry.tokens // self.block_size
            new = zip(row.blocks[known:], row.versions[known:], strict=True)
            to_write |= {block: g for block, g in new if self._written.get(block) != g}
            entry.tokens = row.tokens
            entry.pending.append(row)
            waiting.append(request_id)
        if not waiting:
            return None
        self._count += 1
        self._under_way[export_id] = waiting, to_write
        return ExportBlocks(export_id, tuple(to_write), tuple(to_write.values()))

    def exported(self, export_id: int) -> list[tuple[str, PendingReport]]:
        """An export is done. Gives the reports that may be sent now, with the request's id."""
        waiting, written = self._under_way.pop(export_id)
        self._written |= written
        found = []
        for request_id in waiting:
            entry = self._requests.get(request_id)
            while entry and entry.pending and entry.pending[0].export_id not in self._under_way:
                found.append((request_id, entry.pending.popleft()))
        return found

    def drop(self, request_id: str) -> None:
        """Nothing of this one is reported any more."""
        self._requests.pop(request_id, None)

    def _row(self, computed: KvComputed, index: int) -> PendingReport:
        tokens, held = computed.tokens[index], computed.held[index]
        if not held:
            tokens -= tokens % self.block_size
        block_count = -(-tokens // self.block_size)
        return PendingReport(
            export_id=self._count,
            tokens=tokens,
            blocks=computed.blocks[index][:block_count],
            held=held,
            versions=computed.versions[index][:block_count],
        )


def merged(pending: Iterable[tuple[str, PendingReport]]) -> KvComputed:
    """These reports in one message."""
    rows = list(pending)
    return KvComputed(
        request_ids=tuple(request_id for request_id, _ in rows),
        tokens=tuple(row.tokens for _, row in rows),
        blocks=tuple(row.blocks for _, row in rows),
        held=tuple(row.held for _, row in rows),
        versions=tuple(row.versions for _, row in rows),
    )


Effects = list[NodeEffect]


class Outbox:
    """Owns the `leases`, by which requests belong to gateways, and the `block_exports`."""

    def __init__(self, worker: str, block_size: int, gateways: GatewayConnections) -> None:
        self.worker = worker
        self.leases = Leases()
        self.block_exports = BlockExports(block_size)
        self._connections = gateways
        self._some_ended = False

    def address(self, landed: Iterable[WorkerEffect]) -> Effects:
        """Turn effects of the worker machine into messages to the gateways that own the requests.
        What belongs to none any more is left out."""
        effects: Effects = []
        for effect in landed:
            match effect:
                case RunStep():
                    effects.append(effect)
                case EmitTokens():
                    self._emit(effect, 1, effects)
                case BlocksCommitted():
                    # For the slower tiers alone.
                    pass
                case ReportBlocks(changes):
                    message = BlocksReported(self.worker, Tier.DEVICE, changes)
                    effects += (
                        SendToGateway(name, message) for name, _ in self._connections.serving()
                    )
                case ImportBlocks(request_id):
                    self._send_to_owner(request_id, ImportReported(self.worker, effect), effects)
                case KvComputed():
                    self._report_kv(effect, effects)
                case Refuse(request_id, error):
                    again_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
                    refused = RequestRefused(self.worker, request_id, str(error), again_s)
                    self._send_to_owner(request_id, refused, effects)
                case FailRequest(request_id, reason):
                    broken = RequestBroken(self.worker, request_id, reason)
                    self._send_to_owner(request_id, broken, effects)
        return effects

    def repeated(self, emission: EmitTokens, repeats: int) -> Effects:
        """The worker machine has emitted this so many times in a row."""
        effects: Effects = []
        self._emit(emission, repeats, effects)
        return effects

    def exported(self, export_id: int) -> Effects:
        """The metadata of an export is written: send the reports that waited for it."""
        ready = self.block_exports.exported(export_id)
        if not ready:
            return []
        rows_by_owner = self._by_owner([request_id for request_id, _ in ready])
        return [
            SendToGateway(owner, KvReported(self.worker, merged([ready[row] for row in rows])))
            for owner, rows in rows_by_owner.items()
        ]

    def end(self, request_ids: Iterable[str]) -> None:
        """These hold nothing here any more."""
        self._some_ended = True
        for request_id in request_ids:
            self.leases.end(request_id)
            self.block_exports.drop(request_id)

    def take_ended(self) -> bool:
        """Whether requests have ended since the last call."""
        ended, self._some_ended = self._some_ended, False
        return ended

    def _emit(self, emission: EmitTokens, repeats: int, effects: Effects) -> None:
        rows_by_owner = self._by_owner(emission.request_ids)
        for owner, rows in rows_by_owner.items():
            whole = len(rows) == len(emission.request_ids)
            mine = emission if whole else rows_of(emission, rows)
            effects.append(SendToGateway(owner, TokensReported(self.worker, mine, repeats)))
        if emission.finish_reasons.count(None) < len(emission.finish_reasons):
            ends = zip(emission.request_ids, emission.finish_reasons, strict=True)
            self.end([request_id for request_id, reason in ends if reason is not None])

    def _report_kv(self, computed: KvComputed, effects: Effects) -> None:
        if computed.tokens == (0,):
            # It is lost: pending reports on it are not true any more.
            self._send_to_owner(computed.request_ids[0], KvReported(self.worker, computed), effects)
            self.block_exports.drop(computed.request_ids[0])
            return
        export = self.block_exports.add(computed)
        if export is None:
            return
        if export.blocks:
            effects.append(export)
        else:
            effects += self.exported(export.export_id)

    def _send_to_owner(self, request_id: str, message: ToGateway, effects: Effects) -> None:
        owner = self.leases.owner(request_id)
        if owner is not None:
            effects.append(SendToGateway(owner, message))

    def _by_owner(self, request_ids: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Which rows belong to which gateway. Every request in an effect has one."""
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
