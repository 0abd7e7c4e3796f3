"""The records of a run: one a request, and what workers, links and policies did.

A simulated run fills all of it; clients that measure a server know only their requests. Instants
are integers of nanoseconds from the run's start.
"""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.facts.calibration import Calibration
from tandem.facts.fleet import Tier
from tandem.facts.slo import Slo
from tandem.facts.step_totals import NO_DRAFTS_YET, DraftTotals


class Ending(StrEnum):
    """Every request ends in exactly one of these."""

    FINISHED = "finished"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(slots=True)
class RequestOutcome:
    """What became of one request, as anybody outside the workers sees it.

    Instants are -1 until they happen; `ending` is None until it ends, `reason` says why it was
    rejected or failed, or what was cut of it. `output_tokens` is what it asked for,
    `emitted_tokens` what it got. `serial` counts the requests of a run. Latencies count from
    `arrival_ns`: when a client sent it, when a simulated cluster got it.
    """

    request_id: str
    serial: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    ending: Ending | None = field(default=None, kw_only=True)
    reason: str = field(default="", kw_only=True)
    first_token_ns: int = field(default=-1, kw_only=True)
    last_token_ns: int = field(default=-1, kw_only=True)
    end_ns: int = field(default=-1, kw_only=True)
    emitted_tokens: int = field(default=0, kw_only=True)

    @property
    def finished(self) -> bool:
        return self.ending is Ending.FINISHED

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None where there was none."""
        return None if self.first_token_ns < 0 else (self.first_token_ns - self.arrival_ns) / 1e9

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for answers of one token."""
        if self.first_token_ns < 0 or self.emitted_tokens < 2:
            return None
        return (self.last_token_ns - self.first_token_ns) / 1e9 / (self.emitted_tokens - 1)

    @property
    def latency_s(self) -> float | None:
        """From arrival to end; None unless it finished."""
        return (self.end_ns - self.arrival_ns) / 1e9 if self.finished else None

    def keeps(self, slo: Slo) -> bool:
        """Whether it finished within these bounds."""
        return self.finished and slo.kept(self.ttft_s, self.tpot_s, self.latency_s)


@dataclass(slots=True)
class RequestRecord(RequestOutcome):
    """One request with what only the cluster that served it knows.

    `reused_tokens` counts prompt tokens whose KV was found, by the tier it came from;
    `moved_tokens` those whose KV came from the prefill worker. `computed_tokens` counts prompt
    tokens computed, repeats after a loss included. `resumptions` counts how often another worker
    had to take over.
    """

    tenant: str = ""
    service_class: str = ""
    session: str = ""
    retry_after_s: float = 0.0
    prefill_worker: str = ""
    decode_worker: str = ""
    routed_ns: int = -1
    scheduled_ns: int = -1
    reused_tokens: dict[Tier, int] = field(default_factory=dict)
    moved_tokens: int = 0
    computed_tokens: int = 0
    resumptions: int = 0


@dataclass(slots=True)
class MeasuredRequest(RequestOutcome):
    """One request with what only its client knows.

    `due_ns` is when the workload wanted it sent, `arrival_ns` when it was. `gaps_ns` are the times
    between events that carry tokens. `cached_tokens` is None where the server does not report its
    prefix cache.
    """

    due_ns: int = -1
    gaps_ns: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class WorkerRecord:
    """What one worker did. `up_ns` is the time it was up and paid for, `busy_ns` the time a step
    ran; `prefill_busy_ns` the part of it in steps that held prompt tokens. `classes` names the
    service classes whose own it is (empty: it is everybody's). `drafts` are what came of
    speculation."""

    worker: str
    role: str
    device: str
    devices: int
    up_ns: int = 0
    busy_ns: int = 0
    prefill_busy_ns: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    decoded_tokens: int = 0
    preemptions: int = 0
    flips: int = 0
    crashes: int = 0
    classes: str = ""
    drafts: DraftTotals = NO_DRAFTS_YET


@dataclass(slots=True)
class TransferRecord:
    """All transfers of one kind ("kv" between workers, or a tier's name). `seconds` sums their
    durations, contention included; `lost` counts those that never arrived."""

    kind: str
    transfers: int = 0
    moved_bytes: float = 0.0
    seconds: float = 0.0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one instant, for the timeline."""

    now_ns: int
    waiting_requests: int
    prefilling_requests: int
    decoding_requests: int
    queued_prefill_tokens: int
    kv_used: float
    prefill_workers: int
    decode_workers: int
    moving_bytes: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one request, or about the fleet when `request_id` is empty: `kind` is the
    policy's room ("admission", "routing", "dispatch", "planning", "fault" ...), `text` says it in
    words and `figures` hold the numbers behind it."""

    now_ns: int
    request_id: str
    kind: str
    text: str
    figures: tuple[tuple[str, float | str], ...] = ()


@dataclass(slots=True)
class RunRecord:
    """One whole run. `gaps_ns[i]` is a gap between two tokens of a stream (ITL) that occurred
    `gap_counts[i]` times. `settings` names every choice that shaped the run, as text.
    `calibration` is what gateways predicted beside what came."""

    settings: dict[str, str]
    requests: list[RequestRecord] = field(default_factory=list)
    gaps_ns: "array[int]" = field(default_factory=lambda: array("q"))
    gap_counts: "array[int]" = field(default_factory=lambda: array("q"))
    workers: list[WorkerRecord] = field(default_factory=list)
    transfers: list[TransferRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    calibration: Calibration = field(default_factory=Calibration)
    end_ns: int = 0
    events: int = 0
