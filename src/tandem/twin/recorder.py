"""Records what happens to requests while a run goes on."""

from array import array
from collections.abc import Sequence

from tandem.facts.fleet import Tier
from tandem.messages.router import RequestSubmitted
from tandem.messages.worker import EmitTokens
from tandem.report.record import Ending, RequestRecord, RunRecord
from tandem.twin.workload import answer_token


class Recorder:
    """Owns the records of requests, which workers know by the router's wire ids (`id~attempt`)."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.open_requests = 0
        self.finished: list[RequestRecord] = []
        self._records: dict[str, RequestRecord] = {}
        self._by_wire: dict[str, RequestRecord] = {}
        self._gaps: dict[int, int] = {}

    def of(self, request_id: str) -> RequestRecord:
        """By request id or by any of its wire ids."""
        record = self._by_wire.get(request_id)
        if record is None:
            record = self._by_wire[request_id] = self._records[request_id.partition("~")[0]]
        return record

    def token_of(self, wire_id: str) -> int:
        record = self._by_wire.get(wire_id) or self.of(wire_id)
        return answer_token(record.serial)

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
        """The router sent the request to a worker."""
        record = self.of(wire_id)
        if prefill:
            record.prefill_worker, record.routed_ns = worker, now_ns
            record.resumptions = int(wire_id.partition("~")[2].partition(".")[0] or 0)
            if not record.emitted_tokens:
                # What an attempt found that came to nothing is found, or not, once more.
                record.reused_tokens.clear()
        record.decode_worker = worker

    def reused(self, wire_id: str, tier: Tier, tokens: int) -> None:
        """KV of a prompt was found in a tier instead of being computed. What somebody finds who
        takes over after the first token is no hit."""
        record = self.of(wire_id)
        if not record.emitted_tokens:
            record.reused_tokens[tier] = record.reused_tokens.get(tier, 0) + tokens

    def moved(self, wire_id: str, tokens: int) -> None:
        self.of(wire_id).moved_tokens += tokens

    def delivered(self, emission: EmitTokens, landed_ns: Sequence[int]) -> None:
        """These clients got a token each at each of these instants."""
        first_ns, last_ns, steps = landed_ns[0], landed_ns[-1], len(landed_ns)
        gaps = self._gaps
        for request_id, reason in zip(emission.request_ids, emission.finish_reasons, strict=True):
            record = self._records[request_id]
            if record.first_token_ns < 0:
                record.first_token_ns = first_ns
            else:
                gap_ns = first_ns - record.last_token_ns
                gaps[gap_ns] = gaps.get(gap_ns, 0) + 1
            record.last_token_ns = last_ns
            record.emitted_tokens += steps
            if reason is not None and record.ending is None:
                self.end(record, Ending.FINISHED, last_ns)
        before_ns = first_ns
        for instant_ns in landed_ns[1:]:
            gap_ns = instant_ns - before_ns
            gaps[gap_ns] = gaps.get(gap_ns, 0) + len(emission.request_ids)
            before_ns = instant_ns

    def rejected(self, request_id: str, reason: str, retry_after_s: float, now_ns: int) -> None:
        record = self.of(request_id)
        record.reason, record.retry_after_s = reason, retry_after_s
        self.end(record, Ending.REJECTED, now_ns)

    def degraded(self, request_id: str, degraded: str) -> None:
        """It was admitted with something cut."""
        self.of(request_id).reason = f"admitted with {degraded}"

    def cut_off(self, request_id: str, now_ns: int) -> None:
        """It got no more time, and has what it got by now."""
        record = self.of(request_id)
        record.reason = "cut off at its deadline"
        self.end(record, Ending.FINISHED, now_ns)

    def open_records(self) -> list[RequestRecord]:
        """Whoever has not ended."""
        return [record for record in self.run.requests if record.ending is None]

    def waits(self, request_id: str) -> bool:
        """Whether its client still waits for its end."""
        return self.of(request_id).ending is None

    def lost(self, request_id: str, reason: str, now_ns: int) -> None:
        """Nobody knows of it any more: it has failed, unless it had ended."""
        if self.of(request_id).ending is None:
            self.turned_away(request_id, reason, now_ns)

    def left(self, request_id: str, now_ns: int) -> None:
        """Its client does not wait for its end."""
        self.lost(request_id, "its client left", now_ns)

    def failed(self, reason: str, now_ns: int) -> None:
        """Whoever has not ended has failed."""
        for record in self.run.requests:
            if record.ending is None:
                record.reason = reason
                self.end(record, Ending.FAILED, now_ns)

    def turned_away(self, request_id: str, reason: str, now_ns: int) -> None:
        """Nobody takes it, or takes it up again."""
        record = self.of(request_id)
        record.reason = reason
        self.end(record, Ending.FAILED, now_ns)

    def close(self) -> None:
        """Write out what was gathered in other shapes."""
        gaps = sorted(self._gaps)
        self.run.gaps_ns = array("q", gaps)
        self.run.gap_counts = array("q", [self._gaps[gap] for gap in gaps])

    def take_finished(self) -> list[RequestRecord]:
        """Who ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def end(self, record: RequestRecord, ending: Ending, now_ns: int) -> None:
        assert record.ending is None, "a request ends once"
        record.ending, record.end_ns = ending, now_ns
        self.open_requests -= 1
        self.finished.append(record)
