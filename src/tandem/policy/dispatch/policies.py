"""Dispatch policies by name, each with its parameters: where a routed prompt is computed. All take
`transfer`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.dispatch.contract import Dispatch, Dispatching, Placement, Transfer
from tandem.policy.routing.contract import Route
from tandem.policy.routing.prediction import Predictor
from tandem.policy.views import RequestView, WorkerView, view_of


def here(route: Route, transfer: Transfer, reason: str) -> Dispatch:
    return Dispatch(Placement.LOCAL, transfer, route.decode, route.decode, reason)


def there(route: Route, transfer: Transfer, reason: str) -> Dispatch:
    return Dispatch(Placement.DIRECT, transfer, route.prefill, route.decode, reason)


def one_worker(route: Route, transfer: Transfer) -> Dispatch:
    return here(route, transfer, f"{route.decode} takes both phases")


@dataclass(frozen=True, slots=True)
class AlwaysLocal:
    """The decode worker prefills everything: what disaggregation has to beat."""

    transfer: Transfer = Transfer.PUSH

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        return here(route, self.transfer, "prefill is always local")


@dataclass(frozen=True, slots=True)
class AlwaysRemote:
    """The routed prefill worker takes every prompt."""

    transfer: Transfer = Transfer.PUSH

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        if route.local:
            return one_worker(route, self.transfer)
        return there(route, self.transfer, "prefill is always remote")


@dataclass(frozen=True, slots=True)
class Conditional:
    """Dynamo's conditional disaggregation: local when fewer than `local_tokens` of the prompt, and
    a smaller share of it than `local_share`, are not on the decode worker's device. A decode worker
    that is busy (more than `busy_kv_share` of its KV, or `busy_queued_tokens` prompt tokens
    waiting) vetoes."""

    local_tokens: int = 2048
    local_share: float = 0.7
    busy_kv_share: float = 0.85
    busy_queued_tokens: int = 10_000
    transfer: Transfer = Transfer.PUSH

    def __post_init__(self) -> None:
        for name in ("local_share", "busy_kv_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InvalidConfiguration(f"{name} is {value:g}; choose a share from 0 to 1")
        for name in ("local_tokens", "busy_queued_tokens"):
            value = getattr(self, name)
            if value < 0:
                raise InvalidConfiguration(f"{name} is {value}; choose 0 or more")

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        if route.local:
            return one_worker(route, self.transfer)
        uncached = request.uncached_tokens(route.decode)
        text = f"{uncached:,} of {request.prompt_tokens:,} prompt tokens are not at {route.decode}"
        if uncached >= self.local_tokens or uncached / request.prompt_tokens >= self.local_share:
            return there(route, self.transfer, text)
        view = view_of(workers, route.decode)
        if view.kv_used > self.busy_kv_share:
            text = f"{view.worker} is busy: {view.kv_used:.1%} of its KV blocks are in use"
            return there(route, self.transfer, text)
        if view.queued_prefill_tokens > self.busy_queued_tokens:
            text = f"{view.worker} is busy: {view.queued_prefill_tokens:,} prompt tokens wait there"
            return there(route, self.transfer, text)
        return here(route, self.transfer, f"only {text}")


@dataclass(frozen=True, slots=True)
class GlobalQueue:
    """What the policy `inner` would send to a prefill worker waits in one queue for all of them,
    after Dynamo's first design: a late choice needs no forecast of the wait. The decode worker
    pulls, because nobody knows yet who would push to it."""

    inner: str = "remote"
    transfer: Transfer = Transfer.PULL
    _inner: Dispatching = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_inner", _plain(self.inner, self.transfer))

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        decided = self._inner.decide(request, route, workers, now_ns)
        if decided.placement is not Placement.DIRECT:
            return decided
        return replace(decided, placement=Placement.QUEUED, prefill="")


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """A prompt of more than `long_tokens` (not cached at the routed prefill worker) whose priority
    number is at least `least_priority` is prefilled by one of `workers`, the one that is done
    first. Everything else, and everything while none of them accepts, the policy `inner` decides.
    """

    workers: Sequence[str]
    inner: str = "remote"
    transfer: Transfer = Transfer.PUSH
    long_tokens: int = field(default=32_768, kw_only=True)
    least_priority: int = field(default=1, kw_only=True)
    _inner: Dispatching = field(init=False, repr=False, compare=False)
    _predictor: Predictor = field(default_factory=Predictor, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidConfiguration(
                "workers is empty; name the workers that take long prompts, or leave the policy out"
            )
        if isinstance(self.workers, str):
            raise InvalidConfiguration(f"workers is {self.workers!r}; write a list of names")
        object.__setattr__(self, "workers", tuple(self.workers))
        if self.long_tokens < 1:
            raise InvalidConfiguration(f"long_tokens is {self.long_tokens}; choose 1 or more")
        object.__setattr__(self, "_inner", _plain(self.inner, self.transfer))

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        uncached = request.uncached_tokens(route.prefill)
        if uncached > self.long_tokens and request.priority >= self.least_priority:
            chosen = self._first_done(request, workers)
            if chosen:
                reason = (
                    f"{uncached:,} prompt tokens of priority {request.priority} go to {chosen}, "
                    f"one of the workers for prompts above {self.long_tokens:,}"
                )
                placement = Placement.LOCAL if chosen == route.decode else Placement.DIRECT
                return Dispatch(placement, self.transfer, chosen, route.decode, reason)
        return self._inner.decide(request, route, workers, now_ns)

    def _first_done(self, request: RequestView, workers: Sequence[WorkerView]) -> str:
        """The accepting worker of the set with the earliest first token; empty if none."""
        views = [
            view
            for view in workers
            if view.worker in self.workers and view.accepting and view.role.prefills
        ]
        quotes = self._predictor.prefill_quotes(request, views, Role.PREFILL)
        priced = [(quote.ttft_s, view.worker) for quote, view in zip(quotes, views, strict=True)]
        return min(priced, default=(0.0, ""))[1]


@dataclass(frozen=True, slots=True)
class SecondsDispatch:
    """Tandem's own policy, on the same predictions as its routing. Local when wait, prefill and
    decoding on the decode worker, with what its running decodes are slowed down, lose no more
    seconds than wait and prefill on the prefill worker, transfer, and decoding.

    A pull comes after the prefill; a push hides behind it all but the last chunk's share.
    """

    transfer: Transfer = Transfer.PUSH
    predictor: Predictor = field(default_factory=Predictor, repr=False, compare=False)

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        if route.local:
            return one_worker(route, self.transfer)
        prefill, decode = view_of(workers, route.prefill), view_of(workers, route.decode)
        local_s = self.predictor.prefill_quotes(request, [decode], Role.BOTH)[0].lost_s
        remote_s = self.remote_seconds(request, prefill, decode)
        reason = (
            f"prefill at {route.decode} loses {local_s:.3g} s in all, "
            f"at {route.prefill} with the transfer {remote_s:.3g} s"
        )
        place = here if local_s <= remote_s else there
        return place(route, self.transfer, reason)

    def remote_seconds(
        self, request: RequestView, prefill: WorkerView, decode: WorkerView
    ) -> float:
        """What everybody loses by prefill on one worker and decode on the other."""
        first = self.predictor.prefill_quotes(request, [prefill], Role.PREFILL)[0]
        second = self.predictor.decode_quotes(request, [decode], prefill.cost.network)[0]
        lost_s = first.lost_s + second.lost_s
        if self.transfer is Transfer.PUSH:
            lost_s -= _hidden_seconds(request, prefill, decode)
        return lost_s


def _hidden_seconds(request: RequestView, prefill: WorkerView, decode: WorkerView) -> float:
    """The part of the transfer that runs while the prompt is still computed."""
    uncached = request.uncached_tokens(prefill.worker)
    earlier_tokens = max(0, uncached - prefill.cost.chunk_tokens)
    earlier_tokens = min(earlier_tokens, request.uncached_tokens(decode.worker))
    transfer_s = max(view.cost.transfer_seconds(earlier_tokens) for view in (prefill, decode))
    known = request.prompt_tokens - uncached
    return min(transfer_s, prefill.cost.prefill_seconds(earlier_tokens, known))


_PLAIN: dict[str, Callable[..., Dispatching]] = {
    "local": AlwaysLocal,
    "remote": AlwaysRemote,
    "conditional": Conditional,
    "seconds": SecondsDispatch,
}


def _plain(name: str, transfer: Transfer) -> Dispatching:
    """Of a policy within a policy."""
    if name not in _PLAIN:
        raise InvalidConfiguration(f"inner dispatch is {name}; choose one of {', '.join(_PLAIN)}")
    return _PLAIN[name](transfer=transfer)


DISPATCHES: dict[str, Callable[..., Dispatching]] = {
    **_PLAIN,
    "queue": GlobalQueue,
    "long-prompts": LongPrompts,
}
