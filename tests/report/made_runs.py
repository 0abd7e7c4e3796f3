"""A small queue, played exactly, that leaves the record of a simulated run: what report, plots and
explanations are tested on, without the simulator."""

from array import array

from tandem.facts.fleet import Tier
from tandem.report.record import (
    Decision,
    Ending,
    RequestRecord,
    RunRecord,
    Sample,
    TransferRecord,
    WorkerRecord,
)

SECOND = 10**9
_MOST_WAITING = 12


def made_run(
    *, requests: int = 200, speed: float = 1.0, service_s: float = 0.9, decisions: bool = True
) -> RunRecord:
    """Requests arrive in a slow wave and are prefilled one by one in `service_s`, more or less;
    those that would wait behind too many are rejected. Each decodes for five seconds."""
    gap_s = 1.0 / speed
    record = RunRecord({"policy": "made"})
    free_ns = 0
    for serial in range(requests):
        wave = 1.0 if serial // 40 % 2 else 1.6
        arrival_ns = int((serial + wave * (serial % 7) / 7) * gap_s * SECOND)
        service_ns = int(service_s * (0.5 + (serial * 37 % 100) / 100) * SECOND)
        request = RequestRecord(
            f"request-{serial}", serial, arrival_ns, prompt_tokens=1000 + serial, output_tokens=101
        )
        record.requests.append(request)
        if free_ns - arrival_ns > _MOST_WAITING * service_s * SECOND:
            request.ending, request.end_ns = Ending.REJECTED, arrival_ns
            request.reason = f"predicted TTFT {serial / 10} s exceeds 2 s"
            request.retry_after_s = 1.0
            continue
        free_ns = max(free_ns, arrival_ns) + service_ns
        _finish(request, free_ns - service_ns, free_ns)
        if decisions:
            figures = (
                ("decode d-0 score", 0.25),
                ("decode d-1 score", 0.5),
                ("decode d-1 ttft_s", 2),
            )
            record.decisions.append(
                Decision(arrival_ns, request.request_id, "routing", "prefill-0", figures)
            )
    record.end_ns = max(request.end_ns for request in record.requests)
    _fleet(record)
    return record


def _finish(request: RequestRecord, start_ns: int, first_ns: int) -> None:
    request.routed_ns, request.scheduled_ns = request.arrival_ns, start_ns
    request.first_token_ns, request.last_token_ns = first_ns, first_ns + 5 * SECOND
    request.end_ns, request.ending = request.last_token_ns, Ending.FINISHED
    request.prefill_worker, request.decode_worker = "prefill-0", "decode-0"
    request.emitted_tokens = request.output_tokens
    request.reused_tokens = {Tier.DEVICE: 200, Tier.HOST: 50}
    request.computed_tokens = request.prompt_tokens - 250
    request.moved_tokens = request.prompt_tokens


def _fleet(record: RunRecord) -> None:
    end_ns = record.end_ns
    finished = [r for r in record.requests if r.ending is Ending.FINISHED]
    record.gaps_ns, record.gap_counts = array("q", [50_000_000]), array("q", [100 * len(finished)])
    busy_ns = sum(r.first_token_ns - r.scheduled_ns for r in finished)
    record.workers = [
        WorkerRecord("prefill-0", "prefill", "a100", 8, end_ns, busy_ns, busy_ns, len(finished)),
        WorkerRecord("decode-0", "decode", "a100", 8, end_ns, end_ns // 2, 0, 100),
    ]
    record.transfers = [TransferRecord("kv", len(finished), 3e8 * len(finished), 0.01)]
    record.decisions.append(Decision(end_ns // 2, "", "fault", "crash of decode-1"))
    for now_ns in range(0, end_ns, SECOND):
        record.samples.append(_sample(finished, now_ns, now_ns / end_ns))


def _sample(finished: list[RequestRecord], now_ns: int, share: float) -> Sample:
    waiting = [r for r in finished if r.arrival_ns <= now_ns < r.scheduled_ns]
    decoding = [r for r in finished if r.first_token_ns <= now_ns < r.end_ns]
    return Sample(
        now_ns=now_ns,
        waiting_requests=len(waiting),
        prefilling_requests=sum(r.scheduled_ns <= now_ns < r.first_token_ns for r in finished),
        decoding_requests=len(decoding),
        queued_prefill_tokens=sum(r.prompt_tokens for r in waiting),
        kv_used=min(1.0, len(decoding) / 10),
        prefill_workers=1,
        decode_workers=1 + (share > 0.5),
        moving_bytes=3e8 * (now_ns % 3),
    )
