"""Live migration: which requests go on elsewhere when somebody asks for it, and how. Each decodes
on while the next worker reads its KV; only then it stops, and what it has said meanwhile is
computed there. Whatever fails before that, it goes on where it is."""

from collections.abc import Collection

from tandem.cluster.router.admission import Entrance
from tandem.cluster.router.fleet import Fleet
from tandem.cluster.router.kv_transfer import Handover
from tandem.cluster.router.request_state import Passage, Stage
from tandem.messages.router import MigrationsRequested, RouterEffect, Tell
from tandem.messages.worker import (
    CopiesRequested,
    HandoversRequested,
    HoldsReleased,
    ImportsArrived,
    RequestsAborted,
)

# A target that took long to find room is so far behind that the client would notice: it had better
# begin anew, with all that there is by then.
MOST_BEHIND_TOKENS = 256


class Migrations:
    """Owns the passages that are COPYING; `by_wire` gets the names that their targets know."""

    def __init__(self, entrance: Entrance, handover: Handover, by_wire: dict[str, Passage]) -> None:
        self._entrance = entrance
        self._handover = handover
        self._by_wire = by_wire

    def begin(self, wanted: MigrationsRequested) -> list[RouterEffect]:
        """Somebody wants requests to go on elsewhere: ask what can be read of them."""
        effects: list[RouterEffect] = []
        standings = self._entrance.fleet.standings
        for passage in to_migrate(wanted, self._by_wire.values(), self._entrance.fleet):
            passage.copy_to(wanted.target)
            self._by_wire[passage.names.copy] = passage
            self._entrance.expect(passage)
            if passage.known_tokens > standings[wanted.source].capacity.block_size:
                effects.append(Tell(wanted.source, CopiesRequested((passage.wire_id,))))
            else:
                # Not a block that could be read yet: only a place is needed.
                effects += self._announce(passage, passage.known_tokens)
        return effects

    def readable(self, passage: Passage, tokens: int) -> list[RouterEffect]:
        """The KV of so many first tokens can be read now; of none: any more. What is told late of
        a copy that was given up means nothing."""
        if passage.stage is not Stage.COPYING:
            return []
        if not tokens:
            return self.give_up(passage)
        passage.computed_tokens = max(passage.computed_tokens, tokens)
        return [] if passage.announced else self._announce(passage, tokens)

    def copied(self, passage: Passage) -> list[RouterEffect]:
        """Nothing moves any more: the request stops where it is and goes on at the target."""
        leg = passage.imports.get(passage.decode)
        if passage.stage is not Stage.COPYING or leg is None:
            return []
        behind_tokens = passage.known_tokens - leg.end_token
        failed = leg.lost_token is not None or behind_tokens > MOST_BEHIND_TOKENS
        if failed and not passage.copy_failed:
            passage.copy_failed = True
            return self.give_up(passage)
        # Whoever asks for it once more wants it to move, with whatever there is.
        passage.stage = Stage.MOVING
        return [Tell(passage.prefill, HandoversRequested((passage.wire_id,)))]

    def give_up(self, passage: Passage) -> list[RouterEffect]:
        """The request goes on where it is; the target forgets it."""
        source, target = passage.prefill, passage.decode
        effects = self._handover.stop(passage, target)
        if target in self._entrance.fleet.standings:
            effects.append(Tell(target, RequestsAborted((passage.names.copy,))))
        effects.append(Tell(source, HoldsReleased((passage.wire_id,))))
        self._entrance.expect_no_more(passage)
        del self._by_wire[passage.names.copy]
        passage.names.copy = ""
        passage.decode, passage.stage = source, Stage.DECODING
        return effects

    def target_drains(self, worker: str) -> list[RouterEffect]:
        """Who is still being read there would only have to move once more."""
        effects: list[RouterEffect] = []
        for name, passage in list(self._by_wire.items()):
            if name == passage.names.copy and passage.decode == worker:
                effects += self.give_up(passage) if passage.stage is Stage.COPYING else []
        return effects

    def arrived(self, passage: Passage) -> None:
        """A passage goes on at its next worker, which may know it by another name."""
        if passage.names.copy:
            del self._by_wire[passage.names.wire]
            passage.names.take_over()
            passage.copy_failed = False

    def _announce(self, passage: Passage, tokens: int) -> list[RouterEffect]:
        passage.announced = True
        event = ImportsArrived((passage.request(passage.decode),), (tokens,))
        return [Tell(passage.decode, event)]


def to_migrate(
    event: MigrationsRequested, on_their_way: Collection[Passage], fleet: Fleet
) -> list[Passage]:
    """The largest that decode at the source and fit into the tokens asked for, each counted; none
    where the target takes no decodes, and no suspects, whom another might meet there."""
    target = fleet.standings.get(event.target)
    if event.source == event.target or not target or not target.decodes_more:
        return []
    decoding = [
        passage
        for passage in on_their_way
        if passage.stage is Stage.DECODING
        and passage.decode == event.source
        and not passage.deaths.suspect
    ]
    decoding.sort(key=lambda passage: (-passage.known_tokens, passage.request_id))
    chosen, tokens = [], 0
    for passage in decoding:
        if tokens + passage.known_tokens <= event.tokens:
            tokens += passage.known_tokens
            chosen.append(passage)
    return chosen
