"""The port between the API server and whatever generates: one engine in this process
(`live/local_worker.py`) or a cluster's gateway (`live/gateway/gateway.py`). A prompt passes here
on its way to an engine, and its tokens on their way back.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.facts.adapter import ServedAdapter
from tandem.facts.metrics import MetricFamily
from tandem.facts.rate_limits import Allowance, CallSize, background_account
from tandem.facts.request import Request, TokenOutput
from tandem.facts.tracing import TraceContext


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the API server must know of the model behind it.

    `names` are the served names, the first being the one that answers carry. `context_tokens`
    bounds prompt plus answer. `created_s` is a Unix time in seconds.
    """

    names: tuple[str, ...]
    context_tokens: int
    vocabulary_tokens: int
    end_token_ids: tuple[int, ...]
    created_s: int


@dataclass(slots=True)
class ServedBy:
    """Who served a call, filled in while it runs: the workers that its requests went to, in
    order."""

    workers: dict[str, None] = field(default_factory=dict)


# Given the tokens of one answer one by one: whether this one completes a stop string.
EndFinder = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `tenant` is whose API key it is, empty where keys name nobody; `key` tells the key
    itself from others (never its text). `headers` are the caller's own claims, and choose only
    among what its tenant may use. Calls of one `session` go on from each other; what this one
    leaves in the cache is to be kept for `pin_s` after its answer, after which a tool runs for
    about `pause_s` (None: not said). It expects an answer of so many tokens (None: not said). The
    whole answer is wanted within `deadline_s` (0: no deadline). `call_id` is what the answer's
    `X-Request-Id` says. `call` is the size of a call of which the request is one of several;
    `served_by` is filled in where somebody wants to know. `end_finder` makes an
    `EndFinder` for the answer where stop strings may end it (None: there are none). What is asked
    in the `background` gives way to everybody else, whatever it says of itself. Who `wants_sources`
    gets those of every token. Its requests are parts of the `trace` of the call (None: it is not
    traced)."""

    tenant: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    pin_s: float = 0.0
    deadline_s: float = 0.0
    pause_s: float | None = None
    expected_output_tokens: int | None = None
    key: str = ""
    call_id: str = ""
    call: CallSize | None = None
    served_by: ServedBy | None = None
    end_finder: Callable[[], EndFinder] | None = None
    background: bool = False
    wants_sources: bool = False
    trace: TraceContext | None = None

    @property
    def account(self) -> str:
        """Whose share of waiting places and turns this caller's requests take. Callers without a
        key are one."""
        owner = self.tenant or self.key
        return background_account(owner) if self.background else owner


ANYBODY = Caller()


class AdapterModels(Protocol):
    """The adapters that are served beside the model, as models of their own."""

    @property
    def served(self) -> Mapping[str, ServedAdapter]:
        """By name."""
        ...

    def named(self, name: str) -> ServedAdapter | None:
        """That of a client's request, if it is one."""
        ...

    async def load(self, name: str, path: str) -> ServedAdapter:
        """Serve what lies in the folder `path` of the server under a new name. Raises
        `InvalidRequest`, also where the name is taken or what lies there cannot be served."""
        ...

    async def unload(self, name: str) -> None:
        """Serve it no more. Raises `InvalidRequest` where there is none of that name."""
        ...


class Generator(Protocol):
    """Continues sequences. Closing what `generate` returns aborts the request and frees all it
    holds; the last `TokenOutput` carries the finish reason.

    `generate` raises `InvalidRequest` for a request that can never run, `Overloaded` when the
    waiting queue is full, `EngineFailed` when the engine died.
    """

    @property
    def card(self) -> ModelCard: ...

    @property
    def ready(self) -> bool: ...

    @property
    def failed(self) -> bool:
        """The engine died; only a restart helps."""
        ...

    @property
    def model_identity(self) -> str | None:
        """Of the numbers that answer: while it is the same, so are the tokens of equal requests.
        None while workers of unlike numbers serve, or none."""
        ...

    def generate(
        self, request: Request, caller: Caller = ANYBODY
    ) -> AsyncGenerator[TokenOutput, None]: ...

    def satisfied(self, request_id: str) -> None:
        """The reader has all it wants (a stop string was found) and is about to close: the request
        counts as stopped, not as aborted."""
        ...

    def service_class(self, caller: Caller) -> str:
        """The name of the class that requests of this caller have; empty where there are none."""
        ...

    def allowance(self, account: str) -> Allowance | None:
        """What this account may use at this moment; None where it has no limits."""
        ...

    def tools_called(self, caller: Caller, tools: Sequence[str]) -> None:
        """The answer to this caller has ended in calls of these tools (after `satisfied`, where its
        reader ended it): its session pauses until they are done."""
        ...

    async def reset_prefix_cache(self, *, external: bool) -> None:
        """Returns once requests to come find no KV that was cached before, with `external` in
        slower tiers and shared pools neither. Requests under way keep theirs. Raises `EngineFailed`
        and `NotReady`."""
        ...

    def metric_families(self) -> Iterable[MetricFamily]:
        """What Prometheus may know of everything behind this port, at this moment."""
        ...
