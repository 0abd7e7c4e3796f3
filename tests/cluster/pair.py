"""Two workers that hand requests to each other, by a driver that chance leads: what a router and
its transfers do, without either."""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from tandem.facts.request import Request
from tandem.messages.worker import (
    CopiesRequested,
    EmitTokens,
    ImportsArrived,
    KvComputed,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsAborted,
    RequestsArrived,
    TransferPinsReleased,
)
from tests.cluster.ledger_engine import keys_of
from tests.cluster.world import World


@dataclass(slots=True)
class Journey:
    """One request between the workers. `source` draws its tokens, `target` is to go on with it;
    `held` says that the source has done its part, `copying` that it goes on as if nobody read its
    blocks. Each new attempt has an id of its own."""

    request: Request
    output: list[int] = field(default_factory=list)
    attempt: int = 0
    source: int | None = None
    target: int | None = None
    handing: bool = False
    copying: bool = False
    held: bool = False
    sent_output: int = 0
    over: bool = False
    aborted: bool = False

    @property
    def wire_id(self) -> str:
        return f"{self.request.request_id}~{self.attempt}"

    def known(self) -> tuple[int, ...]:
        return (*self.request.prompt_tokens, *self.output)

    def continued(self) -> Request:
        self.sent_output = len(self.output)
        return replace(self.request, request_id=self.wire_id, output_tokens=tuple(self.output))


class Pair:
    """Owns the two workers and all journeys. `seen` counts what has happened."""

    def __init__(self, worlds: list[World], chance: Random) -> None:
        self.worlds = worlds
        self.chance = chance
        self.journeys: list[Journey] = []
        self.by_wire: dict[str, Journey] = {}
        self.unread_holds: list[tuple[int, str]] = []
        self.seen: Counter[str] = Counter()

    def tell(self, worker: int, event) -> None:
        world = self.worlds[worker]
        world.tell(event)
        self.hear(worker, world.effects)

    def hear(self, worker: int, effects) -> None:
        for effect in effects:
            match effect:
                case EmitTokens(wire_ids, tokens, reasons):
                    for wire_id, token, reason in zip(wire_ids, tokens, reasons, strict=True):
                        self.take_token(worker, self.by_wire[wire_id], token, reason)
                case KvComputed(wire_ids, tokens, _, held):
                    for news in zip(wire_ids, tokens, held, strict=True):
                        self.take_kv_news(worker, *news)

    def audit(self) -> None:
        """Assert that the workers hold exactly what somebody reads or has yet to let go, and that
        what was last said about KV is still true."""
        held = [
            (w, name) for w, at in enumerate(self.worlds) for name in at.machine.sequences.pinned
        ]
        read = [(one.source, one.wire_id) for one in self.by_wire.values() if one.held]
        assert sorted(held) == sorted(read + self.unread_holds)
        assert not any(world.refused for world in self.worlds)
        for one in self.by_wire.values():
            world = self.worlds[one.source]
            if one.handing and one.wire_id in world.computed:
                tokens, blocks = world.computed[one.wire_id]
                assert world.engine.read(blocks, tokens) == keys_of(one.known())[:tokens]

    def take_token(self, worker: int, journey: Journey, token: int, reason) -> None:
        assert journey.source == worker
        assert not journey.held
        journey.output.append(token)
        if reason:
            self.leave(journey)
            journey.over = True

    def take_kv_news(self, worker: int, wire_id: str, tokens: int, held: bool) -> None:
        journey = self.by_wire[wire_id]
        assert journey.source == worker
        if not tokens:
            self.seen["lost to preemption"] += 1
            self.leave(journey)
            return
        journey.handing = True
        if held:
            assert tokens == len(journey.known()) - 1
            self.seen["held"] += 1
            journey.held = True

    def leave(self, journey: Journey) -> None:
        """Call the attempt back wherever it is; what is held is let go some time later."""
        wire_id = journey.wire_id
        del self.by_wire[wire_id]
        if journey.held:
            self.unread_holds.append((journey.source, wire_id))
        source, target = journey.source, journey.target
        journey.source = journey.target = None
        journey.handing = journey.held = journey.copying = False
        journey.attempt += 1
        for worker in (source, target):
            if worker is not None:
                self.tell(worker, RequestsAborted((wire_id,)))

    def start(self, journey: Journey, worker: int, prefill_only: bool) -> None:
        request = journey.continued()
        self.by_wire[request.request_id] = journey
        journey.source = worker
        journey.handing = prefill_only
        known_tokens = len(journey.known())
        import_tokens = (self.chance.choice([0, self.chance.randint(0, known_tokens)]),)
        if prefill_only:
            self.tell(worker, PrefillsArrived((request,), import_tokens))
        elif import_tokens[0]:
            self.tell(worker, ImportsArrived((request,), import_tokens))
        else:
            self.tell(worker, RequestsArrived((request,)))

    def request_copy(self, journey: Journey) -> None:
        self.seen["copied"] += 1
        journey.copying = True
        self.tell(journey.source, CopiesRequested((journey.wire_id,)))

    def request_handover(self, journey: Journey) -> None:
        journey.copying = False
        self.tell(journey.source, KvTransfersRequested((journey.wire_id,)))

    def may_be_offered(self, journey: Journey) -> bool:
        return (
            journey.handing
            and journey.target is None
            and (1 - journey.source, journey.wire_id) not in self.unread_holds
        )

    def offer(self, journey: Journey) -> None:
        """To the other worker, before or after the first has done its part."""
        self.seen["pulled" if journey.held else "pushed"] += 1
        journey.target = 1 - journey.source
        request, known_tokens = journey.continued(), len(journey.known())
        wanted_tokens = self.chance.choice([known_tokens, self.chance.randint(1, known_tokens)])
        self.tell(journey.target, ImportsArrived((request,), (wanted_tokens,)))

    def importable(self) -> list[tuple[int, str]]:
        """The imports that may end now."""
        return [
            (worker, wire_id)
            for worker, world in enumerate(self.worlds)
            for wire_id in world.imports
            if wire_id in world.cancelled
            or self.by_wire[wire_id].held
            or self.by_wire[wire_id].source == worker
        ]

    def finish_import(self, worker: int, wire_id: str) -> None:
        world = self.worlds[worker]
        if wire_id in world.cancelled:
            self.seen["cancelled"] += 1
            world.finish_import(wire_id, [])
            return self.hear(worker, world.effects)
        journey = self.by_wire[wire_id]
        kv, since = keys_of(journey.known()), ()
        source = journey.source
        if source != worker:
            tokens, blocks = self.worlds[source].computed[wire_id]
            kv = self.worlds[source].engine.read(blocks, tokens)
            since = journey.output[journey.sent_output :]
            journey.source, journey.target = worker, None
            journey.handing = journey.held = journey.copying = False
            self.unread_holds.append((source, wire_id))
        come = self.chance.choice([len(kv), len(kv), 0, self.chance.randint(0, len(kv))])
        self.seen["whole" if come >= world.imports[wire_id].end_token else "in part"] += 1
        world.finish_import(wire_id, kv[:come], since)
        return self.hear(worker, world.effects)

    def let_go(self) -> None:
        worker, wire_id = self.unread_holds.pop(self.chance.randrange(len(self.unread_holds)))
        self.tell(worker, TransferPinsReleased((wire_id,)))

    def land(self, worker: int) -> None:
        world = self.worlds[worker]
        world.land()
        self.hear(worker, world.effects)

    def abort(self, journey: Journey) -> None:
        journey.aborted = journey.over = True
        self.leave(journey)

    def turn(self) -> None:
        """One thing that may happen now, happens."""
        choices = self.routine()
        alive = [journey for journey in self.journeys if not journey.over]
        for journey in alive:
            if journey.source is None:
                start = self.start, journey, self.chance.randrange(2), self.chance.randrange(3) > 0
                choices += [start, start]
                continue
            if self.chance.randrange(20) == 0:
                choices.append((self.abort, journey))
            if not journey.handing and self.chance.randrange(3) == 0:
                choices.append((self.request_handover, journey))
            if not journey.handing and self.chance.randrange(3) == 0:
                choices.append((self.request_copy, journey))
            if self.may_be_offered(journey):
                choices.append((self.offer, journey))
        if choices:
            action, *arguments = self.chance.choice(choices)
            action(*arguments)
            self.audit()

    def routine(self) -> list[tuple]:
        """What sooner or later happens by itself."""
        landing = [(self.land, w) for w, world in enumerate(self.worlds) if world.landing]
        imports = [(self.finish_import, *one) for one in self.importable()]
        copied = [one for one in self.journeys if one.copying and one.handing]
        handovers = [(self.request_handover, one) for one in copied]
        return landing * 3 + imports + handovers + [(self.let_go,)] * bool(self.unread_holds)

    def settle(self) -> None:
        """Everybody gets to the end, and the workers are empty."""
        for _ in range(3_000):
            alive = [journey for journey in self.journeys if not journey.over]
            choices = self.routine()
            choices += [(self.start, one, 0, False) for one in alive if one.source is None]
            choices += [(self.offer, one) for one in alive if self.may_be_offered(one)]
            if not choices and alive:
                # Each worker keeps blocks or slots for what waits at the other: somebody must
                # begin again.
                self.seen["stalled"] += 1
                choices = [(self.leave, next(one for one in alive if one.target is not None))]
            if not choices:
                break
            action, *arguments = self.chance.choice(choices)
            action(*arguments)
            self.audit()
        for world in self.worlds:
            world.assert_empty()
