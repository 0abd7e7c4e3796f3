"""The way of every request through a cluster, from its arrival to its last token: where it starts,
the hand-over of its KV, and taking over when a worker dies.

Knows no socket and no clock: what workers and clients report comes in, what is to be told to them
goes out. The gateway and the twin drive the same object.
"""

from collections.abc import Iterable

from tandem.cluster.audit import invariant
from tandem.cluster.router.admission import Choice, Entrance, RouterConfig
from tandem.cluster.router.cancel import call_back
from tandem.cluster.router.deaths import blame, reason_of
from tandem.cluster.router.kv_transfer import Handover
from tandem.cluster.router.migration import Migrations
from tandem.cluster.router.request_state import Passage, Stage
from tandem.messages.router import (
    BlocksListed,
    BlocksReported,
    Explain,
    ImportCancelled,
    ImportReported,
    KvReported,
    LoadReported,
    MigrationsRequested,
    PoolNodeLost,
    Reject,
    RequestBroken,
    RequestRefused,
    RequestsLost,
    RequestSubmitted,
    RequestWithdrawn,
    RoleTaken,
    RouterEffect,
    RouterEvent,
    Tell,
    TokensReported,
    TransferEnded,
    WorkerDrained,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import (
    FailRequest,
    HoldsReleased,
    ImportsArrived,
    PrefillsArrived,
    RequestsArrived,
    WorkerEvent,
)
from tandem.policy.dispatch.contract import Transfer

Effects = list[RouterEffect]

# Output is counted to its tenant in portions: fair shares are uneven by so much, no more.
CHARGED_TOKENS = 64


class RouterMachine:
    """`handle(event, now_ns)` gives the effects to perform, in order. `passages` are the requests
    on their way, by request id; `takeovers` counts how often one of them began again."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.entrance = Entrance(config)
        self.handover = Handover()
        self.passages: dict[str, Passage] = {}
        self._by_wire: dict[str, Passage] = {}
        self.migrations = Migrations(self.entrance, self.handover, self._by_wire)
        self._serial = 0
        self.takeovers = 0

    def next_wakeup(self) -> int | None:
        """A router acts on events only."""
        return None

    def handle(self, event: RouterEvent, now_ns: int) -> Effects:
        return self.handle_together((event,), now_ns)

    def handle_together(self, events: Iterable[RouterEvent], now_ns: int) -> Effects:
        """Events of one instant, all of which are known before anybody is chosen to go next."""
        effects: Effects = []
        news = False
        for event in events:
            match event:
                case LoadReported() | BlocksReported() | BlocksListed():
                    effects += self.entrance.learn(event, now_ns)
                    continue
                case TokensReported():
                    news = self._take_tokens(event, effects) or news
                    continue
                case KvReported() | ImportReported() | ImportCancelled() | TransferEnded():
                    self._move(event, effects)
                case RequestSubmitted():
                    self._submit(event, now_ns, effects)
                case RequestWithdrawn(request_id):
                    if passage := self.passages.get(request_id):
                        effects += call_back(passage, self.entrance, self.handover)
                        self._forget(passage)
                case RequestRefused(_, wire_id, reason, retry_after_s):
                    passage = self._by_wire.get(wire_id)
                    if passage is not None and wire_id == passage.names.copy:
                        effects += self.migrations.give_up(passage)
                    elif passage is not None:
                        effects += call_back(passage, self.entrance, self.handover)
                        self._forget(passage)
                        effects.append(Reject(passage.request_id, reason, retry_after_s))
                case RequestBroken(_, wire_id, reason):
                    if broken := self._by_wire.get(wire_id):
                        effects += call_back(broken, self.entrance, self.handover)
                        self._forget(broken)
                        effects.append(FailRequest(broken.request_id, reason))
                case _:
                    self._change_fleet(event, now_ns, effects)
            news = True
        if news:
            self._fill(now_ns, effects)
        return effects

    def passage_of(self, wire_id: str) -> Passage | None:
        """The request that workers know by this id, while they work on it."""
        return self._by_wire.get(wire_id)

    def audit(self) -> None:
        """Assert that every request is somewhere, and counted where it is. For tests and for the
        auditor."""
        on_their_way = [p for p in self.passages.values() if p.stage is not Stage.LINE]
        by_wire = {name: each for each in on_their_way for name in each.names.all}
        invariant(self._by_wire == by_wire, "workers know requests by the names they were given")
        waiting = len(self.passages) - len(on_their_way)
        invariant(self.entrance.suspects.all_waiting == waiting, "a request waits or is on its way")
        self.entrance.audit(on_their_way)
        self.handover.audit(on_their_way)

    def _change_fleet(self, event: RouterEvent, now_ns: int, effects: Effects) -> None:
        fleet = self.entrance.fleet
        match event:
            case WorkerJoined(worker, role):
                fleet.join(worker, role, now_ns)
            case WorkerDrained(worker) if worker in fleet.standings:
                fleet.drain(worker)
                effects += self.migrations.target_drains(worker)
            case RoleTaken(worker, role) if worker in fleet.standings:
                fleet.take_role(worker, role)
            case WorkerLost(worker, died):
                fleet.lose(worker)
                self.entrance.witnesses.lost(worker)
                self.entrance.index.forget_worker(worker)
                if died:
                    there = [each for each in self.passages.values() if each.is_at(worker)]
                    blame(there, worker, now_ns)
                for passage in list(self.passages.values()):
                    if passage.deaths.enough:
                        effects += call_back(passage, self.entrance, self.handover)
                        self._forget(passage)
                        reason = reason_of(passage.deaths)
                        effects.append(FailRequest(passage.request_id, reason))
                    elif passage.needs(worker):
                        self._begin_again(passage, effects, lost=worker)
            case PoolNodeLost(node):
                self.entrance.index.forget_worker(node)
            case RequestsLost(worker, wire_ids):
                for wire_id in wire_ids:
                    if (lost := self._by_wire.get(wire_id)) and lost.needs(worker):
                        self._begin_again(lost, effects, lost=worker)
            case MigrationsRequested():
                effects += self.migrations.begin(event)

    def _submit(self, event: RequestSubmitted, now_ns: int, effects: Effects) -> None:
        request_id = event.request.request_id
        assert request_id not in self.passages
        passage = Passage.of(event, self._serial, now_ns)
        self._serial += 1
        verdict, choice = self.entrance.judge(passage, now_ns)
        if self.config.explains:
            text = verdict.reason or "admitted"
            figures = () if verdict.admitted else (("retry_after_s", verdict.retry_after_s),)
            effects.append(Explain(request_id, "admission", text, figures))
        if not verdict.admitted:
            effects.append(Reject(request_id, verdict.reason, verdict.retry_after_s))
            return
        self.passages[request_id] = passage
        if choice is None:
            self.entrance.line.wait(passage)
        else:
            self._start(passage, choice, now_ns, effects)

    def _fill(self, now_ns: int, effects: Effects) -> None:
        """Start whoever may go. Where a class waits for its reserve, the newest requests of those
        who borrowed it go back in line, with the tokens that they have."""
        while started := self.entrance.next(self.passages, now_ns):
            self._start(*started, now_ns, effects)
        lent = self.entrance.line.to_give_back()
        if not lent:
            return
        on_their_way = {each.view.serial: each for each in self._by_wire.values()}
        for _, passage in sorted(on_their_way.items(), reverse=True):
            if lent.get(passage.view.service_class, 0):
                lent[passage.view.service_class] -= 1
                self._begin_again(passage, effects)
        while started := self.entrance.next(self.passages, now_ns):
            self._start(*started, now_ns, effects)

    def _start(self, passage: Passage, choice: Choice, now_ns: int, effects: Effects) -> None:
        if self.config.explains:
            effects += _explanations(passage, choice)
        pulled_tokens = self.entrance.start(passage, choice, now_ns)
        self._by_wire[passage.wire_id] = passage
        request = passage.request(passage.prefill)
        event: WorkerEvent = RequestsArrived((request,))
        if not passage.local:
            event = PrefillsArrived((request,), (pulled_tokens,))
        elif pulled_tokens:
            event = ImportsArrived((request,), (pulled_tokens,))
        effects.append(Tell(passage.prefill, event))

    def _take_tokens(self, event: TokensReported, effects: Effects) -> bool:
        """Whether a prompt or an answer ended, or a suspect was cleared, so that somebody else may
        go."""
        emission, ended = event.emission, False
        for index, wire_id in enumerate(emission.request_ids):
            passage = self._by_wire.get(wire_id)
            if passage is None:
                continue
            reason = emission.finish_reasons[index]
            taken = passage.takes_token(reason, self.config.first_token)
            if passage.stage is Stage.PREFILLING:
                self.entrance.prompt_done(passage)
                passage.stage = Stage.DECODING if passage.local else Stage.MOVING
                ended = True
            if not taken:
                continue
            passage.output.extend((emission.tokens[index],) * event.repeats)
            if passage.deaths.clears(passage.known_tokens):
                self.entrance.suspects.leaves(passage)
                ended = True
            if len(passage.output) - passage.charged_output >= CHARGED_TOKENS:
                self.entrance.line.charge(passage, CHARGED_TOKENS)
            if reason is not None:
                if event.worker != passage.decode:
                    # It ended before its hand-over: whoever waits to go on need not.
                    effects += call_back(passage, self.entrance, self.handover)
                self._forget(passage)
                ended = True
        return ended

    def _move(
        self,
        event: KvReported | ImportReported | ImportCancelled | TransferEnded,
        effects: Effects,
    ) -> None:
        match event:
            case TransferEnded():
                effects += self.handover.ended(event)
            case ImportCancelled(_, wire_id):
                effects += self.handover.cancelled(self._by_wire.get(wire_id), event)
            case ImportReported(_, wanted):
                if passage := self._by_wire.get(wanted.request_id):
                    effects += self.handover.import_ready(passage, event)
            case KvReported(worker, computed):
                for wire_id, tokens, held in zip(
                    computed.request_ids, computed.tokens, computed.held, strict=True
                ):
                    passage = self._by_wire.get(wire_id)
                    if passage is not None and passage.prefill == worker:
                        self._kv_computed(passage, tokens, held, effects)
                    elif held:
                        # Its way has ended meanwhile: nobody will read what is held.
                        effects.append(Tell(worker, HoldsReleased((wire_id,))))
        for passage in self.handover.take_copied():
            effects += self.migrations.copied(passage)
        for passage in self.handover.take_finished():
            self.entrance.arrived(passage)
            self.migrations.arrived(passage)

    def _kv_computed(self, passage: Passage, tokens: int, held: bool, effects: Effects) -> None:
        if passage.stage in (Stage.COPYING, Stage.DECODING):
            effects += self.migrations.readable(passage, tokens)
            return
        if not tokens:
            self._begin_again(passage, effects)
            return
        passage.computed_tokens = max(passage.computed_tokens, tokens)
        passage.handed_over = held
        # Nothing is reserved at the decode worker before the prefill runs, which then needs nobody
        # else to end: two workers never wait for each other's blocks.
        if not passage.announced and (held or passage.transfer is Transfer.PUSH):
            passage.announced = True
            wanted_tokens = tokens if held else passage.known_tokens
            request = passage.request(passage.decode)
            told = self.entrance.fleet.standings[passage.decode].told
            self.entrance.witnesses.sent(passage, passage.decode, told)
            effects.append(Tell(passage.decode, ImportsArrived((request,), (wanted_tokens,))))
        effects += self.handover.push_on(passage)

    def _begin_again(self, passage: Passage, effects: Effects, *, lost: str = "") -> None:
        """A worker died with part of it: take it up elsewhere, with the tokens so far. Where the
        one that is `lost` only read a copy, it goes on where it is."""
        if passage.stage is Stage.COPYING and lost == passage.decode:
            effects += self.migrations.give_up(passage)
            return
        self.takeovers += 1
        effects += call_back(passage, self.entrance, self.handover)
        for name in passage.names.all:
            del self._by_wire[name]
        self.entrance.leave(passage)
        passage.restart()
        self.entrance.suspects.wait(passage)

    def _forget(self, passage: Passage) -> None:
        del self.passages[passage.request_id]
        if passage.stage is not Stage.LINE:
            for name in passage.names.all:
                del self._by_wire[name]
            self.entrance.leave(passage)


def _explanations(passage: Passage, choice: Choice) -> list[RouterEffect]:
    """Why the request goes where it goes: every candidate with its score and predicted seconds."""
    route, dispatch = choice.route, choice.dispatch
    figures: list[tuple[str, float | str]] = [("ttft_s", route.ttft_s), ("tpot_s", route.tpot_s)]
    for phase, reasons in (("prefill", route.prefill_reasons), ("decode", route.decode_reasons)):
        for each in reasons:
            name = f"{phase} {each.worker}"
            figures.append((f"{name} score", each.score))
            figures.append((f"{name} ttft_s", each.ttft_s))
            figures.append((f"{name} tpot_s", each.tpot_s))
    chosen = f"prefill on {route.prefill}, decode on {route.decode}"
    placement = (("placement", str(dispatch.placement)),)
    return [
        Explain(passage.request_id, "routing", chosen, tuple(figures)),
        Explain(passage.request_id, "dispatch", dispatch.reason, placement),
    ]
