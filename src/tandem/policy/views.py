"""What policies see: snapshots of requests and workers as numbers, true at one instant."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.slo import IN_BACKGROUND, Slo


class TierHits(Struct, frozen=True):
    """Tokens of a prompt's longest known prefix at one worker: on its device, then further tokens
    in its host memory, then further ones on its disk."""

    device_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.device_tokens + self.host_tokens + self.disk_tokens


NO_HITS = TierHits()


class RequestView(Struct, frozen=True):
    """A request that waits for a decision.

    `serial` counts requests since the start (what round robin and chance are keyed by). `hits`
    names only workers that hold something; `remote_tokens` of the prefix lie in the shared pool.
    Smaller `priority` is more urgent. `deadline_ns` is when the first token is due, if ever. Where
    this answer is cut short, others are `typical_output_tokens` long (0: as this one). Workers of
    this `model` alone can answer it (empty: of the cluster's); with an `adapter` (its digest) of
    `adapter_bytes`, where it has one.
    """

    request_id: str
    serial: int
    arrival_ns: int
    prompt_tokens: int
    expected_output_tokens: float
    hits: Mapping[str, TierHits] = field(default_factory=dict)
    remote_tokens: int = 0
    tenant: str = ""
    service_class: str = ""
    priority: int = 0
    session: str = ""
    slo: Slo = field(default_factory=Slo)
    deadline_ns: int | None = None
    typical_output_tokens: float = 0.0
    model: str = ""
    adapter: str = ""
    adapter_bytes: int = 0

    @property
    def in_background(self) -> bool:
        """Whether nobody waits for it, so that it gives way to everybody."""
        return self.priority == IN_BACKGROUND

    def lacks_adapter(self, view: "WorkerView") -> bool:
        """Whether that worker must load its adapter first."""
        return bool(self.adapter) and self.adapter not in view.adapters

    def hit(self, worker: str) -> TierHits:
        return self.hits.get(worker, NO_HITS)

    def uncached_tokens(self, worker: str) -> int:
        """Prompt tokens that the worker's device must still compute or pull; at least one."""
        return max(1, self.prompt_tokens - self.hit(worker).device_tokens)


class WorkerView(Struct, frozen=True):
    """One worker at `as_of_ns`, with what was sent to it since already counted in.

    `queued_prefill_tokens`: prompt tokens accepted and not yet computed, cached ones left out.
    `running_sequences` are decoding and attend to `context_tokens` in all; `waiting_requests` have
    not started. `expected_decodes` and `expected_context_tokens` are requests on their way here
    whose prefill still runs elsewhere. `typical_prefill_tokens` are the uncached tokens of a prompt
    as they were sent here lately. It holds these `adapters` (digests), as far as is known. A worker
    that drains, starts or died is not `accepting`.
    """

    worker: str
    role: Role
    cost: WorkerCost
    as_of_ns: int
    accepting: bool = True
    running_sequences: int = 0
    waiting_requests: int = 0
    queued_prefill_tokens: int = 0
    context_tokens: int = 0
    expected_decodes: int = 0
    expected_context_tokens: int = 0
    typical_prefill_tokens: int = 0
    max_sequences: int = 256
    block_size: int = 16
    total_blocks: int = 1
    free_blocks: int = 1
    adapters: frozenset[str] = frozenset()

    @property
    def requests(self) -> int:
        return self.running_sequences + self.waiting_requests + self.expected_decodes

    @property
    def kv_used(self) -> float:
        """Share of the device's blocks that have an owner, 0 to 1."""
        return 1.0 - self.free_blocks / self.total_blocks

    @property
    def total_tokens(self) -> int:
        return self.total_blocks * self.block_size


def view_of(workers: Sequence[WorkerView], worker: str) -> WorkerView:
    """Of the worker of that name, which must be among them."""
    return next(view for view in workers if view.worker == worker)
