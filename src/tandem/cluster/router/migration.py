"""Live migration: a running request decodes on while another worker reads its KV, then continues
there. If anything fails before that, it continues where it is."""

from collections.abc import Iterable

from tandem.cluster.router.admission import AdmissionFront
from tandem.cluster.router.fleet import Fleet
from tandem.cluster.router.request_state import RequestState, Stage
from tandem.cluster.router.transfers import KvTransfers, explained_transfer
from tandem.messages.router import MigrationsRequested, RouterEffect, SendEvent
from tandem.messages.worker import (
    CopiesRequested,
    ImportsArrived,
    KvTransfersRequested,
    RequestsAborted,
    TransferPinsReleased,
)

# A target that took long to find room is so far behind that the client would notice: it had better
# begin anew, with all that there is by then.
MOST_BEHIND_TOKENS = 256


class Migrations:
    """Owns the requests that are COPYING; `by_wire` gets the names that their targets know."""

    def __init__(
        self, admission: AdmissionFront, kv_transfers: KvTransfers, by_wire: dict[str, RequestState]
    ) -> None:
        self._admission = admission
        self._kv_transfers = kv_transfers
        self._by_wire = by_wire

    def begin_migrations(self, wanted: MigrationsRequested, now_ns: int) -> list[RouterEffect]:
        """Begin migrations: ask what KV can be read of the requests."""
        effects: list[RouterEffect] = []
        tracked_workers = self._admission.fleet.workers
        for state in to_migrate(wanted, self._by_wire.values(), self._admission.fleet):
            state.copy_to(wanted.target)
            self._by_wire[state.names.copy] = state
            self._admission.expect_decode(state)
            if state.known_tokens > tracked_workers[wanted.source].capacity.block_size:
                effects.append(SendEvent(wanted.source, CopiesRequested((state.wire_id,))))
            else:
                # Not a block that could be read yet: only a place is needed.
                effects += self._send_import(state, state.known_tokens, now_ns)
        return effects

    def readable(self, state: RequestState, tokens: int, now_ns: int) -> list[RouterEffect]:
        """The KV of so many first tokens can be read now; of none: any more. A late report on a
        copy that was given up means nothing."""
        if state.stage is not Stage.COPYING:
            return []
        if not tokens:
            return self.give_up_copy(state)
        state.computed_tokens = max(state.computed_tokens, tokens)
        return [] if state.import_sent else self._send_import(state, tokens, now_ns)

    def copy_arrived(self, state: RequestState) -> list[RouterEffect]:
        """Nothing moves any more: the request stops where it is and goes on at the target."""
        inbound = state.imports.get(state.decode)
        if state.stage is not Stage.COPYING or inbound is None:
            return []
        behind_tokens = state.known_tokens - inbound.end_token
        failed = inbound.lost_token is not None or behind_tokens > MOST_BEHIND_TOKENS
        if failed and not state.copy_failed:
            state.copy_failed = True
            return self.give_up_copy(state)
        # Whoever asks for it once more wants it to move, with whatever there is.
        state.stage = Stage.MOVING
        return [SendEvent(state.prefill, KvTransfersRequested((state.wire_id,)))]

    def give_up_copy(self, state: RequestState) -> list[RouterEffect]:
        """The request goes on where it is; the target forgets it."""
        source, target = state.prefill, state.decode
        effects = self._kv_transfers.stop_transfers(state, target)
        if target in self._admission.fleet.workers:
            effects.append(SendEvent(target, RequestsAborted((state.names.copy,))))
        effects.append(SendEvent(source, TransferPinsReleased((state.wire_id,))))
        self._admission.expect_no_decode(state)
        del self._by_wire[state.names.copy]
        state.names.copy = ""
        state.decode, state.stage = source, Stage.DECODING
        return effects

    def target_drains(self, worker: str) -> list[RouterEffect]:
        """Who is still being read there would only have to move once more."""
        effects: list[RouterEffect] = []
        for name, state in list(self._by_wire.items()):
            if name == state.names.copy and state.decode == worker:
                effects += self.give_up_copy(state) if state.stage is Stage.COPYING else []
        return effects

    def migrated(self, state: RequestState) -> None:
        """A state goes on at its next worker, which may know it by another name."""
        if state.names.copy:
            del self._by_wire[state.names.wire]
            state.names.take_over()
            state.copy_failed = False

    def _send_import(self, state: RequestState, tokens: int, now_ns: int) -> list[RouterEffect]:
        state.import_sent = True
        event = ImportsArrived((state.request(state.decode, now_ns),), (tokens,))
        effects: list[RouterEffect] = [SendEvent(state.decode, event)]
        if self._admission.config.explains:
            effects.append(explained_transfer(state, tokens))
        return effects


def to_migrate(
    event: MigrationsRequested, on_their_way: Iterable[RequestState], fleet: Fleet
) -> list[RequestState]:
    """The largest that decode at the source and fit into the tokens asked for, each counted, of
    those `on_their_way` in the order in which they were sent; none where the target takes no
    decodes, or not what the source has, and no suspects, whom another might meet there."""
    target = fleet.workers.get(event.target)
    if event.source == event.target or not target or not target.decodes_more:
        return []
    if event.source in fleet.workers and not fleet.replaces(event.target, event.source):
        return []
    decoding = [
        state
        for state in on_their_way
        if state.stage is Stage.DECODING
        and state.decode == event.source
        and not state.deaths.suspect
    ]
    # Of equals the one that was sent first: a name is another one in a journal.
    decoding.sort(key=lambda state: -state.known_tokens)
    chosen, tokens = [], 0
    for state in decoding:
        if tokens + state.known_tokens <= event.tokens:
            tokens += state.known_tokens
            chosen.append(state)
    return chosen
