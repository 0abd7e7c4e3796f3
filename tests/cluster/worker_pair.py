"""Two workers that hand requests to each other in a random order: what a router and its transfers
do, without either."""

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
from tests.cluster.ledger_worker import LedgerWorker


@dataclass(slots=True)
class PairRequest:
    """One request between the workers. `source` draws its tokens, `target` is to go on with it.
    `held`: the source has done its part; `copying`: it goes on as if nobody read its blocks. Each
    new attempt has an id of its own."""

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


class WorkerPair:
    """Owns the two workers and all requests. `seen` counts what has happened."""

    def __init__(self, workers: list[LedgerWorker], chance: Random) -> None:
        self.workers = workers
        self.chance = chance
        self.requests: list[PairRequest] = []
        self.by_wire: dict[str, PairRequest] = {}
        self.unread_pins: list[tuple[int, str]] = []
        self.seen: Counter[str] = Counter()

    def send(self, worker: int, event) -> None:
        self.take_effects(worker, self.workers[worker].handle(event))

    def take_effects(self, worker: int, effects) -> None:
        for effect in effects:
            match effect:
                case EmitTokens(wire_ids, tokens, reasons):
                    for wire_id, token, reason in zip(wire_ids, tokens, reasons, strict=True):
                        self.token_drawn(worker, self.by_wire[wire_id], token, reason)
                case KvComputed(wire_ids, tokens, _, held):
                    for row in zip(wire_ids, tokens, held, strict=True):
                        self.kv_computed(worker, *row)

    def audit(self) -> None:
        """Assert that the workers hold exactly what somebody reads or has yet to let go, and that
        what was last reported of KV is still true."""
        held = [
            (w, name) for w, at in enumerate(self.workers) for name in at.machine.sequences.pinned
        ]
        read = [(one.source, one.wire_id) for one in self.by_wire.values() if one.held]
        assert sorted(held) == sorted(read + self.unread_pins)
        assert not any(at.refused for at in self.workers)
        for one in self.by_wire.values():
            at = self.workers[one.source]
            if one.handing and one.wire_id in at.computed:
                tokens, blocks = at.computed[one.wire_id]
                assert (
                    at.engine.read(blocks, tokens)
                    == keys_of(one.known(), one.request.adapter)[:tokens]
                )

    def token_drawn(self, worker: int, one: PairRequest, token: int, reason) -> None:
        assert one.source == worker
        assert not one.held
        one.output.append(token)
        if reason:
            self.leave(one)
            one.over = True

    def kv_computed(self, worker: int, wire_id: str, tokens: int, held: bool) -> None:
        one = self.by_wire[wire_id]
        assert one.source == worker
        if not tokens:
            self.seen["lost to preemption"] += 1
            self.leave(one)
            return
        one.handing = True
        if held:
            assert tokens == len(one.known()) - 1
            self.seen["held"] += 1
            one.held = True

    def leave(self, one: PairRequest) -> None:
        """Cancel the attempt wherever it is; pins are released some time later."""
        wire_id = one.wire_id
        del self.by_wire[wire_id]
        if one.held:
            self.unread_pins.append((one.source, wire_id))
        source, target = one.source, one.target
        one.source = one.target = None
        one.handing = one.held = one.copying = False
        one.attempt += 1
        for worker in (source, target):
            if worker is not None:
                self.send(worker, RequestsAborted((wire_id,)))

    def start(self, one: PairRequest, worker: int, prefill_only: bool) -> None:
        request = one.continued()
        self.by_wire[request.request_id] = one
        one.source = worker
        one.handing = prefill_only
        known_tokens = len(one.known())
        import_tokens = (self.chance.choice([0, self.chance.randint(0, known_tokens)]),)
        if prefill_only:
            self.send(worker, PrefillsArrived((request,), import_tokens))
        elif import_tokens[0]:
            self.send(worker, ImportsArrived((request,), import_tokens))
        else:
            self.send(worker, RequestsArrived((request,)))

    def request_copy(self, one: PairRequest) -> None:
        self.seen["copied"] += 1
        one.copying = True
        self.send(one.source, CopiesRequested((one.wire_id,)))

    def request_handover(self, one: PairRequest) -> None:
        one.copying = False
        self.send(one.source, KvTransfersRequested((one.wire_id,)))

    def may_be_offered(self, one: PairRequest) -> bool:
        return (
            one.handing
            and one.target is None
            and (1 - one.source, one.wire_id) not in self.unread_pins
        )

    def offer(self, one: PairRequest) -> None:
        """To the other worker, before or after the first has done its part."""
        self.seen["pulled" if one.held else "pushed"] += 1
        one.target = 1 - one.source
        request, known_tokens = one.continued(), len(one.known())
        wanted_tokens = self.chance.choice([known_tokens, self.chance.randint(1, known_tokens)])
        self.send(one.target, ImportsArrived((request,), (wanted_tokens,)))

    def importable(self) -> list[tuple[int, str]]:
        """The imports that may end now."""
        return [
            (worker, wire_id)
            for worker, at in enumerate(self.workers)
            for wire_id in at.imports
            if wire_id in at.cancelled
            or self.by_wire[wire_id].held
            or self.by_wire[wire_id].source == worker
        ]

    def finish_import(self, worker: int, wire_id: str) -> None:
        at = self.workers[worker]
        if wire_id in at.cancelled:
            self.seen["cancelled"] += 1
            return self.take_effects(worker, at.finish_import(wire_id, []))
        one = self.by_wire[wire_id]
        kv, since = keys_of(one.known(), one.request.adapter), ()
        source = one.source
        if source != worker:
            tokens, blocks = self.workers[source].computed[wire_id]
            kv = self.workers[source].engine.read(blocks, tokens)
            since = one.output[one.sent_output :]
            one.source, one.target = worker, None
            one.handing = one.held = one.copying = False
            self.unread_pins.append((source, wire_id))
        come = self.chance.choice([len(kv), len(kv), 0, self.chance.randint(0, len(kv))])
        self.seen["whole" if come >= at.imports[wire_id].end_token else "in part"] += 1
        return self.take_effects(worker, at.finish_import(wire_id, kv[:come], since))

    def release_pin(self) -> None:
        worker, wire_id = self.unread_pins.pop(self.chance.randrange(len(self.unread_pins)))
        self.send(worker, TransferPinsReleased((wire_id,)))

    def land(self, worker: int) -> None:
        self.take_effects(worker, self.workers[worker].land())

    def abort(self, one: PairRequest) -> None:
        one.aborted = one.over = True
        self.leave(one)

    def turn(self) -> None:
        """One thing that may happen now, happens."""
        choices = self.routine()
        alive = [one for one in self.requests if not one.over]
        for one in alive:
            if one.source is None:
                start = self.start, one, self.chance.randrange(2), self.chance.randrange(3) > 0
                choices += [start, start]
                continue
            if self.chance.randrange(20) == 0:
                choices.append((self.abort, one))
            if not one.handing and self.chance.randrange(3) == 0:
                choices.append((self.request_handover, one))
            if not one.handing and self.chance.randrange(3) == 0:
                choices.append((self.request_copy, one))
            if self.may_be_offered(one):
                choices.append((self.offer, one))
        if choices:
            action, *arguments = self.chance.choice(choices)
            action(*arguments)
            self.audit()

    def routine(self) -> list[tuple]:
        """What sooner or later happens by itself."""
        landing = [(self.land, w) for w, at in enumerate(self.workers) if at.landing]
        imports = [(self.finish_import, *one) for one in self.importable()]
        copied = [one for one in self.requests if one.copying and one.handing]
        handovers = [(self.request_handover, one) for one in copied]
        return landing * 3 + imports + handovers + [(self.release_pin,)] * bool(self.unread_pins)

    def settle(self) -> None:
        """Everybody gets to the end, and the workers are empty."""
        for _ in range(3_000):
            alive = [one for one in self.requests if not one.over]
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
        for at in self.workers:
            at.assert_empty()
