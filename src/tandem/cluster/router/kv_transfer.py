"""How KV gets to the worker that needs it: from the worker that computed the prompt, while it still
computes, or from a slower tier. Turns what workers report into transfers, and their ends into
`ImportDone`."""

from collections.abc import Iterable
from itertools import count

from tandem.cluster.audit import invariant
from tandem.cluster.router.request_state import Import, Passage, Stage
from tandem.facts.fleet import Tier
from tandem.messages.router import (
    CancelTransfer,
    ImportCancelled,
    ImportReported,
    RouterEffect,
    StartTransfer,
    Tell,
    TransferEnded,
)
from tandem.messages.worker import HoldsReleased, ImportDone


class Handover:
    """Owns the transfers under way. Whose they are is told by the passage and the importing
    worker."""

    def __init__(self) -> None:
        self._ids = count()
        self._transfers: dict[int, tuple[Passage, str]] = {}
        self._finished: list[Passage] = []
        self._copied: list[Passage] = []

    @property
    def moving(self) -> int:
        return len(self._transfers)

    def take_finished(self) -> list[Passage]:
        """Whose decode worker goes on, since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_copied(self) -> list[Passage]:
        """For whom nothing moves any more though their KV grows on, since the last call."""
        copied, self._copied = self._copied, []
        return copied

    def import_ready(self, passage: Passage, event: ImportReported) -> list[RouterEffect]:
        """A worker has reserved the blocks: bring what there is."""
        wanted = event.wanted
        passage.imports[event.worker] = Import(
            wanted.first_token, wanted.end_token, wanted.first_token
        )
        if event.worker == passage.decode and not passage.local:
            return self.push_on(passage)
        effects: list[RouterEffect] = []
        for tier, end_token in passage.tier_ends:
            effects += self._send(passage, event.worker, tier, end_token)
        return effects + self._finish_if_quiet(passage, event.worker)

    def push_on(self, passage: Passage) -> list[RouterEffect]:
        """Send what has been computed since the last time; when all has arrived, the decode worker
        goes on and the prefill worker may forget."""
        leg = passage.imports.get(passage.decode)
        if leg is None:
            return []
        end_token = min(passage.computed_tokens, leg.end_token)
        effects: list[RouterEffect] = []
        if leg.lost_token is None:
            effects = self._send(passage, passage.decode, Tier.DEVICE, end_token)
        return effects + self._finish_if_quiet(passage, passage.decode)

    def ended(self, event: TransferEnded) -> list[RouterEffect]:
        """A transfer is over. Unknown ones were cancelled."""
        entry = self._transfers.pop(event.transfer_id, None)
        if entry is None:
            return []
        passage, worker = entry
        leg = passage.imports[worker]
        first_token, end_token = leg.moving.pop(event.transfer_id)
        if not event.arrived:
            leg.lose(min(first_token + event.tokens, end_token))
        return self._finish_if_quiet(passage, worker)

    def cancelled(self, passage: Passage | None, event: ImportCancelled) -> list[RouterEffect]:
        """A worker gave the request up: stop writing to its blocks, and say so."""
        effects = [] if passage is None else self.stop(passage, event.worker)
        return [*effects, Tell(event.worker, ImportDone(event.request_id, 0))]

    def stop(self, passage: Passage, worker: str) -> list[RouterEffect]:
        """Cancel all transfers of a passage towards a worker."""
        leg = passage.imports.pop(worker, None)
        if leg is None:
            return []
        for transfer_id in leg.moving:
            del self._transfers[transfer_id]
        return [CancelTransfer(transfer_id) for transfer_id in leg.moving]

    def audit(self, on_their_way: Iterable[Passage]) -> None:
        """Assert that the transfers under way are those that these passages wait for."""
        moving = {
            transfer_id: (passage, worker)
            for passage in on_their_way
            for worker, leg in passage.imports.items()
            for transfer_id in leg.moving
        }
        invariant(moving == self._transfers, "transfers under way are those that requests wait for")
        invariant(not self._finished, "requests whose KV has come have gone on")
        invariant(not self._copied, "requests whose copies have come have gone on")

    def _send(
        self, passage: Passage, worker: str, tier: Tier, end_token: int
    ) -> list[RouterEffect]:
        leg = passage.imports[worker]
        first_token, end_token = leg.sent_tokens, min(end_token, leg.end_token)
        if end_token <= first_token:
            return []
        transfer_id = next(self._ids)
        leg.sent_tokens = end_token
        leg.moving[transfer_id] = (first_token, end_token)
        self._transfers[transfer_id] = (passage, worker)
        source = passage.prefill if tier is Tier.DEVICE else ""
        name = passage.name_at(worker)
        return [StartTransfer(transfer_id, name, source, tier, worker, first_token, end_token)]

    def _finish_if_quiet(self, passage: Passage, worker: str) -> list[RouterEffect]:
        leg = passage.imports[worker]
        if leg.moving:
            return []
        if worker == passage.prefill:
            # The rest of the prompt is computed now, here.
            del passage.imports[worker]
            if leg.arrived_tokens > leg.first_token:
                passage.pulled_tokens = leg.arrived_tokens
            return [Tell(worker, ImportDone(passage.wire_id, leg.arrived_tokens))]
        if passage.stage is Stage.COPYING:
            self._copied.append(passage)
        if not passage.handed_over:
            return []
        del passage.imports[worker]
        passage.stage = Stage.DECODING
        self._finished.append(passage)
        tokens_since = tuple(passage.output[passage.sent_output :])
        return [
            Tell(worker, ImportDone(passage.name_at(worker), leg.arrived_tokens, tokens_since)),
            Tell(passage.prefill, HoldsReleased((passage.wire_id,))),
        ]
