"""Pauses of agents' sessions: when an answer ends and a tool runs, the session's KV makes room on
its device, is kept in slower tiers, and is brought back before the next call.

What is told to workers is advice about cached blocks: no request depends on it. A session is
followed by the gateway that had its last call.
"""

from dataclasses import dataclass

from msgspec import structs

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.learned_pauses import LearnedPauses
from tandem.cluster.gateway.routing import Routing
from tandem.cluster.router.request_state import RequestState
from tandem.facts.blocks import Chain
from tandem.facts.fair_shares import FairShares
from tandem.messages.cluster import PinBlocks
from tandem.messages.gateway import GatewayEffect, PauseStatus, ToolsCalled
from tandem.messages.router import Explain, FollowedPause, RequestSubmitted
from tandem.messages.worker import SessionPaused, SessionReturning
from tandem.policy.keyed_heap import KeyedHeap
from tandem.policy.pauses import (
    NS_PER_S,
    ExpectedPause,
    PausePlan,
    announced_pause,
    place_to_return,
    plan_pause,
    quickest_pull_s,
    tokens_to_bring,
)
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView

Effects = list[GatewayEffect]

# What is remembered of sessions, in blocks of their prompts and answers, each session counting for
# so many beside.
MOST_BLOCKS = 1 << 18
BLOCKS_A_SESSION = 16


@dataclass(frozen=True, slots=True)
class PauseConfig:
    """With `learns` a pause that nobody announced is expected to be as those before it."""

    learns: bool = True


@dataclass(slots=True)
class PausedSession:
    """A session between two calls. Its last answer ended at `ended_ns` at `workers`, and left the
    KV of `chain`, pinned until `pinned_until_ns`. It is expected back at `return_ns` (None: nobody
    knows); `brought_to` is where its KV was brought since."""

    name: str
    key: bytes
    account: str
    view: RequestView
    root: bytes
    tenant: str
    chain: Chain
    workers: tuple[str, ...]
    pause: FollowedPause
    ended_ns: int
    pinned_until_ns: int
    tools: tuple[str, ...] = ()
    return_ns: int | None = None
    brought_to: str = ""


@dataclass(slots=True)
class PauseCounts:
    """Since the start; see `PauseStatus`. `errors_s` add up over all who came back."""

    followed: int = 0
    announced: int = 0
    prefetches: int = 0
    before: int = 0
    after: int = 0
    errors_s: float = 0.0


class Pauses:
    """Owns what is remembered of sessions between their calls, and what was learnt."""

    def __init__(self, config: PauseConfig, routing: Routing) -> None:
        self._config = config
        self._routing = routing
        self._router = routing.router
        self._learned = LearnedPauses()
        self._paused: dict[bytes, PausedSession] = {}
        self._shares: FairShares[bytes] = FairShares()
        # When to bring back what.
        self._due: KeyedHeap[int, bytes] = KeyedHeap()
        self._predictor = Predictor()
        self._counts = PauseCounts()

    def next_wakeup(self) -> int | None:
        """When KV is to be brought back."""
        entry = self._due.first_entry()
        return None if entry is None else entry[0]

    def status(self) -> PauseStatus:
        """The counts since the start."""
        counts = self._counts
        returned = counts.before + counts.after
        return PauseStatus(
            sessions=len(self._paused),
            paused=sum(each.return_ns is not None for each in self._paused.values()),
            followed=counts.followed,
            announced=counts.announced,
            prefetches=counts.prefetches,
            before=counts.before,
            after=counts.after,
            error_s=counts.errors_s / returned if returned else 0.0,
        )

    def request_submitted(self, event: RequestSubmitted, now_ns: int) -> Effects:
        """A session's next call is there: its pause is over."""
        session = self._forget(event.request.session)
        if session is None:
            return []
        seconds = (now_ns - session.ended_ns) / NS_PER_S
        # What is longer than anybody keeps KV for teaches no more than that.
        longest_s = session.pause.longest_ns / NS_PER_S
        taught_s = min(seconds, 2 * longest_s)
        self._learned.learn(session.account, session.tools, session.name, taught_s)
        if session.return_ns is None:
            return []
        early_s = (session.return_ns - now_ns) / NS_PER_S
        counts, brought_to = self._counts, session.brought_to
        counts.errors_s += abs(early_s)
        counts.after += bool(brought_to)
        counts.before += not brought_to
        if not self._router.config.explains:
            return []
        there = f"its KV was brought back to {brought_to}" if brought_to else "no KV was moved"
        text = f"back after {seconds:.3g} s, expected after {seconds + early_s:.3g} s; {there}"
        return [Explain(event.request.request_id, "pause", text)]

    def answer_ended(self, state: RequestState, now_ns: int) -> Effects:
        """The session of this request may pause now. Its chain is of what its answer left."""
        admission, submission = self._router.admission, state.submission
        assert submission.pause is not None
        request = submission.request
        self._forget(request.session)
        if not state.chain or not request.session:
            return []
        session = self._paused[request.session] = PausedSession(
            name=submission.session,
            key=request.session,
            account=submission.tenant,
            view=state.view,
            root=admission.roots[state.view.model].hash(request.salt),
            tenant=request.tenant,
            chain=state.chain,
            workers=tuple(dict.fromkeys((state.prefill, state.decode))),
            pause=submission.pause,
            ended_ns=now_ns,
            pinned_until_ns=now_ns + submission.pin_ns,
        )
        blocks = BLOCKS_A_SESSION + len(session.chain)
        self._shares.add_amount(request.session, session.account, blocks)
        while self._shares.held > MOST_BLOCKS:
            owner = self._shares.gives_way(session.account) or session.account
            self._forget(self._shares.oldest(owner))
        return self._begin(session, now_ns) if request.session in self._paused else []

    def tools_called(self, event: ToolsCalled, key: bytes, now_ns: int) -> Effects:
        """The answer of this session ended in calls of tools."""
        session = self._paused.get(key)
        if session is None or not event.tools:
            return []
        session.tools = event.tools
        return self._begin(session, now_ns)

    def bring_back(self, now_ns: int) -> Effects:
        """For all sessions whose time has come: have their KV on a device."""
        effects: Effects = []
        while (entry := self._due.first_entry()) is not None and entry[0] <= now_ns:
            self._due.discard(entry[1])
            effects += self._bring(self._paused[entry[1]], now_ns)
        return effects

    def audit(self) -> None:
        """Assert that only what is remembered is due, and counted."""
        invariant(self._due.current.keys() <= self._paused.keys(), "what is due is remembered")
        counted = all(key in self._shares for key in self._paused)
        invariant(counted and len(self._shares) == len(self._paused), "sessions are counted")

    def _begin(self, session: PausedSession, now_ns: int) -> Effects:
        """Plan the pause, as far as it is known how long it will be."""
        expected, tokens = self._expected(session), self._tokens(session)
        fleet = self._router.admission.fleet
        views = [view for view in fleet.views() if view.worker in session.workers]
        if expected is None or not views:
            return []
        pull_s = min(quickest_pull_s(view, tokens) for view in views)
        plan = plan_pause(expected, pull_s, session.pause.longest_ns / NS_PER_S)
        if plan is None:
            return []
        if session.return_ns is None:
            self._counts.followed += 1
            self._counts.announced += session.pause.announced_ns is not None
        return self._follow(session, plan, now_ns)

    def _follow(self, session: PausedSession, plan: PausePlan, now_ns: int) -> Effects:
        since_ns = session.ended_ns
        session.return_ns = since_ns + plan.return_in_ns
        self._due.place(session.key, since_ns + plan.prefetch_in_ns)
        effects: Effects = []
        if since_ns + plan.pin_ns > session.pinned_until_ns:
            session.pinned_until_ns = since_ns + plan.pin_ns
            pin = PinBlocks(tuple(session.chain), plan.pin_ns, session.view.priority)
            self._routing.send_pin(session.workers, pin, effects)
        left_ns = max(0, session.return_ns - now_ns)
        for worker in session.workers:
            self._routing.send(worker, SessionPaused(session.key, left_ns), effects)
        return effects

    def _bring(self, session: PausedSession, now_ns: int) -> Effects:
        admission, effects = self._router.admission, Effects()
        found = admission.index.match(session.chain, now_ns)
        # The last token of a prompt is always computed, and is none of these.
        view = structs.replace(
            session.view,
            prompt_tokens=self._tokens(session) + 1,
            hits=found.hits,
            remote_tokens=found.remote_tokens,
        )
        worker = place_to_return(view, admission.fleet.views(), self._predictor)
        if worker is None or session.return_ns is None:
            return []
        held = {worker.worker: admission.index.held(worker.worker, session.chain)}
        view = structs.replace(view, hits=held)
        blocks = tokens_to_bring(view, worker, self._predictor) // self._router.config.block_size
        if not blocks:
            return []
        self._counts.prefetches += 1
        session.brought_to = worker.worker
        returning = SessionReturning(
            session=session.key,
            tenant=session.tenant,
            root=session.root,
            digests=tuple(session.chain[:blocks]),
            return_in_ns=max(0, session.return_ns - now_ns),
        )
        self._routing.send(worker.worker, returning, effects)
        return effects

    def _expected(self, session: PausedSession) -> ExpectedPause | None:
        if session.pause.announced_ns is not None:
            return announced_pause(session.pause.announced_ns / NS_PER_S)
        if not self._config.learns:
            return None
        return self._learned.expected(session.account, session.tools, session.name)

    def _tokens(self, session: PausedSession) -> int:
        return len(session.chain) * self._router.config.block_size

    def _forget(self, key: bytes) -> PausedSession | None:
        self._due.discard(key)
        self._shares.discard(key)
        return self._paused.pop(key, None)
