"""Writes down what happens to requests and workers while a run goes on."""

from array import array

from tandem.facts.fleet import Tier
from tandem.facts.fleet_messages import RequestSubmitted
from tandem.facts.messages import EmitTokens
from tandem.twin.record import Ending, RequestRecord, RunRecord, WorkerRecord
from tandem.twin.workload import answer_token


class Recorder:
    """Owns the records. Workers know requests by the router's wire ids (`id~attempt`)."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.open_requests = 0
        self.finished: list[RequestRecord] = []
        self._records: dict[str, RequestRecord] = {}
        self._by_wire: dict[str, RequestRecord] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._gaps: dict[int, int] = {}

    def worker(self, record: WorkerRecord) -> WorkerRecord:
        """The record of a worker's name; one name keeps one record over restarts."""
        if record.worker not in self._workers:
            self._workers[record.worker] = record
            self.run.workers.append(record)
        return self._workers[record.worker]

    def worker_of(self, name: str) -> WorkerRecord:
        return self._workers[name]

    def of(self, request_id: str) -> RequestRecord:
        """By request id or by any of its wire ids."""
        record = self._by_wire.get(request_id)
        if record is None:
            record = self._by_wire[request_id] = self._records[request_id.partition("~")[0]]
        return record

    def token_of(self, wire_id: str) -> int:
        return answer_token(self.of(wire_id).serial)

    def submitted(self, event: RequestSubmitted, now_ns: int) -> None:
        request = event.request
        record = RequestRecord(
            request_id=request.request_id,
            serial=len(self.run.requests),
            arrival_ns=now_ns,
            prompt_tokens=len(request.prompt_tokens),
            output_tokens=request.sampling.max_tokens,
            tenant=event.tenant,
            service_class=event.service_class,
            session=event.session,
        )
        self.run.requests.append(record)
        self._records[request.request_id] = record
        self.open_requests += 1

    def routed(self, wire_id: str, worker: str, prefill: bool, now_ns: int) -> None:
        """The router told a worker of the request."""
        record = self.of(wire_id)
        if prefill:
            record.prefill_worker, record.routed_ns = worker, now_ns
            record.resumptions = int(wire_id.partition("~")[2] or 0)
        record.decode_worker = worker

    def scheduled(self, wire_id: str, now_ns: int) -> None:
        record = self.of(wire_id)
        if record.scheduled_ns < 0:
            record.scheduled_ns = now_ns

    def computes(self, worker: str, wire_id: str, tokens: int) -> None:
        """A chunk of a prompt is being computed."""
        self.of(wire_id).computed_tokens += tokens
        self._workers[worker].prompt_tokens += tokens

    def reused(self, wire_id: str, tier: Tier, tokens: int) -> None:
        """KV was found in a tier instead of being computed."""
        reused = self.of(wire_id).reused_tokens
        reused[tier] = reused.get(tier, 0) + tokens

    def moved(self, wire_id: str, tokens: int) -> None:
        self.of(wire_id).moved_tokens += tokens

    def step_landed(self, worker: str, busy_ns: int, prefills: bool, steps: int) -> None:
        record = self._workers[worker]
        record.busy_ns += busy_ns
        record.prefill_busy_ns += busy_ns if prefills else 0
        record.steps += steps

    def drew(self, worker: str, emission: EmitTokens, now_ns: int) -> None:
        """A step's tokens are there."""
        self._workers[worker].decoded_tokens += len(emission.request_ids)
        for index, wire_id in enumerate(emission.request_ids):
            record = self.of(wire_id)
            if record.first_token_ns < 0:
                record.first_token_ns = now_ns
            else:
                self._gap(now_ns - record.last_token_ns, 1)
            if cached_tokens := emission.cached_tokens[index]:
                self._cached(record, wire_id, cached_tokens)
            record.last_token_ns = now_ns
            record.emitted_tokens += 1
            if emission.finish_reasons[index] is not None:
                self._end(record, Ending.FINISHED, now_ns)

    def leapt(self, worker: str, wire_ids: list[str], landed_ns: list[int]) -> None:
        """Each of these sequences got a token at each of these instants."""
        count, steps = len(wire_ids), len(landed_ns)
        self._workers[worker].decoded_tokens += count * steps
        first_ns, last_ns = landed_ns[0], landed_ns[-1]
        for wire_id in wire_ids:
            record = self.of(wire_id)
            self._gap(first_ns - record.last_token_ns, 1)
            record.last_token_ns = last_ns
            record.emitted_tokens += steps
        before_ns = first_ns
        for instant_ns in landed_ns[1:]:
            self._gap(instant_ns - before_ns, count)
            before_ns = instant_ns

    def rejected(self, request_id: str, reason: str, retry_after_s: float, now_ns: int) -> None:
        record = self.of(request_id)
        record.reason, record.retry_after_s = reason, retry_after_s
        self._end(record, Ending.REJECTED, now_ns)

    def failed(self, reason: str, now_ns: int) -> None:
        """The run ends; whoever has not ended has failed."""
        for record in self.run.requests:
            if record.ending is None:
                record.reason = reason
                self._end(record, Ending.FAILED, now_ns)

    def close(self) -> None:
        """Write out what was gathered in other shapes."""
        gaps = sorted(self._gaps)
        self.run.gaps_ns = array("q", gaps)
        self.run.gap_counts = array("q", [self._gaps[gap] for gap in gaps])

    def take_finished(self) -> list[RequestRecord]:
        """Who ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def _gap(self, gap_ns: int, times: int) -> None:
        self._gaps[gap_ns] = self._gaps.get(gap_ns, 0) + times

    def _cached(self, record: RequestRecord, wire_id: str, cached_tokens: int) -> None:
        # A decode worker finds cached what the prefill worker has computed or found already.
        if record.emitted_tokens == 0 and Tier.DEVICE not in record.reused_tokens:
            self.reused(wire_id, Tier.DEVICE, cached_tokens)

    def _end(self, record: RequestRecord, ending: Ending, now_ns: int) -> None:
        assert record.ending is None, "a request ends once"
        record.ending, record.end_ns = ending, now_ns
        self.open_requests -= 1
        self.finished.append(record)
