"""KV transfers of the router: from the prefill worker while it still computes (push), after it
(pull), or from a slower tier; their ends become `ImportDone`."""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from tandem.cluster.audit import invariant
from tandem.cluster.router.admission import AdmissionFront
from tandem.cluster.router.request_state import Import, RequestState, Stage
from tandem.facts.fleet import Tier
from tandem.messages.router import (
    CancelTransfer,
    Explain,
    ImportReported,
    RouterEffect,
    SendEvent,
    StartTransfer,
    TransferEnded,
)
from tandem.messages.worker import ImportDone, RequestsAborted, TransferPinsReleased


class KvTransfer(NamedTuple):
    """KV of a request on its way from a worker (empty: a slower tier) to another."""

    state: RequestState
    source: str
    target: str


class KvTransfers:
    """Owns the transfers under way."""

    def __init__(self) -> None:
        self._ids = count()
        self._transfers: dict[int, KvTransfer] = {}
        self._finished: list[RequestState] = []
        self._copied: list[RequestState] = []

    def source_of(self, transfer_id: int, target: str) -> str | None:
        """Whom this worker reads from by that transfer (empty: a slower tier); None where no such
        one is under way."""
        transfer = self._transfers.get(transfer_id)
        return None if transfer is None or transfer.target != target else transfer.source

    @property
    def between_workers(self) -> set[int]:
        """The transfers under way from a worker to another."""
        return {each for each, transfer in self._transfers.items() if transfer.source}

    def take_finished(self) -> list[RequestState]:
        """Whose decode worker goes on, since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_copied(self) -> list[RequestState]:
        """For whom nothing moves any more though their KV grows on, since the last call."""
        copied, self._copied = self._copied, []
        return copied

    def import_ready(self, state: RequestState, event: ImportReported) -> list[RouterEffect]:
        """A worker has reserved the blocks: bring what there is."""
        wanted = event.wanted
        state.imports[event.worker] = Import(
            wanted.first_token, wanted.end_token, wanted.first_token
        )
        if event.worker == state.decode and not state.local:
            return self.push_computed(state)
        effects: list[RouterEffect] = []
        for tier, end_token in state.tier_ends:
            effects += self._send(state, event.worker, tier, end_token)
        return effects + self._finish_if_quiet(state, event.worker)

    def push_computed(self, state: RequestState) -> list[RouterEffect]:
        """Send what has been computed since the last time; when all has arrived, the decode worker
        goes on and the prefill worker may forget."""
        inbound = state.imports.get(state.decode)
        if inbound is None:
            return []
        end_token = min(state.computed_tokens, inbound.end_token)
        effects: list[RouterEffect] = []
        if inbound.lost_token is None:
            effects = self._send(state, state.decode, Tier.DEVICE, end_token)
        return effects + self._finish_if_quiet(state, state.decode)

    def transfer_ended(self, event: TransferEnded) -> list[RouterEffect]:
        """A transfer is over. Unknown ones were cancelled."""
        transfer = self._transfers.pop(event.transfer_id, None)
        if transfer is None:
            return []
        state, _, worker = transfer
        inbound = state.imports[worker]
        first_token, end_token = inbound.moving.pop(event.transfer_id)
        if not event.arrived:
            inbound.lose(min(first_token + event.tokens, end_token))
        return self._finish_if_quiet(state, worker)

    def stop_transfers(self, state: RequestState, worker: str) -> list[RouterEffect]:
        """Cancel all transfers of a request towards a worker."""
        inbound = state.imports.pop(worker, None)
        if inbound is None:
            return []
        for transfer_id in inbound.moving:
            del self._transfers[transfer_id]
        return [CancelTransfer(transfer_id, worker) for transfer_id in inbound.moving]

    def audit(self, on_their_way: Iterable[RequestState]) -> None:
        """Assert that the transfers under way are those that these requests wait for."""
        moving = {
            transfer_id: (state, worker)
            for state in on_their_way
            for worker, inbound in state.imports.items()
            for transfer_id in inbound.moving
        }
        known = {
            transfer_id: (state, worker)
            for transfer_id, (state, _, worker) in self._transfers.items()
        }
        invariant(moving == known, "transfers under way are those that requests wait for")
        invariant(not self._finished, "requests whose KV has come have gone on")
        invariant(not self._copied, "requests whose copies have come have gone on")

    def _send(
        self, state: RequestState, worker: str, tier: Tier, end_token: int
    ) -> list[RouterEffect]:
        inbound = state.imports[worker]
        first_token, end_token = inbound.sent_tokens, min(end_token, inbound.end_token)
        if end_token <= first_token:
            return []
        transfer_id = next(self._ids)
        inbound.sent_tokens = end_token
        inbound.moving[transfer_id] = (first_token, end_token)
        source = state.prefill if tier is Tier.DEVICE else ""
        self._transfers[transfer_id] = KvTransfer(state, source, worker)
        name = state.name_at(worker)
        return [StartTransfer(transfer_id, name, source, tier, worker, first_token, end_token)]

    def _finish_if_quiet(self, state: RequestState, worker: str) -> list[RouterEffect]:
        inbound = state.imports[worker]
        if inbound.moving:
            return []
        if worker == state.prefill:
            # The rest of the prompt is computed now, here.
            del state.imports[worker]
            if inbound.arrived_tokens > inbound.first_token:
                state.pulled_tokens = inbound.arrived_tokens
            return [SendEvent(worker, ImportDone(state.wire_id, inbound.arrived_tokens))]
        if state.stage is Stage.COPYING:
            self._copied.append(state)
        if not state.prefill_pinned:
            return []
        del state.imports[worker]
        state.stage = Stage.DECODING
        self._finished.append(state)
        tokens_since = tuple(state.output[state.sent_output :])
        return [
            SendEvent(
                worker, ImportDone(state.name_at(worker), inbound.arrived_tokens, tokens_since)
            ),
            SendEvent(state.prefill, TransferPinsReleased((state.wire_id,))),
        ]


def cancel_everywhere(
    state: RequestState, admission: AdmissionFront, kv_transfers: KvTransfers
) -> list[RouterEffect]:
    """Nobody need go on with this request where it is now: it leaves the queue, or its workers are
    sent the abort and its transfers stopped."""
    if state.stage is Stage.QUEUED:
        admission.suspects.dequeue(state)
        return []
    effects: list[RouterEffect] = []
    for worker in list(state.imports):
        effects += kv_transfers.stop_transfers(state, worker)
    for worker in dict.fromkeys((state.decode, state.prefill)):
        if worker in admission.fleet.workers:
            wire_ids = (state.name_at(worker),)
            effects.append(SendEvent(worker, RequestsAborted(wire_ids)))
            effects.append(SendEvent(worker, TransferPinsReleased(wire_ids)))
    return effects


def explained_transfer(state: RequestState, tokens: int) -> Explain:
    """The KV of so many tokens is to go from the worker that has computed it to the other."""
    text = f"KV goes from {state.prefill} to {state.decode}"
    figures = (("source", state.prefill), ("target", state.decode), ("tokens", tokens))
    return Explain(state.request_id, "transfer", text, figures)
