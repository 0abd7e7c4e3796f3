"""What a person sees of a running server or cluster at one instant: workers, KV that moved, queues,
latencies over time, what was rejected and what the planner did.

One shape for `tandem serve` and for a cluster, for the page, `tandem top` and reports. Instants are
seconds before now (`ago_s`), so that no two clocks are compared.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from tandem.facts.bounds import Count


class TierOverview(Struct, frozen=True):
    """KV blocks of one owner in one place. Of a tier that is not `on`, `reason` says why."""

    owner: str
    tier: str
    blocks: int
    capacity_blocks: int
    fetched_blocks: int
    missed_blocks: int
    corrupt_blocks: int
    on: bool = True
    reason: str = ""


class WorkerOverview(Struct, frozen=True, kw_only=True):
    """One worker. `state` is `ready`, `draining` or `spare`; what it has done counts from its
    start. `read_from` are bytes of KV that it read, by the worker that had them."""

    worker: str
    role: str
    state: str
    running: int
    waiting: int
    used_blocks: int
    total_blocks: int
    block_size: int
    pool: str = ""
    last_seen_s: float = 0.0
    prompts: int = 0
    output_tokens: int = 0
    sent_bytes: int = 0
    moved_bytes: int = 0
    failed_transfers: int = 0
    read_from: Mapping[str, int] = {}


class QueueOverview(Struct, frozen=True):
    """Requests of one class and tenant that have not ended: without a worker yet, and at one."""

    service_class: str
    tenant: str
    waiting: int
    running: int


# Of durations in nanoseconds, as `observe.timeline` counts them: none is longer than 2**63.
Bucket = Annotated[int, Meta(ge=0, lt=1024)]


class BinCounts(Struct, frozen=True, array_like=True):
    """A `TimeBin` as it is added up with those of other gateways: of the latencies how many were
    counted in each bucket."""

    number: Count
    finished: Count
    kept: Count
    failed: Count
    rejected: Mapping[str, Count]
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    ttft: Mapping[Bucket, Count]
    tpot: Mapping[Bucket, Count]
    itl: Mapping[Bucket, Count]


class Percentiles(Struct, frozen=True):
    """Of so many measurements, in seconds."""

    count: int
    p50_s: float
    p90_s: float
    p99_s: float


class TimeBin(Struct, frozen=True):
    """What happened within one bin of time, `number` of them after the start of the clock. Of the
    requests that `finished` in it so many `kept` their SLO; requests without one always do.
    `rejected` counts by what they were rejected by."""

    number: int
    finished: int
    kept: int
    failed: int
    rejected: Mapping[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None


class ClassSlo(Struct, frozen=True):
    """The SLO of a class of requests; of no class where that is empty."""

    service_class: str
    ttft_s: float | None
    tpot_s: float | None


class ClusterEvent(Struct, frozen=True):
    """Something that happened, in words. `kind` is what it is about."""

    ago_s: float
    kind: str
    text: str


class PlannerOverview(Struct, frozen=True):
    """What a planner wants and why, with its latest decisions."""

    policy: str
    mode: str
    reason: str
    decisions: tuple[ClusterEvent, ...]
    notes: tuple[str, ...] = ()


class Overview(Struct, frozen=True, kw_only=True):
    """A server as it is now, or all gateways of a cluster (`server` has their names). `bins` are
    those of `bin_s` seconds, oldest first, of which `current_bin` has not ended; the counts are
    since the start. `events` are the latest of each kind, newest last. `has_roles`: workers may
    drain and change their roles. A what-if may name these `routings`. `silent` are
    gateways that did not answer in time: their part is missing."""

    server: str
    model: str
    up_s: float
    workers: tuple[WorkerOverview, ...]
    tiers: tuple[TierOverview, ...]
    queues: tuple[QueueOverview, ...]
    slos: tuple[ClassSlo, ...]
    bin_s: float
    current_bin: int
    bins: tuple[TimeBin, ...]
    waiting: int
    running: int
    finished: int
    takeovers: int = 0
    recomputed_tokens: int = 0
    events: tuple[ClusterEvent, ...] = ()
    planner: PlannerOverview | None = None
    has_roles: bool = False
    routings: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


class RequestLine(Struct, frozen=True, kw_only=True):
    """One request in a list. `ending` is empty while it runs; latencies are None until they are
    known."""

    request_id: str
    ago_s: float
    service_class: str
    tenant: str
    session: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    total_s: float | None
    ending: str
    reason: str


class DetailEvent(Struct, frozen=True):
    """A decision about a request, or something that happened to it, so long after it arrived."""

    after_s: float
    kind: str
    text: str
    figures: Mapping[str, float | str] = {}


class DetailSpan(Struct, frozen=True):
    """A part of a request's time: what it was spent on, from and to so long after the arrival, and
    at which worker (empty: at none)."""

    name: str
    worker: str
    from_s: float
    to_s: float


class RequestDetail(Struct, frozen=True):
    """All that is known of one request. `spans` are those of its trace, once it has ended."""

    line: RequestLine
    max_tokens: int
    events: tuple[DetailEvent, ...]
    spans: tuple[DetailSpan, ...] = ()


class WhatIfChange(Struct, frozen=True):
    """What is to be tried instead of what was: names of policies (empty: the same), how many
    workers the pools have, and other `settings` of the cluster file. Of the requests of the last
    `last_s`."""

    last_s: float
    routing: str = ""
    admission: str = ""
    workers: Mapping[str, int] = {}
    settings: tuple[str, ...] = ()


class WhatIfRun(Struct, frozen=True):
    """What came of the same requests, as recorded or in the simulator; latencies in seconds are
    None where none were measured."""

    label: str
    requests: int
    goodput_rps: float
    attainment: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    hit_ratio: float
    rejected: int


class ChangedSetting(Struct, frozen=True):
    """One key of the cluster file, and `when` it changes."""

    place: str
    old: str
    new: str
    when: str


class AppliedChange(Struct, frozen=True):
    """What settings change in the configuration of this `number`, and do to workers. With
    `refusals` nothing of it can be; `progress` and `problems` are what was done, if anything was.
    """

    number: int
    keys: tuple[ChangedSetting, ...]
    workers: tuple[str, ...]
    refusals: tuple[str, ...]
    progress: tuple[str, ...]
    problems: tuple[str, ...]
    applied: bool


class Observed(Protocol):
    """What the page asks of whatever generates. An `account` sees its own requests alone, None
    those of everybody. Of several gateways each tells of all of them."""

    async def overview(self, account: str | None, since_bin: int = 0) -> Overview:
        """As it is now, with the bins from this one on."""
        ...

    async def latest_requests(self, account: str | None, most: int) -> list[RequestLine]:
        """The latest that are remembered, those that run first."""
        ...

    async def request_details(self, account: str | None, name: str) -> list[RequestDetail]:
        """Of a request by its id, or of all choices of an answer or a call; none where nothing is
        known of it any more."""
        ...


class Operated(Protocol):
    """What an operator may have done to workers. Each returns once it is done. Raises
    `InvalidRequest` for a worker that is not there or cannot."""

    async def drain(self, worker: str, then_role: str, *, leave: bool) -> None:
        """Nothing new for this worker; when it is empty it takes `then_role` (empty: none), or its
        process ends."""
        ...

    async def undrain(self, worker: str) -> None:
        """It takes requests again."""
        ...

    async def apply(self, settings: Sequence[str], seen: int | None) -> AppliedChange:
        """Run by these settings of the cluster file from now on, as `policies.routing=cost`, if the
        configuration is still the one of the number `seen`; None: only what would change."""
        ...

    async def what_if(self, change: WhatIfChange) -> list[WhatIfRun]:
        """What was recorded, the same simulated, and what would have come of the change. Raises
        `InvalidRequest` also where there is no journal, `Overloaded` while another is tried."""
        ...
