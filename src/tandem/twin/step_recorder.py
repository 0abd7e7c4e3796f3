"""Writes down what the steps of workers do while a run goes on: whose tokens they compute and draw,
and how long they take."""

from array import array

from tandem.facts.fleet import Tier
from tandem.messages.worker import EmitTokens
from tandem.report.record import Ending, RequestRecord, RunRecord, WorkerRecord
from tandem.twin.recorder import Recorder


class StepRecorder:
    """Owns the records of workers, and the gaps between tokens."""

    def __init__(self, run: RunRecord, requests: Recorder) -> None:
        self.run = run
        self.requests = requests
        self._workers: dict[str, WorkerRecord] = {}
        self._gaps: dict[int, int] = {}

    def worker(self, record: WorkerRecord) -> WorkerRecord:
        """The record of a worker's name; one name keeps one record over restarts."""
        if record.worker not in self._workers:
            self._workers[record.worker] = record
            self.run.workers.append(record)
        return self._workers[record.worker]

    def of(self, name: str) -> WorkerRecord:
        return self._workers[name]

    def scheduled(self, wire_id: str, now_ns: int) -> None:
        record = self.requests.of(wire_id)
        if record.scheduled_ns < 0:
            record.scheduled_ns = now_ns

    def computes(self, worker: str, wire_id: str, chunk: tuple[int, int]) -> None:
        """A chunk of what was known is being computed: its first token, and how many. A lone token
        behind the prompt is a decode's."""
        record = self.requests.of(wire_id)
        start, tokens = chunk
        if tokens > 1 or start < record.prompt_tokens:
            record.computed_tokens += tokens
            self._workers[worker].prompt_tokens += tokens

    def landed(self, worker: str, busy_ns: int, prefills: bool, steps: int) -> None:
        record = self._workers[worker]
        record.busy_ns += busy_ns
        record.prefill_busy_ns += busy_ns if prefills else 0
        record.steps += steps

    def drew(self, worker: str, emission: EmitTokens, now_ns: int) -> None:
        """A step's tokens are there."""
        self._workers[worker].decoded_tokens += len(emission.request_ids)
        for index, wire_id in enumerate(emission.request_ids):
            record = self.requests.of(wire_id)
            if record.first_token_ns < 0:
                record.first_token_ns = now_ns
            else:
                self._gap(now_ns - record.last_token_ns, 1)
            if cached_tokens := emission.cached_tokens[index]:
                self._cached(record, wire_id, cached_tokens)
            record.last_token_ns = now_ns
            record.emitted_tokens += 1
            if emission.finish_reasons[index] is not None and record.ending is None:
                self.requests.end(record, Ending.FINISHED, now_ns)

    def leapt(self, worker: str, wire_ids: list[str], landed_ns: list[int]) -> None:
        """Each of these sequences got a token at each of these instants."""
        count, steps = len(wire_ids), len(landed_ns)
        self._workers[worker].decoded_tokens += count * steps
        first_ns, last_ns = landed_ns[0], landed_ns[-1]
        for wire_id in wire_ids:
            record = self.requests.of(wire_id)
            self._gap(first_ns - record.last_token_ns, 1)
            record.last_token_ns = last_ns
            record.emitted_tokens += steps
        before_ns = first_ns
        for instant_ns in landed_ns[1:]:
            self._gap(instant_ns - before_ns, count)
            before_ns = instant_ns

    def close(self) -> None:
        """Write out what was gathered in other shapes."""
        gaps = sorted(self._gaps)
        self.run.gaps_ns = array("q", gaps)
        self.run.gap_counts = array("q", [self._gaps[gap] for gap in gaps])

    def _gap(self, gap_ns: int, times: int) -> None:
        self._gaps[gap_ns] = self._gaps.get(gap_ns, 0) + times

    def _cached(self, record: RequestRecord, wire_id: str, cached_tokens: int) -> None:
        # A decode worker finds cached what the prefill worker has computed or found already.
        if record.emitted_tokens == 0 and Tier.DEVICE not in record.reused_tokens:
            self.requests.reused(wire_id, Tier.DEVICE, cached_tokens)
