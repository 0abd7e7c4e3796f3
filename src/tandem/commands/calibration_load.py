"""The client's part of a calibration: asks a small cluster in ways that tell its costs apart, and
times what comes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from tandem.bench.client import Client, RequestFailed
from tandem.bench.load import Asker, Asking, start_clock
from tandem.bench.workload import Content, ContentSource, PlannedRequest, Segment
from tandem.cost.fitted import non_negative_fit
from tandem.cost.serving import COLD_AFTER_S, DecodeGaps, FirstTokens, GatewayLoad
from tandem.report.record import Ending, MeasuredRequest

# Prompts of requests that have the server to themselves, and streams side by side.
PROMPTS = (16, 128, 512)
STREAMS = (1, 4, 16)
STREAM_PROMPT_TOKENS = 16
STREAM_TOKENS = 160
ALONE = 5
# Three tokens: the first, the one that waits for the KV to come, and one that does not.
ALONE_TOKENS = 3
IDLE_S = 10 * COLD_AFTER_S
# Streams that decode while another worker computes prompts.
BESIDE_STREAMS = 4
BESIDE_TOKENS = 320
LEAST_CONTEXT_TOKENS = STREAM_PROMPT_TOKENS + BESIDE_TOKENS


@dataclass
class Seen:
    """What the client saw, over all rounds. Seconds by prompt tokens and tokens computed; by
    streams and context; of the token that waits for the KV; and, while another worker computed, how
    many times longer steps took."""

    first_s: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    cold_s: dict[int, list[float]] = field(default_factory=dict)
    gap_s: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    second_s: dict[int, list[float]] = field(default_factory=dict)
    prefill_slowdowns: list[float] = field(default_factory=list)
    decode_slowdowns: list[float] = field(default_factory=list)
    # (requests, tokens, seconds of the gateway's loop) of each part.
    gateway: list[tuple[int, int, float]] = field(default_factory=list)

    def first_tokens(self) -> list[FirstTokens]:
        return [
            FirstTokens(prompt, computed, median(seconds))
            for (prompt, computed), seconds in sorted(self.first_s.items())
        ]

    def decodes(self) -> list[DecodeGaps]:
        return [
            DecodeGaps(streams, context, median(seconds))
            for (streams, context), seconds in sorted(self.gap_s.items())
        ]

    def noise(self) -> float:
        """How far the same load was from itself between rounds, as a share: others' work on the
        machine, mostly."""
        spreads = [
            (max(seconds) - min(seconds)) / median(seconds) for seconds in self.gap_s.values()
        ]
        return max(spreads, default=0.0)

    def cold(self) -> float:
        """Seconds that a first token takes longer after an idle moment."""
        added = [
            median(seconds) - median(self.first_s[prompt, prompt])
            for prompt, seconds in self.cold_s.items()
        ]
        return max(0.0, median(added)) if added else 0.0

    def transfers(self) -> list[tuple[int, float]]:
        """(prompt tokens, seconds) that the second token waited for its KV: its gap without that
        of a token that waits for nothing."""
        gap_s = min(gap.seconds for gap in self.decodes() if gap.sequences == 1)
        cold_s = self.cold()
        found = []
        for prompt, seconds in sorted(self.second_s.items()):
            # Meanwhile the decode worker had nothing to do.
            idle = median(self.first_s[prompt, prompt]) > COLD_AFTER_S
            waited_s = median(seconds) - gap_s - (cold_s if idle else 0.0)
            if waited_s > 0:
                found.append((prompt, waited_s))
        return found

    def slowdown(self, measured: Sequence[float]) -> float:
        """How many times as long steps take while another worker computes."""
        return max(1.0, median(measured)) if measured else 1.0

    def gateway_load(self) -> GatewayLoad:
        """Its loop's time, shared out over requests and tokens."""
        if not self.gateway:
            return GatewayLoad()
        rows = [(float(requests), float(tokens)) for requests, tokens, _ in self.gateway]
        request_s, token_s = non_negative_fit(rows, [busy for _, _, busy in self.gateway])
        return GatewayLoad(request_s, token_s)


@dataclass(frozen=True)
class LoadLimits:
    """What the server takes: tokens of a request, sequences side by side; and whether prompts and
    answers are computed by `two_workers`."""

    context_tokens: int
    max_sequences: int
    two_workers: bool

    @property
    def prompts(self) -> list[int]:
        return [each for each in PROMPTS if each + ALONE_TOKENS < self.context_tokens]

    @property
    def streams(self) -> list[int]:
        return [each for each in STREAMS if each <= self.max_sequences]


class CalibrationLoad:
    """Asks through one client. `busy_s` reads the processor time of the gateway's loop. Nothing
    that is asked shares a prefix with anything else, unless that is meant."""

    def __init__(
        self,
        client: Client,
        asking: Asking,
        limits: LoadLimits,
        busy_s: Callable[[], float | None],
    ) -> None:
        self.seen = Seen()
        self._asker = Asker(client, asking, ContentSource(0x5EED))
        self._limits = limits
        self._busy_s = busy_s
        self._serial = count(1)
        self._clock = start_clock()

    async def warm_up(self) -> None:
        """Everything has run once: code paths, connections, caches."""
        for prompt in self._limits.prompts:
            await self._ask(prompt, 8)
        await self._streams(self._limits.streams[-1], 32)

    async def round(self) -> None:
        """Every kind of load once. Raises `RequestFailed`."""
        await self._counted(self._alone())
        await self._after_idleness()
        for streams in self._limits.streams:
            await self._counted(self._side_by_side(streams))
        if self._limits.two_workers:
            await self._beside_prompts()

    async def _alone(self) -> Sequence[MeasuredRequest]:
        """One after the other, each prompt new; then the last one of each length again, which the
        prefix cache has."""
        records = []
        for prompt in self._limits.prompts:
            for _ in range(ALONE):
                record = await self._ask(prompt, ALONE_TOKENS)
                records.append(record)
                self._note_first(record)
                if self._limits.two_workers and record.gaps_ns:
                    self.seen.second_s.setdefault(prompt, []).append(record.gaps_ns[0] / 1e9)
            serial = next(self._serial)
            for known in (False, True, True, True):
                record = await self._ask(prompt, ALONE_TOKENS, serial)
                records.append(record)
                if known and record.cached_tokens:
                    self._note_first(record)
        return records

    def _note_first(self, record: MeasuredRequest) -> None:
        prompt = record.prompt_tokens
        computed = max(1, prompt - (record.cached_tokens or 0))
        self.seen.first_s.setdefault((prompt, computed), []).append(_ttft_s(record))

    async def _after_idleness(self) -> None:
        for prompt in self._limits.prompts[:2]:
            for _ in range(ALONE):
                await asyncio.sleep(IDLE_S)
                record = await self._ask(prompt, ALONE_TOKENS)
                self.seen.cold_s.setdefault(prompt, []).append(_ttft_s(record))

    async def _side_by_side(self, streams: int) -> Sequence[MeasuredRequest]:
        records = await self._streams(streams, STREAM_TOKENS)
        context = streams * (STREAM_PROMPT_TOKENS + STREAM_TOKENS // 2)
        self.seen.gap_s.setdefault((streams, context), []).append(_gap_s(records))
        return records

    async def _beside_prompts(self) -> None:
        """Streams decode while another worker computes one prompt after the other."""
        prompt = self._limits.prompts[-1]
        quiet_s = _gap_s(await self._streams(BESIDE_STREAMS, BESIDE_TOKENS))
        decoding = asyncio.ensure_future(self._streams(BESIDE_STREAMS, BESIDE_TOKENS))
        beside = []
        try:
            # Their own prompts come first.
            await self._ask(prompt, 1)
            while not decoding.done():
                record = await self._ask(prompt, 1)
                if not decoding.done():
                    beside.append(_ttft_s(record))
            slow_s = _gap_s(await decoding)
        finally:
            decoding.cancel()
        if not beside:
            return
        alone_s = median(self.seen.first_s[prompt, prompt])
        least_s = min(median(seconds) for seconds in self.seen.first_s.values())
        # Between two prompts the other worker waits for the client.
        share = max(0.1, 1.0 - least_s / median(beside))
        self.seen.decode_slowdowns.append(1.0 + (slow_s / quiet_s - 1.0) / share)
        self.seen.prefill_slowdowns.append(median(beside) / alone_s)

    async def _streams(self, streams: int, tokens: int) -> Sequence[MeasuredRequest]:
        return await asyncio.gather(
            *(self._ask(STREAM_PROMPT_TOKENS, tokens) for _ in range(streams))
        )

    async def _counted(self, part: Awaitable[Sequence[MeasuredRequest]]) -> None:
        before_s = self._busy_s()
        records = await part
        after_s = self._busy_s()
        if before_s is not None and after_s is not None:
            tokens = sum(record.emitted_tokens for record in records)
            self.seen.gateway.append((len(records), tokens, after_s - before_s))

    async def _ask(self, prompt: int, tokens: int, serial: int | None = None) -> MeasuredRequest:
        """Raises `RequestFailed`."""
        serial = next(self._serial) if serial is None else serial
        segment = Segment((Content.QUESTION, serial), prompt)
        record = MeasuredRequest(
            request_id=str(serial),
            serial=serial,
            arrival_ns=-1,
            prompt_tokens=prompt,
            output_tokens=tokens,
        )
        request = PlannedRequest(serial, (segment,), tokens)
        await self._asker.send(request, record, self._clock)
        if record.ending is not Ending.FINISHED:
            raise RequestFailed(f"a request of the calibration failed: {record.reason}")
        return record


def _ttft_s(record: MeasuredRequest) -> float:
    return (record.first_token_ns - record.arrival_ns) / 1e9


def _gap_s(records: Sequence[MeasuredRequest]) -> float:
    """Between two tokens of a stream: from its second event, before which KV may have had to come,
    to its last, as an event may bring several tokens."""
    found = []
    for record in records:
        tokens = record.emitted_tokens - 2
        found.append(sum(record.gaps_ns[1:]) / tokens / 1e9)
    return median(found)
