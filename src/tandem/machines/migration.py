"""Which requests go on elsewhere when a planner asks for it: live migration."""

from collections.abc import Collection

from tandem.facts.fleet_messages import MigrationsRequested
from tandem.machines.fleet import Fleet
from tandem.machines.passage import Passage, Stage


def to_migrate(
    event: MigrationsRequested, on_their_way: Collection[Passage], fleet: Fleet
) -> list[Passage]:
    """The largest that decode at the source and fit into the tokens asked for, each counted; none
    where the target takes no decodes."""
    target = fleet.standings.get(event.target)
    if event.source == event.target or not target or not target.decodes_more:
        return []
    # Whoever holds KV waits for room at the next worker. Where nobody comes to whoever holds, that
    # never goes in a circle.
    if any(passage.held_at(event.target) for passage in on_their_way):
        return []
    decoding = [
        passage
        for passage in on_their_way
        if passage.stage is Stage.DECODING and passage.decode == event.source
    ]
    decoding.sort(key=lambda passage: (-passage.known_tokens, passage.request_id))
    chosen, tokens = [], 0
    for passage in decoding:
        if tokens + passage.known_tokens <= event.tokens:
            tokens += passage.known_tokens
            chosen.append(passage)
    return chosen
