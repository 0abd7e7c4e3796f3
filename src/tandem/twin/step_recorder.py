"""Records the steps of workers while a run goes on: whose tokens they compute and draw,
and how long they take."""

from tandem.facts.fleet import Role, Tier
from tandem.messages.router import TokensReported
from tandem.report.record import RunRecord, WorkerRecord
from tandem.twin.recorder import Recorder


class StepRecorder:
    """Owns the records of workers."""

    def __init__(self, run: RunRecord, requests: Recorder) -> None:
        self.run = run
        self.requests = requests
        self._workers: dict[str, WorkerRecord] = {}

    def worker(self, record: WorkerRecord) -> WorkerRecord:
        """The record of a worker's name; one name keeps one record over restarts."""
        if record.worker not in self._workers:
            self._workers[record.worker] = record
            self.run.workers.append(record)
        return self._workers[record.worker]

    def of(self, name: str) -> WorkerRecord:
        return self._workers[name]

    def role_taken(self, name: str, role: Role) -> None:
        """A worker has reported its role: perhaps it has flipped."""
        record = self._workers[name]
        if record.role != str(role):
            record.role, record.flips = str(role), record.flips + 1

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

    def drew(self, worker: str, report: TokensReported) -> None:
        """A worker tells of the tokens of one step, or of several."""
        emission = report.emission
        self._workers[worker].decoded_tokens += len(emission.request_ids) * report.repeats
        if any(emission.cached_tokens):
            for wire_id, tokens in zip(emission.request_ids, emission.cached_tokens, strict=True):
                if tokens:
                    self._cached(wire_id, tokens)

    def _cached(self, wire_id: str, cached_tokens: int) -> None:
        record = self.requests.of(wire_id)
        # A decode worker finds cached what the prefill worker has computed or found already.
        if record.first_token_ns < 0 and Tier.DEVICE not in record.reused_tokens:
            self.requests.reused(wire_id, Tier.DEVICE, cached_tokens)
