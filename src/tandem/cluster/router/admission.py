"""The admission front of the router: admission on arrival, the request queue, and the choice of
workers when there is room."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from msgspec.structs import replace

from tandem.cluster.audit import invariant
from tandem.cluster.router.breakers import Breakers
from tandem.cluster.router.deadlines import too_late
from tandem.cluster.router.fleet import Capacity, Fleet
from tandem.cluster.router.prefix_cache.index import ComputedHashes, PrefixIndex, PromptHashes
from tandem.cluster.router.queue import LivenessChecks, RequestQueue, RequestQueueConfig, Suspects
from tandem.cluster.router.request_state import RequestState, Stage
from tandem.cluster.router.use_totals import UseTotals
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Tier
from tandem.facts.slo import IN_BACKGROUND, LEAST_URGENT, MOST_URGENT
from tandem.messages.router import (
    AskForBlocks,
    BlocksListed,
    BlocksReported,
    LoadReported,
    RouterEffect,
)
from tandem.policy.admission.checks import idle_first_token_s
from tandem.policy.admission.contract import MAX_RETRY_S, MIN_RETRY_S, Admission, Verdict
from tandem.policy.dispatch.contract import Dispatch, Dispatching, FirstToken
from tandem.policy.qos.classes import Classes
from tandem.policy.routing.contract import Route, Routing
from tandem.policy.routing.prediction import Predictor, pulls_if_evicted, worthwhile_pulls
from tandem.policy.views import RequestView, WorkerView, view_of

ASK_AGAIN_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """`capacities` prices every worker that may ever join. Blocks are named under `root` until
    another one is adopted, by `hashes` (None: computed from the tokens), which serve one router.
    With `explains` every decision is explained, not only acted on, with so many candidates of each
    phase (`explained_candidates`; None: all). Workers hold `held_adapters` each, as far as routing
    reckons."""

    block_size: int
    root: CacheRoot
    capacities: Mapping[str, Capacity]
    routing: Routing
    admission: Admission
    dispatching: Dispatching
    classes: Classes = field(default_factory=Classes)
    queue: RequestQueueConfig = field(default_factory=RequestQueueConfig)
    explains: bool = False
    explained_candidates: int | None = None
    first_token: FirstToken = FirstToken.SENT
    hashes: PromptHashes | None = None
    held_adapters: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes, why, and what the workers looked like then."""

    route: Route
    dispatch: Dispatch
    workers: list[WorkerView]


# A verdict, the route that it was passed on, and the workers that there were to choose from.
Judged = tuple[Verdict, Route | None, list[WorkerView]]


class AdmissionFront:
    """Owns what decisions are made from: the fleet, the prefix index, the request queue, and the
    suspects, which wait beside it. `roots` are those under which the prompts of each model are
    looked up now (empty: the cluster's own); `use` is what accounts got through this gateway."""

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.roots: Mapping[str, CacheRoot] = {"": config.root}
        self.fleet = Fleet(config.capacities, config.classes, config.held_adapters)
        self.index = PrefixIndex(config.block_size)
        self.use = UseTotals()
        self.queue = RequestQueue(config.queue, config.classes, self.fleet, self.use)
        self.suspects = Suspects(self.queue)
        self.liveness = LivenessChecks()
        self.breakers = self._breakers_of(config)
        self._predictor = Predictor()
        self._hashes = config.hashes or ComputedHashes(config.block_size)
        # A listing is long: it is asked for once a gap, and again only if it does not come.
        self._asked_ns: dict[tuple[str, Tier], int] = {}
        self._is_reconfigured = False

    def reconfigure(self, config: RouterConfig, requests: Iterable[RequestState]) -> None:
        """Other policies, classes and bounds from now on, with these `requests` under way. What
        was known of workers and prefixes stays, and who is in stays in."""
        terms = config.admission.breaker
        if self.breakers is not None and self.breakers.hold_for(terms, config.classes):
            self.breakers.classes = config.classes
        else:
            # What was measured was measured of other promises.
            self.breakers = self._breakers_of(config)
        self.config = config
        self.fleet.reconfigure(config.classes)
        self.queue.reconfigure(config.queue, config.classes, requests)
        self._is_reconfigured = True

    def learn(
        self, event: LoadReported | BlocksReported | BlocksListed, now_ns: int
    ) -> list[RouterEffect]:
        """What workers carry and hold. A report that does not follow the last one has the blocks
        listed anew."""
        shared = not isinstance(event, LoadReported) and event.tier is Tier.REMOTE
        if not shared and event.worker not in self.fleet.workers:
            # A late report of one that died: its name may come back empty.
            return []
        match event:
            case LoadReported():
                self.fleet.report(event, now_ns)
                self.liveness.report_received(event.worker, event.received_events)
            case BlocksReported(worker, tier, changes):
                in_order = self.index.apply(worker, tier, changes)
                asked_ns = self._asked_ns.get((worker, tier))
                if not in_order and (asked_ns is None or now_ns - asked_ns >= ASK_AGAIN_NS):
                    self._asked_ns[worker, tier] = now_ns
                    return [AskForBlocks(worker, tier)]
            case BlocksListed(worker, tier, hashes, next_number):
                self._asked_ns.pop((worker, tier), None)
                self.index.resynchronise(worker, tier, hashes, next_number)
        return []

    def admit(
        self, state: RequestState, now_ns: int
    ) -> tuple[Verdict, Route | None, Choice | None]:
        """Whether a new request comes in, by which predicted route, and where it would go at once
        (None: it must wait)."""
        if self._is_reconfigured:
            # It may have been sent before its class went.
            self.queue.classify(state)
        state.bind_to(self.config.classes.named(state.view.service_class))
        workers = self._views_before(state.view)
        view = asks = self._look(state, now_ns)
        route = self.config.routing.choose(view, workers, now_ns)
        whole = verdict = self._judge(state, route, workers, now_ns)
        if not verdict.admitted:
            verdict, route, workers = self._judge_degraded(state, verdict, route, workers, now_ns)
            view = state.view
        # What nobody waits for was promised nothing.
        if self.breakers is not None and route is not None and not view.in_background:
            verdict = self.breakers.settled(asks, verdict, now_ns, whole)
            state.measured = verdict.admitted and verdict.feasible
            if verdict.admitted and self.breakers.several_classes:
                self.breakers.prefills(view, _shared_prefill_s(view, route, workers), now_ns)
        if route is None or len(self.queue) or not self.has_room(view):
            return verdict, route, None
        free = self._with_room(view, workers)
        known = route if len(free) == len(workers) else None
        return verdict, route, self._choose(view, free, now_ns, known)

    def least_seconds(self, state: RequestState) -> float:
        """Predicted seconds to its first token on the workers open to it if they were idle, with
        what is cached now; 0 where nobody could compute it now."""
        view = state.view
        workers = self.fleet.open_to(view, self.fleet.views())
        seconds = idle_first_token_s(view, workers)
        return seconds if seconds < inf else 0.0

    def too_late(self, state: RequestState, now_ns: int) -> tuple[str, float]:
        """Why a request is refused whose first token cannot come in time any more; and when the
        same request is predicted to be in time."""
        view, deadline_ns = state.view, state.submission.deadline_ns
        assert deadline_ns is not None
        reason = too_late(state, self.least_seconds(state), now_ns)
        workers = self._views_before(view)
        route = self.config.routing.choose(view, workers, now_ns)
        excess_s = 0.0
        if route is not None:
            excess_s = route.ttft_s - (deadline_ns - view.arrival_ns) / 1e9
        return reason, min(max(excess_s, MIN_RETRY_S), MAX_RETRY_S)

    def stranded(self, state: RequestState) -> bool:
        """Whether its class and the last workers of the model that is to answer it have gone."""
        model = state.view.model
        if not model or self.config.classes.named(state.view.service_class).model == model:
            return False
        return not any(each.capacity.model == model for each in self.fleet.accepting())

    def may_leave_out(self, state: RequestState) -> bool:
        """Whether its call goes on without this one of several answers."""
        service = self.config.classes.named(state.view.service_class)
        return service.degrade.no_n and state.submission.request.choice > 0

    def first_token(self, state: RequestState, now_ns: int) -> None:
        """Its client gets the first token now."""
        state.first_token_ns = now_ns
        if state.measured and self.breakers is not None and not state.names.attempt:
            self.breakers.first_token(state.view, now_ns)

    def no_first_token(self, state: RequestState, now_ns: int) -> None:
        """Its deadline ends it before its first token."""
        if state.measured and self.breakers is not None and not state.names.attempt:
            self.breakers.no_first_token(state.view, now_ns)

    def later_tokens(self, state: RequestState, tokens: int, now_ns: int) -> None:
        """Its client has so many tokens by now."""
        if state.measured and self.breakers is not None and not state.names.attempt:
            self.breakers.later_tokens(state.view, state.first_token_ns, tokens, now_ns)

    def next_to_start(
        self, requests: Mapping[str, RequestState], now_ns: int
    ) -> tuple[RequestState, Choice] | None:
        """Take the next request out of the queue, if there is one and room for it. Suspects that
        may start go before it."""
        if not self.suspects.all_waiting or not self.has_room():
            return None
        if started := self._suspect_to_start(now_ns):
            return started
        if not len(self.queue):
            return None
        stuck: set[str] = set()
        while (request_id := self.queue.first(now_ns, stuck)) is not None:
            state = requests[request_id]
            view = self._look(state, now_ns)
            choice = self._choose(view, self._with_room(view, self._views_of(view)), now_ns)
            if choice is not None:
                self.queue.dequeue(state)
                return state, choice
            if not self.fleet.on_own:
                # Nobody can take anybody now; a worker that joins or frees up asks again.
                return None
            # Another class may have workers of its own.
            stuck.add(view.service_class)
        return None

    def place(self, state: RequestState, choice: Choice, now_ns: int) -> int:
        """Count the request in where it goes. Gives up to which token its KV is pulled from slower
        tiers of the prefill worker."""
        dispatch, view = choice.dispatch, state.view
        prefill = dispatch.prefill or choice.route.prefill
        state.go(prefill, dispatch.decode, dispatch.transfer)
        worker, pulling = view_of(choice.workers, prefill), view
        if worker.cost.tiers:
            # What is only expected on the device may be gone from there: the worker looks itself.
            pulling = replace(view, hits={prefill: self.index.held(prefill, state.reusable_chain)})
        state.tier_ends = worthwhile_pulls(pulling, worker, self._predictor)
        if not state.tier_ends:
            # What it finds on the device may be gone when it has waited for its turn: then it comes
            # from below.
            state.tier_ends = pulls_if_evicted(pulling, worker)
        pulled_tokens = state.tier_ends[-1][1] if state.tier_ends else 0
        kept_tokens = max(view.hit(prefill).device_tokens, pulled_tokens)
        known_tokens = view.prompt_tokens
        self.queue.enter_workers(state)
        self.liveness.sent(state, prefill, self.fleet.workers[prefill].events_sent)
        prefill_tokens = max(1, known_tokens - kept_tokens)
        self.fleet.send(prefill, prefill_tokens, known_tokens)
        if view.adapter:
            self.fleet.needs_adapter(prefill, view.adapter)
        tracked = self.fleet.workers[prefill]
        tracked.prefilling.add(state.wire_id, self._class_priority(view), prefill_tokens)
        self.index.expect(prefill, state.chain, now_ns)
        if kept_tokens < len(state.chain) * self.config.block_size:
            # Others do not know of the blocks that it will compute.
            self.use.routed(prefill, state.chain)
        if not state.local:
            self.expect_decode(state, self._class_priority(view))
        return pulled_tokens

    def expect_decode(self, state: RequestState, priority: int = MOST_URGENT) -> None:
        """The decode worker will get this request once its KV is there: behind more urgent prompts,
        if its own is to be computed, and else before anybody's."""
        state.expected_tokens = state.known_tokens
        self.fleet.expect_decode(state.decode, state.request_id, state.expected_tokens, priority)
        if state.view.adapter:
            self.fleet.needs_adapter(state.decode, state.view.adapter)

    def kv_arrived(self, state: RequestState) -> None:
        """Its KV is at the decode worker, which goes on."""
        if state.expected_tokens:
            self.fleet.decode_arrived(state.decode, state.request_id, state.expected_tokens)
            state.expected_tokens = 0

    def expect_no_decode(self, state: RequestState) -> None:
        if state.expected_tokens:
            self.fleet.expect_no_decode(state.decode, state.request_id)
            state.expected_tokens = 0

    def prompt_done(self, state: RequestState) -> None:
        """No part of the prompt is to be computed any more, for whatever reason."""
        tracked = self.fleet.workers.get(state.prefill)
        if tracked is not None:
            tracked.prefilling.discard(state.wire_id)

    def prompts_at(self, worker: str) -> int:
        """How many requests have their prompt there, of which a part may be to be computed."""
        tracked = self.fleet.workers.get(worker)
        return 0 if tracked is None else len(tracked.prefilling)

    def request_left(self, state: RequestState) -> None:
        """The request is at no worker any more."""
        self.prompt_done(state)
        self.expect_no_decode(state)
        self.suspects.leaves(state)
        self.queue.leave_workers(state)

    def has_room(self, view: RequestView | None = None) -> bool:
        """For this one at the workers; None: for any."""
        depth = self.config.queue.prefill_depth
        if view is None:
            full = self.queue.full and not self.fleet.on_own
        else:
            full = self.queue.is_full_for(view.service_class)
        if full or not depth:
            return not full
        return any(
            tracked.role.prefills and tracked.prompts_before(view) < depth
            for tracked in self.fleet.accepting()
        )

    def hash_blocks(self, state: RequestState) -> None:
        """Bring the chain of the request up to all of its tokens."""
        request = state.submission.request
        root = self.roots.get(state.view.model)
        if root is None:
            # None of its workers has come yet.
            return
        state.chain = self._hashes.chain_of(request, state.tokens(), state.chain, root)

    def hash_left(self, state: RequestState) -> None:
        """Bring the chain of a request that ends up to what it leaves: nobody has computed the KV
        of its last token."""
        self.hash_blocks(state)
        state.chain = state.chain[: (state.known_tokens - 1) // self.config.block_size]

    def audit(self, on_their_way: Sequence[RequestState]) -> None:
        """Assert that the counts are those of these requests."""
        in_use = Counter(state.view.service_class for state in on_their_way if state.has_place)
        counted = {name: count for name, count in self.queue.in_use.items() if count}
        invariant(in_use == counted, "classes use the places that their requests take")
        for worker, tracked in self.fleet.workers.items():
            prefilling = {
                state.wire_id
                for state in on_their_way
                if state.stage is Stage.PREFILLING and state.prefill == worker
            }
            counted_prompts = set(tracked.prefilling) == prefilling
            invariant(counted_prompts, f"the prompts counted at {worker} are there")
            expected = [
                state.expected_tokens
                for state in on_their_way
                if state.expected_tokens and state.decode == worker
            ]
            counted_decodes = len(tracked.expected), tracked.expected.tokens
            decodes = len(expected), sum(expected)
            invariant(counted_decodes == decodes, f"the decodes expected at {worker} will come")
        self.index.audit()
        self.suspects.audit(on_their_way)

    def _suspect_to_start(self, now_ns: int) -> tuple[RequestState, Choice] | None:
        """The first that may start now, where no other suspect is. One that may not holds up all
        others, but for classes that have workers of their own."""
        stuck: set[str] = set()
        taken = self.suspects.workers()
        for suspect in self.suspects.waiting.values():
            name = suspect.view.service_class
            if name in stuck:
                continue
            if not self.queue.is_full_for(name):
                view = self._look(suspect, now_ns)
                apart = [each for each in self._views_of(view) if each.worker not in taken]
                if choice := self._choose(view, self._with_room(view, apart), now_ns):
                    self.suspects.starts(suspect)
                    return suspect, choice
            if not self.fleet.on_own:
                return None
            stuck.add(name)
        return None

    def _breakers_of(self, config: RouterConfig) -> Breakers | None:
        terms = config.admission.breaker
        if terms is None:
            return None
        return Breakers(terms, config.classes, self.fleet.share_workers)

    def _judge(
        self, state: RequestState, route: Route | None, workers: list[WorkerView], now_ns: int
    ) -> Verdict:
        """By what may be promised now, where there are breakers."""
        admission, view = self.config.admission, state.view
        if self.breakers is None or view.in_background:
            return admission.judge(view, route, workers, now_ns)
        promised = self.breakers.promised(view, now_ns)
        verdict = admission.judge(promised, route, workers, now_ns)
        return self.breakers.within_load(view, verdict)

    def _judge_degraded(
        self,
        state: RequestState,
        refusal: Verdict,
        route: Route | None,
        workers: list[WorkerView],
        now_ns: int,
    ) -> Judged:
        """Once more, with what the class allows to be cut; else as it was."""
        allowed = self.config.classes.named(state.view.service_class).degrade
        request, limit_tokens = state.submission.request, allowed.max_tokens
        if allowed.no_n and request.choice:
            # It is left out, before the others are cut.
            return refusal, route, workers
        whole = state.submission, state.view
        if limit_tokens is not None and request.sampling.max_tokens > limit_tokens:
            state.shorten(limit_tokens)
            shorter = self.config.routing.choose(state.view, workers, now_ns)
            verdict = self._judge(state, shorter, workers, now_ns)
            if verdict.admitted:
                state.degraded = f"max_tokens={limit_tokens}"
                return _in_spite_of(refusal, verdict), shorter, workers
            state.submission, state.view = whole
        if allowed.service_class and self._fits(state.view, allowed.service_class):
            state.move_to(self.config.classes.named(allowed.service_class))
            others = self._views_before(state.view)
            elsewhere = self.config.routing.choose(self._look(state, now_ns), others, now_ns)
            verdict = self._judge(state, elsewhere, others, now_ns)
            if verdict.admitted and elsewhere is not None:
                state.degraded = f"class={allowed.service_class}"
                return _in_spite_of(refusal, verdict), elsewhere, others
            state.submission, state.view = whole
        return refusal, route, workers

    def _fits(self, view: RequestView, service_class: str) -> bool:
        """Whether the model of that class could answer it: an adapter is one of the cluster's."""
        return not (view.adapter and self.config.classes.named(service_class).model)

    def _look(self, state: RequestState, now_ns: int) -> RequestView:
        """The request as policies see it now: with the tokens so far, and who holds its prefix."""
        self.hash_blocks(state)
        found = self.index.match(state.reusable_chain, now_ns)
        state.look(found.hits, found.remote_tokens)
        return state.view

    def _views_of(self, view: RequestView) -> list[WorkerView]:
        """The workers that this request may go to, as it finds them. Where classes are told apart
        by breakers, less urgent prompts wait for it there: they are no reason to refuse it."""
        if self.breakers is not None:
            views = self.fleet.views_ahead(self._class_priority(view))
        elif self.queue.in_background and not view.in_background:
            views = self.fleet.views_ahead(LEAST_URGENT)
        else:
            views = self.fleet.views()
        return self.fleet.open_to(view, views)

    def _views_before(self, view: RequestView) -> list[WorkerView]:
        """The same where it comes last of all that wait."""
        return self.queue.before(self._views_of(view), view, by_class=self.breakers is not None)

    def _class_priority(self, view: RequestView) -> int:
        """Without what its client wished for: there are as many as classes, however many ask."""
        if view.in_background:
            return IN_BACKGROUND
        return self.config.classes.named(view.service_class).priority

    def _with_room(self, request: RequestView, workers: list[WorkerView]) -> list[WorkerView]:
        depth, tracked_workers = self.config.queue.prefill_depth, self.fleet.workers
        if not depth:
            return workers
        return [
            view
            for view in workers
            if not view.role.prefills
            or tracked_workers[view.worker].prompts_before(request) < depth
        ]

    def _choose(
        self, view: RequestView, workers: list[WorkerView], now_ns: int, route: Route | None = None
    ) -> Choice | None:
        """By the `route` that is known already, if it is; None when these workers cannot."""
        route = route or self.config.routing.choose(view, workers, now_ns)
        if route is None:
            return None
        return Choice(route, self.config.dispatching.decide(view, route, workers, now_ns), workers)


def _in_spite_of(refusal: Verdict, verdict: Verdict) -> Verdict:
    """Admitted, with what would have been the reason not to be."""
    return Verdict(True, refusal.reason, feasible=verdict.feasible)


def _shared_prefill_s(view: RequestView, route: Route, workers: list[WorkerView]) -> float:
    """For how long the uncached part of a prompt keeps all workers together to which it may go."""
    cost = view_of(workers, route.prefill).cost
    tokens = max(1, view.prompt_tokens - view.hit(route.prefill).tokens)
    return cost.queue_seconds(tokens) / len(route.prefill_reasons)
