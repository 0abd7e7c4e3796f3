"""The router machine: admission, routing, KV transfer, migration and failover of every request of a
cluster.

No sockets and no clock: what workers and clients report comes in, messages to them go out. The
gateway and the twin drive the same object.
"""

from collections.abc import Collection, Iterable, Sequence
from heapq import nsmallest

from tandem.cluster.audit import invariant
from tandem.cluster.router.admission import AdmissionFront, Choice, RouterConfig
from tandem.cluster.router.deadlines import Deadlines
from tandem.cluster.router.deaths import blame, reason_of
from tandem.cluster.router.endings import Ending, Endings
from tandem.cluster.router.fleet import Fleet
from tandem.cluster.router.migration import Migrations
from tandem.cluster.router.predictions import Forecast, Predictions, forecast_of
from tandem.cluster.router.request_state import RequestState, Stage
from tandem.cluster.router.transfers import KvTransfers, cancel_everywhere, explained_transfer
from tandem.facts.errors import Rejection
from tandem.messages.router import (
    AnnounceDegraded,
    BlocksListed,
    BlocksReported,
    CutOff,
    Explain,
    ImportReported,
    KvReported,
    LeaveOut,
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
    SendEvent,
    TokensReported,
    TransferEnded,
    WorkerDrained,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import (
    EmitTokens,
    FailRequest,
    ImportsArrived,
    PrefillsArrived,
    RequestsArrived,
    TransferPinsReleased,
    WorkerEvent,
)
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.routing.contract import Candidate

Effects = list[RouterEffect]

# Output is counted to its tenant in portions: fair shares are uneven by so much, no more.
CHARGED_TOKENS = 64
STRANDED = "the model that began its answer is served no more"


class RouterMachine:
    """`handle(event, now_ns)` gives the effects to perform, in order. `requests` are the requests
    on their way, by request id; `takeovers` counts how often one of them began again; `predictions`
    are beside what came of them."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.admission = AdmissionFront(config)
        self.kv_transfers = KvTransfers()
        self.predictions = Predictions()
        self.endings = Endings(self.admission, self.predictions)
        self.requests: dict[str, RequestState] = {}
        self._by_wire: dict[str, RequestState] = {}
        self.migrations = Migrations(self.admission, self.kv_transfers, self._by_wire)
        self.deadlines = Deadlines()
        self._serial = 0
        self.takeovers = 0

    def next_wakeup(self) -> int | None:
        """When `pass_time` is due, if nothing happens before."""
        return self.deadlines.next_wakeup()

    def pass_time(self, now_ns: int) -> Effects:
        """End whoever has no more time: refused without a token, else cut off with what it has."""
        effects: Effects = []
        for request_id in self.deadlines.take_due(now_ns):
            state = self.requests[request_id]
            effects += cancel_everywhere(state, self.admission, self.kv_transfers)
            if state.first_token_ns < 0:
                reason, retry_s = self.admission.too_late(state, now_ns)
                if self.config.explains:
                    figures = (("retry_after_s", retry_s),)
                    effects.append(Explain(request_id, "deadline", reason, figures))
                effects.append(Reject(request_id, reason, retry_s, Rejection.DEADLINE))
                self._end(state, Ending.LATE, now_ns)
            else:
                effects.append(CutOff(request_id))
                self._end(state, Ending.CUT_OFF, now_ns)
        if effects:
            self._fill(now_ns, effects)
        return effects

    def handle(self, event: RouterEvent, now_ns: int) -> Effects:
        return self.handle_together((event,), now_ns)

    def handle_together(self, events: Iterable[RouterEvent], now_ns: int) -> Effects:
        """Events of one instant, all of which are known before anybody is chosen to go next."""
        effects: Effects = []
        changed = False
        for event in events:
            match event:
                case LoadReported() | BlocksReported() | BlocksListed():
                    effects += self.admission.learn(event, now_ns)
                    continue
                case TokensReported():
                    changed = self._take_tokens(event, now_ns, effects) or changed
                    continue
                case KvReported() | ImportReported() | TransferEnded():
                    self._move(event, now_ns, effects)
                case RequestSubmitted():
                    self._submit(event, now_ns, effects)
                case RequestWithdrawn(request_id):
                    if state := self.requests.get(request_id):
                        effects += cancel_everywhere(state, self.admission, self.kv_transfers)
                        self._end(state, _ending_of(event), now_ns)
                case RequestRefused(_, wire_id, reason, retry_after_s):
                    state = self._by_wire.get(wire_id)
                    if state is not None and wire_id == state.names.copy:
                        effects += self.migrations.give_up_copy(state)
                    elif state is not None:
                        effects += cancel_everywhere(state, self.admission, self.kv_transfers)
                        self._end(state, Ending.FAILED, now_ns)
                        by = Rejection.QUEUE if retry_after_s else Rejection.INVALID
                        effects.append(Reject(state.request_id, reason, retry_after_s, by))
                case RequestBroken(_, wire_id, reason):
                    if broken := self._by_wire.get(wire_id):
                        self._fail(broken, reason, now_ns, effects)
                case _:
                    self._change_fleet(event, now_ns, effects)
            changed = True
        if changed:
            self._fill(now_ns, effects)
        return effects

    def reconfigure(self, config: RouterConfig, now_ns: int) -> Effects:
        """Decide by another configuration from now on, which has the same block size, hashes and
        first token. Nobody who is in is refused or moved for it, but that a class whose reserve
        has grown may get back slots that others borrowed; who may go now, goes."""
        self.config = config
        self.admission.reconfigure(config, self.requests.values())
        effects: Effects = []
        for state in list(self.requests.values()):
            if state.stage is Stage.QUEUED and self.admission.stranded(state):
                self._fail(state, STRANDED, now_ns, effects)
        self._fill(now_ns, effects)
        return effects

    def fill(self, now_ns: int) -> Effects:
        """Start whoever may go now that more may be at workers."""
        effects: Effects = []
        self._fill(now_ns, effects)
        return effects

    def state_of(self, wire_id: str) -> RequestState | None:
        """The request that workers know by this id, while they work on it."""
        return self._by_wire.get(wire_id)

    def audit(self) -> None:
        """Assert that every request is somewhere, and counted where it is. For tests and for the
        auditor."""
        on_their_way = [p for p in self.requests.values() if p.stage is not Stage.QUEUED]
        by_wire = {name: each for each in on_their_way for name in each.names.all}
        invariant(self._by_wire == by_wire, "workers know requests by the names they were given")
        waiting = len(self.requests) - len(on_their_way)
        invariant(
            self.admission.suspects.all_waiting == waiting, "a request waits or is on its way"
        )
        self.admission.audit(on_their_way)
        self.kv_transfers.audit(on_their_way)

    def _change_fleet(self, event: RouterEvent, now_ns: int, effects: Effects) -> None:
        fleet = self.admission.fleet
        match event:
            case WorkerJoined(worker, role):
                fleet.join(worker, role, now_ns)
            case WorkerDrained(worker) if worker in fleet.workers:
                fleet.drain(worker)
                effects += self.migrations.target_drains(worker)
            case RoleTaken(worker, role) if worker in fleet.workers:
                fleet.take_role(worker, role)
            case WorkerLost(worker, died):
                fleet.lose(worker)
                self.admission.liveness.lost(worker)
                self.admission.index.forget_worker(worker)
                if died:
                    there = [each for each in self.requests.values() if each.is_at(worker)]
                    blame(there, worker, now_ns)
                for state in list(self.requests.values()):
                    if state.deaths.enough:
                        self._fail(state, reason_of(state.deaths), now_ns, effects)
                    elif state.needs(worker):
                        self._begin_again(state, now_ns, effects, lost=worker)
            case PoolNodeLost(node):
                self.admission.index.forget_worker(node)
            case RequestsLost(worker, wire_ids):
                for wire_id in wire_ids:
                    if (lost := self._by_wire.get(wire_id)) and lost.needs(worker):
                        self._begin_again(lost, now_ns, effects, lost=worker)
            case MigrationsRequested():
                effects += self.migrations.begin_migrations(event, now_ns)

    def _submit(self, event: RequestSubmitted, now_ns: int, effects: Effects) -> None:
        request_id = event.request.request_id
        assert request_id not in self.requests
        state = RequestState.of(event, self._serial, now_ns)
        self._serial += 1
        verdict, route, choice = self.admission.admit(state, now_ns)
        left_out = not verdict.admitted and self.admission.may_leave_out(state)
        if self.config.explains:
            text = verdict.reason or "admitted"
            if verdict.admitted and state.degraded:
                text = f"admitted with {state.degraded}: {verdict.reason}"
            elif left_out:
                text = f"left out of its call: {verdict.reason}"
            figures = () if verdict.admitted else (("retry_after_s", verdict.retry_after_s),)
            effects.append(Explain(request_id, "admission", text, figures))
        if left_out:
            effects.append(LeaveOut(request_id, verdict.reason))
            return
        if not verdict.admitted:
            effects.append(Reject(request_id, verdict.reason, verdict.retry_after_s))
            return
        if state.degraded:
            effects.append(AnnounceDegraded(request_id, state.degraded))
        self.requests[request_id] = state
        if choice is None:
            self.admission.queue.enqueue(state)
            if route is not None:
                # Until it goes to workers: what admission went by.
                waited_s = (now_ns - state.view.arrival_ns) / 1e9
                state.forecast = Forecast(now_ns, waited_s, route.ttft_s, route.tpot_s)
        if state.due_ns is not None:
            least_s = self.admission.least_seconds(state) if choice is None else 0.0
            self.deadlines.watch(state, least_s)
        if choice is not None:
            self._start(state, choice, now_ns, effects)

    def _fill(self, now_ns: int, effects: Effects) -> None:
        """Start whoever may go. Where a class waits for its reserve, the newest requests of those
        who borrowed it go back to the queue, with the tokens that they have."""
        while started := self.admission.next_to_start(self.requests, now_ns):
            self._start(*started, now_ns, effects)
        lent = self.admission.queue.to_give_back()
        if not lent:
            return
        on_their_way = {each.view.serial: each for each in self._by_wire.values()}
        for _, state in sorted(on_their_way.items(), reverse=True):
            if state.has_place and lent.get(state.view.service_class, 0):
                lent[state.view.service_class] -= 1
                self._begin_again(state, now_ns, effects)
        while started := self.admission.next_to_start(self.requests, now_ns):
            self._start(*started, now_ns, effects)

    def _start(self, state: RequestState, choice: Choice, now_ns: int, effects: Effects) -> None:
        if self.config.explains:
            most, fleet = self.config.explained_candidates, self.admission.fleet
            effects += _explanations(state, choice, most, fleet)
        forecast = state.forecast
        if forecast is None or not state.names.attempt:
            prefill = choice.dispatch.prefill or choice.route.prefill
            tracked = self.admission.fleet.workers[prefill]
            arrival_ns = state.view.arrival_ns
            forecast = forecast_of(choice.route, prefill, tracked, now_ns, arrival_ns)
            state.forecast = forecast
        pulled_tokens = self.admission.place(state, choice, now_ns)
        if pulled_tokens or state.names.attempt:
            # Others have a part in when its first token comes.
            forecast.worker = ""
        if state.due_ns is not None:
            # What it takes from here on is known only when it has been done.
            self.deadlines.watch(state)
        self._by_wire[state.wire_id] = state
        request = state.request(state.prefill, now_ns)
        event: WorkerEvent = PrefillsArrived((request,), (pulled_tokens,))
        if state.local:
            event = RequestsArrived((request,), (pulled_tokens,) if pulled_tokens else ())
        effects.append(SendEvent(state.prefill, event))

    def _take_tokens(self, event: TokensReported, now_ns: int, effects: Effects) -> bool:
        """Whether a prompt or an answer ended, or a suspect was cleared, so that somebody else may
        go."""
        emission, repeats, ended = event.emission, event.repeats, False
        tokens, reasons = emission.tokens, emission.finish_reasons
        for index, wire_id in enumerate(emission.request_ids):
            state = self._by_wire.get(wire_id)
            if state is None:
                continue
            reason = reasons[index]
            if state.stage is Stage.PREFILLING:
                if self.config.explains:
                    effects.append(_computed(state, emission, index))
                taken = state.takes_token(reason, self.config.first_token)
                self.admission.prompt_done(state)
                state.stage = Stage.DECODING if state.local else Stage.MOVING
                ended = True
                if not taken:
                    continue
            output = state.output
            if not output and state.forecast is not None:
                alone = not self.admission.prompts_at(state.prefill)
                self.predictions.first_token(state.forecast, now_ns, alone=alone)
            if state.first_token_ns < 0:
                self.admission.first_token(state, now_ns)
                self.deadlines.watch(state)
            output.extend((tokens[index],) * repeats)
            if state.deaths.in_a_row and state.deaths.clears(state.known_tokens):
                self.admission.suspects.leaves(state)
                ended = True
            if len(output) - state.charged_output >= CHARGED_TOKENS:
                if not state.charged_output:
                    # Whoever is slow is known long before its answer ends.
                    self.admission.later_tokens(state, len(output), now_ns)
                self.admission.queue.charge(state, CHARGED_TOKENS)
            if reason is not None:
                if event.worker != state.decode:
                    # It ended before its KV transfer: the worker that waits to go on need not.
                    effects += cancel_everywhere(state, self.admission, self.kv_transfers)
                self._end(state, Ending.ANSWERED, now_ns)
                ended = True
        return ended

    def _move(
        self,
        event: KvReported | ImportReported | TransferEnded,
        now_ns: int,
        effects: Effects,
    ) -> None:
        match event:
            case TransferEnded():
                effects += self.kv_transfers.transfer_ended(event)
            case ImportReported(_, wanted):
                if state := self._by_wire.get(wanted.request_id):
                    effects += self.kv_transfers.import_ready(state, event)
            case KvReported(worker, computed):
                for wire_id, tokens, held in zip(
                    computed.request_ids, computed.tokens, computed.held, strict=True
                ):
                    state = self._by_wire.get(wire_id)
                    if state is not None and state.prefill == worker:
                        self._kv_computed(state, tokens, held, now_ns, effects)
                    elif held:
                        # Its way has ended meanwhile: nobody will read what is held.
                        effects.append(SendEvent(worker, TransferPinsReleased((wire_id,))))
        for state in self.kv_transfers.take_copied():
            effects += self.migrations.copy_arrived(state)
        for state in self.kv_transfers.take_finished():
            self.admission.kv_arrived(state)
            self.migrations.migrated(state)
            if self.config.explains:
                text, figures = f"goes on at {state.decode}", (("worker", state.decode),)
                effects.append(Explain(state.request_id, "decode", text, figures))

    def _kv_computed(
        self, state: RequestState, tokens: int, held: bool, now_ns: int, effects: Effects
    ) -> None:
        if state.stage in (Stage.COPYING, Stage.DECODING):
            effects += self.migrations.readable(state, tokens, now_ns)
            return
        if not tokens:
            self._begin_again(state, now_ns, effects)
            return
        state.computed_tokens = max(state.computed_tokens, tokens)
        state.prefill_pinned = held
        # Nothing is reserved at the decode worker before the prefill runs, which then needs nobody
        # else to end: two workers never wait for each other's blocks.
        if not state.import_sent and (held or state.transfer is Transfer.PUSH):
            state.import_sent = True
            wanted_tokens = tokens if held else state.known_tokens
            request = state.request(state.decode, now_ns)
            events = self.admission.fleet.workers[state.decode].events_sent
            self.admission.liveness.sent(state, state.decode, events)
            if self.config.explains:
                effects.append(explained_transfer(state, wanted_tokens))
            effects.append(SendEvent(state.decode, ImportsArrived((request,), (wanted_tokens,))))
        effects += self.kv_transfers.push_computed(state)

    def _begin_again(
        self, state: RequestState, now_ns: int, effects: Effects, *, lost: str = ""
    ) -> None:
        """A worker died with part of it: take it up elsewhere, with the tokens so far. Where the
        one that is `lost` only read a copy, it goes on where it is."""
        if state.stage is Stage.COPYING and lost == state.decode:
            effects += self.migrations.give_up_copy(state)
            return
        if state.output and self.admission.stranded(state):
            self._fail(state, STRANDED, now_ns, effects)
            return
        self.takeovers += 1
        if self.config.explains:
            effects.append(_takeover(state, lost))
        effects += cancel_everywhere(state, self.admission, self.kv_transfers)
        for name in state.names.all:
            del self._by_wire[name]
        self.admission.request_left(state)
        state.restart()
        self.admission.queue.classify(state)
        self.admission.suspects.enqueue(state)

    def _fail(self, state: RequestState, reason: str, now_ns: int, effects: Effects) -> None:
        """A request that was let in has no answer."""
        effects += cancel_everywhere(state, self.admission, self.kv_transfers)
        self._end(state, Ending.FAILED, now_ns)
        effects.append(FailRequest(state.request_id, reason))

    def _end(self, state: RequestState, ending: Ending, now_ns: int) -> None:
        """The way out of every request that was let in."""
        self.endings.ended(state, ending, now_ns)
        del self.requests[state.request_id]
        self.deadlines.forget(state)
        if state.stage is not Stage.QUEUED:
            for name in state.names.all:
                del self._by_wire[name]
            self.admission.request_left(state)


def _ending_of(event: RequestWithdrawn) -> Ending:
    if event.satisfied:
        return Ending.ANSWERED
    return Ending.FAILED if event.rejected else Ending.LEFT


def _explanations(
    state: RequestState, choice: Choice, most: int | None, fleet: Fleet
) -> list[RouterEffect]:
    """Why the request goes where it goes: candidates with their scores and predicted seconds, of
    each phase so many at most."""
    route, dispatch = choice.route, choice.dispatch
    figures: list[tuple[str, float | str]] = [("ttft_s", route.ttft_s), ("tpot_s", route.tpot_s)]
    for phase, reasons in (("prefill", route.prefill_reasons), ("decode", route.decode_reasons)):
        chosen_workers = (dispatch.prefill or route.prefill, dispatch.decode)
        for each in reasons if most is None else _best(reasons, most, chosen_workers):
            name = f"{phase} {each.worker}"
            figures.append((f"{name} score", each.score))
            figures.append((f"{name} ttft_s", each.ttft_s))
            figures.append((f"{name} tpot_s", each.tpot_s))
            if corrected := str(fleet.workers[each.worker].capacity.cost.correction):
                figures.append((f"{name} corrected", corrected))
    chosen = f"prefill on {route.prefill}, decode on {route.decode}"
    placed = (
        ("placement", str(dispatch.placement)),
        ("prefill", dispatch.prefill or route.prefill),
        ("decode", dispatch.decode),
    )
    return [
        Explain(state.request_id, "routing", chosen, tuple(figures)),
        Explain(state.request_id, "dispatch", dispatch.reason, placed),
    ]


def _computed(state: RequestState, emission: EmitTokens, row: int) -> Explain:
    """All that was known of the request is computed; how much of it was cached, and how long it had
    waited at the worker."""
    figures = (
        ("worker", state.prefill),
        ("tokens", state.known_tokens),
        ("cached_tokens", emission.cached_tokens[row]),
        ("wait_s", emission.waited_ns[row] / 1e9 if emission.waited_ns else 0.0),
    )
    return Explain(state.request_id, "prefill", f"computed by {state.prefill}", figures)


def _takeover(state: RequestState, lost: str) -> Explain:
    """The request begins again with the tokens that it has."""
    text = f"{lost} is lost" if lost else "its KV is lost, or its place is another's"
    figures = (("lost_worker", lost), ("output_tokens", len(state.output)))
    return Explain(state.request_id, "takeover", text, figures)


def _best(candidates: Sequence[Candidate], most: int, chosen: Collection[str]) -> list[Candidate]:
    """The best, in their order: of a thousand workers nobody reads all. The chosen ones are among
    them, though dispatch may have its own mind."""
    places = range(len(candidates))
    best = set(nsmallest(most, places, key=lambda place: (candidates[place].score, place)))
    return [each for place, each in enumerate(candidates) if place in best or each.worker in chosen]
