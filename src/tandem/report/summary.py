"""The numbers of a cluster's run: goodput under its SLO, latencies, KV reuse, transfers, bill."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import fsum

from tandem.facts.calibration import Calibration, KeptAndMissed
from tandem.facts.fleet import Tier
from tandem.facts.slo import Slo
from tandem.facts.step_totals import NO_DRAFTS_YET
from tandem.report.record import Ending, RequestRecord, RunRecord, WorkerRecord
from tandem.report.statistics import (
    Distribution,
    Latencies,
    distribution,
    latencies,
    tpots_ns,
    ttfts_ns,
)

_HOUR_NS = 3600 * 10**9
_NUMBER = re.compile(r"\d[\d,.]*\d|\d")


@dataclass(frozen=True, slots=True)
class DeviceTerms:
    """What one device costs: dollars for an hour up, and watts idle and in either phase."""

    usd_per_hour: float = 0.0
    idle_watts: float = 0.0
    prefill_watts: float = 0.0
    decode_watts: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run is judged by: the SLO (a service class may have its own) and, by name, the
    devices."""

    slo: Slo = field(default_factory=Slo)
    by_class: Mapping[str, Slo] = field(default_factory=dict)
    devices: Mapping[str, DeviceTerms] = field(default_factory=dict)

    def kept(self, request: RequestRecord) -> bool:
        """Whether the request finished within its SLO."""
        return request.keeps(self.by_class.get(request.service_class, self.slo))


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """Workers of one role on one kind of device, everybody's or some `classes`' own. `busy` is the
    share of their up time in which a step ran, `prefill_busy` the share with prompt tokens in the
    step; `usd` is what they cost."""

    role: str
    device: str
    workers: int
    devices: int
    up_s: float
    busy: float
    prefill_busy: float
    steps: int
    prompt_tokens: int
    decoded_tokens: int
    preemptions: int
    flips: int
    crashes: int
    classes: str = ""
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """Transfers of one kind; `bytes_per_s` is what a transfer saw, contention included."""

    kind: str
    transfers: int
    lost: int
    moved_bytes: float
    seconds: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """One service class."""

    requests: int
    kept: int
    rejected: int
    ttft: Distribution | None
    tpot: Distribution | None


@dataclass(frozen=True, slots=True)
class KeptAsPredicted:
    """One bound of the SLO, or all: how many requests were predicted to keep and to miss it, and
    how many of them did."""

    predicted_to_keep: int
    kept: int
    predicted_to_miss: int
    missed: int


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions beside what came. Ratios are geometric means of measured over predicted; `text`
    is all that in a sentence."""

    ttft: KeptAsPredicted
    tpot: KeptAsPredicted
    both: KeptAsPredicted
    ttft_ratio: float | None
    tpot_ratio: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Where the prompts' KV came from. `hits` is each tier's share of the prompt tokens of all
    requests that were let in. `wasted_tokens` were computed for nothing: twice, or for a request
    that did not finish."""

    hits: Mapping[Tier, float]
    hit_ratio: float
    computed_tokens: int
    wasted_tokens: int
    moved_tokens: int
    transfer_share_of_ttft: float


@dataclass(frozen=True, slots=True)
class DraftSummary:
    """What came of speculation: `tokens_a_draft` are gained in a row of a step that checks drafts,
    `kept` is the share of draft tokens that were, `left_out` that of the rows which had none
    because they would have cost more than they bring."""

    draft_tokens: int
    kept: float
    tokens_a_draft: float
    left_out: float


@dataclass(frozen=True, slots=True)
class Bill:
    """Dollars and energy of all up time. Per output token that was delivered to the end."""

    device_hours: float
    usd: float
    usd_per_million_output_tokens: float | None
    kilowatt_hours: float
    joules_per_output_token: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Rates are per second from the first arrival to the last end. `goodput_rps` counts
    the requests that finished within their SLO, `attainment` is their share of all requests,
    rejected and failed ones included. Where nothing was
    speculated there are no `drafts`."""

    requests: int
    endings: Mapping[str, int]
    reasons: Mapping[str, int]
    duration_s: float
    kept: int
    goodput_rps: float
    goodput_rps_per_device: float
    attainment: float
    output_tokens: int
    output_tokens_per_s: float
    latencies: Latencies
    classes: Mapping[str, ClassSummary]
    reuse: Reuse
    pools: tuple[PoolSummary, ...]
    transfers: tuple[TransferSummary, ...]
    bill: Bill
    preemptions: int
    resumptions: int
    predictions: Predictions
    drafts: DraftSummary | None = None


def summarise(record: RunRecord, terms: Terms) -> Summary:
    """The numbers of a run under these terms."""
    requests = record.requests
    first_ns = min((request.arrival_ns for request in requests), default=0)
    last_ns = max((request.end_ns for request in requests), default=0)
    duration_s = max(0, last_ns - first_ns) / 1e9
    kept = sum(terms.kept(request) for request in requests)
    delivered = sum(request.emitted_tokens for request in requests if request.finished)
    device_ns = sum(worker.devices * worker.up_ns for worker in record.workers)
    return Summary(
        requests=len(requests),
        endings=_counted(str(r.ending) if r.ending else "unfinished" for r in requests),
        reasons=_counted(generalised(r.reason) for r in requests if r.reason),
        duration_s=duration_s,
        kept=kept,
        goodput_rps=_ratio(kept, duration_s),
        # Device seconds rather than devices: a fleet that grew is charged for what was up.
        goodput_rps_per_device=_ratio(kept, device_ns / 1e9),
        attainment=_ratio(kept, len(requests)),
        output_tokens=delivered,
        output_tokens_per_s=_ratio(delivered, duration_s),
        latencies=latencies(requests, zip(record.gaps_ns, record.gap_counts, strict=True)),
        classes=_classes(requests, terms),
        reuse=_reuse(record),
        pools=_pools(record.workers, terms),
        transfers=tuple(
            TransferSummary(**asdict(entry), bytes_per_s=_ratio(entry.moved_bytes, entry.seconds))
            for entry in record.transfers
        ),
        bill=_bill(record.workers, terms, delivered),
        preemptions=sum(worker.preemptions for worker in record.workers),
        resumptions=sum(request.resumptions for request in requests),
        predictions=_predictions(record.calibration),
        drafts=_drafts(record.workers),
    )


def _drafts(workers: Sequence[WorkerRecord]) -> DraftSummary | None:
    totals = NO_DRAFTS_YET
    for worker in workers:
        totals = totals.plus(worker.drafts)
    if not (totals.drafts or totals.declined):
        return None
    return DraftSummary(
        draft_tokens=totals.draft_tokens,
        kept=_ratio(totals.accepted_tokens, totals.draft_tokens),
        tokens_a_draft=1.0 + _ratio(totals.accepted_tokens, totals.drafts),
        left_out=totals.declined / (totals.drafts + totals.declined),
    )


def _predictions(calibration: Calibration) -> Predictions:
    return Predictions(
        ttft=_as_predicted(calibration.ttft),
        tpot=_as_predicted(calibration.tpot),
        both=_as_predicted(calibration.both),
        ttft_ratio=calibration.ttft_ratios.mean,
        tpot_ratio=calibration.tpot_ratios.mean,
        text=str(calibration),
    )


def _as_predicted(counted: KeptAndMissed) -> KeptAsPredicted:
    return KeptAsPredicted(
        counted.predicted_to_keep,
        counted.keep_kept,
        counted.predicted_to_miss,
        counted.miss_missed,
    )


def generalised(reason: str) -> str:
    """A reason without its numbers, so that like reasons count as one."""
    return _NUMBER.sub("#", reason)


def _classes(requests: Sequence[RequestRecord], terms: Terms) -> dict[str, ClassSummary]:
    names = sorted({request.service_class for request in requests} - {""})
    found = {}
    for name in names:
        own = [request for request in requests if request.service_class == name]
        found[name] = ClassSummary(
            requests=len(own),
            kept=sum(terms.kept(request) for request in own),
            rejected=sum(request.ending is Ending.REJECTED for request in own),
            ttft=distribution(ttfts_ns(own)),
            tpot=distribution(tpots_ns(own)),
        )
    return found


def _reuse(record: RunRecord) -> Reuse:
    let_in = [r for r in record.requests if r.ending is not Ending.REJECTED]
    prompt_tokens = sum(request.prompt_tokens for request in let_in)
    reused = {tier: sum(r.reused_tokens.get(tier, 0) for r in let_in) for tier in Tier}
    moved_ttft_ns = sum(ttfts_ns(request for request in let_in if request.moved_tokens))
    moving_s = fsum(entry.seconds for entry in record.transfers if entry.kind == "kv")
    return Reuse(
        hits={tier: _ratio(tokens, prompt_tokens) for tier, tokens in reused.items()},
        hit_ratio=_ratio(sum(reused.values()), prompt_tokens),
        computed_tokens=sum(request.computed_tokens for request in let_in),
        wasted_tokens=sum(_wasted_tokens(request) for request in let_in),
        moved_tokens=sum(request.moved_tokens for request in let_in),
        transfer_share_of_ttft=_ratio(moving_s, moved_ttft_ns / 1e9),
    )


def _wasted_tokens(request: RequestRecord) -> int:
    if not request.finished:
        return request.computed_tokens
    needed = request.prompt_tokens - sum(request.reused_tokens.values())
    return max(0, request.computed_tokens - max(1, needed))


def _pools(workers: Sequence[WorkerRecord], terms: Terms) -> tuple[PoolSummary, ...]:
    groups: dict[tuple[str, str, str], list[WorkerRecord]] = {}
    for worker in workers:
        groups.setdefault((worker.role, worker.device, worker.classes), []).append(worker)
    return tuple(_pool(own, terms) for own in groups.values())


def _pool(own: Sequence[WorkerRecord], terms: Terms) -> PoolSummary:
    up_ns = sum(worker.up_ns for worker in own)
    return PoolSummary(
        role=own[0].role,
        device=own[0].device,
        workers=len(own),
        devices=sum(worker.devices for worker in own),
        up_s=up_ns / 1e9,
        busy=_ratio(sum(worker.busy_ns for worker in own), up_ns),
        prefill_busy=_ratio(sum(worker.prefill_busy_ns for worker in own), up_ns),
        steps=sum(worker.steps for worker in own),
        prompt_tokens=sum(worker.prompt_tokens for worker in own),
        decoded_tokens=sum(worker.decoded_tokens for worker in own),
        preemptions=sum(worker.preemptions for worker in own),
        flips=sum(worker.flips for worker in own),
        crashes=sum(worker.crashes for worker in own),
        classes=own[0].classes,
        usd=fsum(_usd(worker, terms) for worker in own),
    )


def _usd(worker: WorkerRecord, terms: Terms) -> float:
    device = terms.devices.get(worker.device, DeviceTerms())
    return worker.devices * worker.up_ns / _HOUR_NS * device.usd_per_hour


def _bill(workers: Sequence[WorkerRecord], terms: Terms, output_tokens: int) -> Bill:
    dollars, joules = [], []
    for worker in workers:
        device = terms.devices.get(worker.device, DeviceTerms())
        dollars.append(_usd(worker, terms))
        watt_ns = (
            (worker.up_ns - worker.busy_ns) * device.idle_watts
            + worker.prefill_busy_ns * device.prefill_watts
            + (worker.busy_ns - worker.prefill_busy_ns) * device.decode_watts
        )
        joules.append(worker.devices * watt_ns / 1e9)
    usd, energy_joules = fsum(dollars), fsum(joules)
    return Bill(
        device_hours=sum(worker.devices * worker.up_ns for worker in workers) / _HOUR_NS,
        usd=usd,
        usd_per_million_output_tokens=usd / output_tokens * 1e6 if output_tokens else None,
        kilowatt_hours=energy_joules / 3.6e6,
        joules_per_output_token=energy_joules / output_tokens if output_tokens else None,
    )


def _counted(words: Iterable[str]) -> dict[str, int]:
    """Most frequent first, ties in alphabetical order."""
    return dict(sorted(Counter(words).items(), key=lambda entry: (-entry[1], entry[0])))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
