"""KV transfer orders: in which blocks of which worker a request's KV lies."""

from dataclasses import dataclass

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.members import Member
from tandem.cluster.router.machine import RouterMachine
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveKv
from tandem.messages.cluster import FetchKv
from tandem.messages.router import ImportReported, KvReported, StartTransfer
from tandem.messages.worker import (
    ImportBlocks,
    ImportDone,
    RequestsAborted,
    TransferPinsReleased,
    WorkerEvent,
)


@dataclass(frozen=True, slots=True)
class Computed:
    """What a worker has reported of one request: `blocks` hold its first `tokens` tokens."""

    tokens: int
    blocks: tuple[int, ...]
    versions: tuple[int, ...]


class Transfers:
    """What workers have reported of KV that may be read and of blocks that wait for it, by the wire
    ids of requests, and the orders that follow. What a worker was sent to give up is forgotten."""

    def __init__(self, router: RouterMachine) -> None:
        self._router = router
        self._computed: dict[tuple[str, str], Computed] = {}
        self._wanted: dict[tuple[str, str], ImportBlocks] = {}

    def kv_reported(self, report: KvReported) -> None:
        """KV that others may read now, where somebody is to go on with it."""
        computed = report.computed
        if not computed.versions:
            # Lost, or reported without the versions that a reader checks.
            return
        for request_id, tokens, blocks, versions in zip(
            computed.request_ids,
            computed.tokens,
            computed.blocks,
            computed.versions,
            strict=True,
        ):
            state = self._router.state_of(request_id)
            # A late report on a copy that was given up is of no use.
            read = state is not None and state.prefill == report.worker and not state.local
            if tokens and read:
                entry = Computed(tokens, blocks, versions)
                self._computed[report.worker, request_id] = entry

    def import_reported(self, report: ImportReported) -> None:
        """Blocks that a worker has reserved, for a request that is to go on there."""
        request_id = report.wanted.request_id
        state = self._router.state_of(request_id)
        if state is not None and state.needs(report.worker):
            self._wanted[report.worker, request_id] = report.wanted

    def make_order(self, start: StartTransfer, source: Member, target: Member) -> MoveKv | None:
        """The order for the target; None when it is not known what lies where."""
        state = self._router.state_of(start.request_id)
        name = start.request_id if state is None else state.name_at(source.name)
        computed = self._computed.get((source.name, name))
        wanted = self._wanted.get((target.name, start.request_id))
        if computed is None or wanted is None or computed.tokens < start.end_token:
            return None
        first, end = start.first_token, start.end_token
        read = slice(first // source.block_size, -(-end // source.block_size))
        if len(computed.blocks) < read.stop:
            return None
        reserved_from = wanted.first_token // target.block_size
        first_block = first // target.block_size - reserved_from
        end_block = -(-end // target.block_size) - reserved_from
        return MoveKv(
            transfer_id=start.transfer_id,
            request_id=start.request_id,
            source=source.name,
            incarnation=source.registration.incarnation,
            first_token=first,
            end_token=end,
            source_blocks=computed.blocks[read],
            source_versions=computed.versions[read],
            target_blocks=wanted.blocks[first_block:end_block],
        )

    def make_fetch(self, start: StartTransfer, target: Member) -> FetchKv | None:
        """The order for the target to read from its slower tiers; None when it has nothing reserved
        for it."""
        wanted = self._wanted.get((target.name, start.request_id))
        if wanted is None or start.tier is Tier.DEVICE:
            return None
        return FetchKv(
            start.transfer_id, start.request_id, start.tier, start.first_token, start.end_token
        )

    def event_sent(self, worker: str, event: WorkerEvent) -> None:
        """An event goes to a worker: what it gives up by it is forgotten."""
        match event:
            case ImportDone(request_id):
                self._wanted.pop((worker, request_id), None)
            case TransferPinsReleased(request_ids) | RequestsAborted(request_ids):
                for request_id in request_ids:
                    self._computed.pop((worker, request_id), None)
                    self._wanted.pop((worker, request_id), None)

    def forget_worker(self, worker: str) -> None:
        """Nothing is left of what it held and was to get."""
        for book in (self._computed, self._wanted):
            for key in [key for key in book if key[0] == worker]:
                del book[key]

    def audit(self) -> None:
        """Assert that only what is under way is remembered."""
        for book in (self._computed, self._wanted):
            for worker, request_id in book:
                state = self._router.state_of(request_id)
                needed = state is not None and state.needs(worker)
                invariant(needed, "KV is remembered of requests that need the worker")
