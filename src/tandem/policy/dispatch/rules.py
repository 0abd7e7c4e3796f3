"""Dispatch by a rule: always local, always remote, by the uncached length, or through a global
queue."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.dispatch.contract import Dispatch, Dispatching, Placement, Transfer
from tandem.policy.routing.contract import Route
from tandem.policy.views import RequestView, WorkerView


def here(route: Route, transfer: Transfer, reason: str) -> Dispatch:
    return Dispatch(Placement.LOCAL, transfer, route.decode, route.decode, reason)


def there(route: Route, transfer: Transfer, reason: str) -> Dispatch:
    return Dispatch(Placement.DIRECT, transfer, route.prefill, route.decode, reason)


def one_worker(route: Route, transfer: Transfer) -> Dispatch:
    return here(route, transfer, f"{route.decode} takes both phases")


def worker_view(workers: Sequence[WorkerView], worker: str) -> WorkerView:
    return next(view for view in workers if view.worker == worker)


@dataclass(frozen=True, slots=True)
class AlwaysLocal:
    """The decode worker prefills everything: what disaggregation has to beat."""

    transfer: Transfer = Transfer.PUSH

    def decide(
        self,
        request: RequestView,  # noqa: ARG002
        route: Route,
        workers: Sequence[WorkerView],  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
    ) -> Dispatch:
        return here(route, self.transfer, "prefill is always local")


@dataclass(frozen=True, slots=True)
class AlwaysRemote:
    """The routed prefill worker takes every prompt."""

    transfer: Transfer = Transfer.PUSH

    def decide(
        self,
        request: RequestView,  # noqa: ARG002
        route: Route,
        workers: Sequence[WorkerView],  # noqa: ARG002
        now_ns: int,  # noqa: ARG002
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
        self,
        request: RequestView,
        route: Route,
        workers: Sequence[WorkerView],
        now_ns: int,  # noqa: ARG002
    ) -> Dispatch:
        if route.local:
            return one_worker(route, self.transfer)
        uncached = request.uncached_tokens(route.decode)
        text = f"{uncached:,} of {request.prompt_tokens:,} prompt tokens are not at {route.decode}"
        if uncached >= self.local_tokens or uncached / request.prompt_tokens >= self.local_share:
            return there(route, self.transfer, text)
        view = worker_view(workers, route.decode)
        if view.kv_used > self.busy_kv_share:
            text = f"{view.worker} is busy: {view.kv_used:.1%} of its KV blocks are in use"
            return there(route, self.transfer, text)
        if view.queued_prefill_tokens > self.busy_queued_tokens:
            text = f"{view.worker} is busy: {view.queued_prefill_tokens:,} prompt tokens wait there"
            return there(route, self.transfer, text)
        return here(route, self.transfer, f"only {text}")


@dataclass(frozen=True, slots=True)
class GlobalQueue:
    """What `inner` would send to a prefill worker waits in one queue for all of them, after
    Dynamo's first design: a late choice needs no forecast of the wait. The decode worker pulls,
    because nobody knows yet who would push to it."""

    transfer: Transfer = Transfer.PULL
    inner: Dispatching = field(default_factory=AlwaysRemote)

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch:
        decided = self.inner.decide(request, route, workers, now_ns)
        if decided.placement is not Placement.DIRECT:
            return replace(decided, transfer=self.transfer)
        return replace(decided, placement=Placement.QUEUED, transfer=self.transfer, prefill="")
