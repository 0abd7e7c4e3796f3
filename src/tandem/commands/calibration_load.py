"""The client's part of a calibration: asks a small cluster in ways that tell its costs apart, and
times what comes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from tandem.bench.client import Client, RequestFailed
from tandem.bench.load import Asker, Asking, Pacing, run_load, start_clock
from tandem.bench.workload import Content, ContentSource, Conversation, PlannedRequest, Segment
from tandem.cost.serving import COLD_AFTER_S, FirstTokens, LoopTime
from tandem.facts.step_totals import StepTotals
from tandem.report.record import Ending, MeasuredRequest

# Prompts of requests that have the server to themselves, and streams side by side.
PROMPTS = (16, 128, 512)
STREAMS = (1, 4, 16, 64)
STREAM_PROMPT_TOKENS = 128
STREAM_TOKENS = 160
ALONE = 5
# Three tokens: the first, the one that waits for the KV to come, and one that does not.
ALONE_TOKENS = 3
IDLE_S = 10 * COLD_AFTER_S
SEED = 0x5EED
LEAST_CONTEXT_TOKENS = STREAM_PROMPT_TOKENS + STREAM_TOKENS
# Workers report the totals of their steps once a second.
REPORTED_S = 1.2
TOTALS_S = 5.0
LOOK_S = 0.1
# By worker.
Steps = dict[str, tuple[StepTotals, ...]]


@dataclass(frozen=True)
class MeasuredLoad:
    """A part of the calibration: its requests, the seconds of the gateway's loop, and the steps of
    each worker."""

    records: Sequence[MeasuredRequest]
    loop: LoopTime
    steps: Steps


@dataclass
class Seen:
    """What the client saw, over all rounds. Seconds by prompt tokens and tokens computed; between
    tokens, by streams; and of the token that waits for the KV. `loads` had nothing else beside
    them; `mixed` are requests of drawn lengths that come when they come."""

    first_s: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    cold_s: dict[int, list[float]] = field(default_factory=dict)
    gap_s: dict[int, list[float]] = field(default_factory=dict)
    second_s: dict[int, list[float]] = field(default_factory=dict)
    loads: list[MeasuredLoad] = field(default_factory=list)
    mixed: list[MeasuredLoad] = field(default_factory=list)

    def first_tokens(self) -> list[FirstTokens]:
        return [
            FirstTokens(prompt, computed, median(seconds))
            for (prompt, computed), seconds in sorted(self.first_s.items())
        ]

    def noise(self) -> float:
        """How far the same load was from itself between rounds, as a share: others' work on the
        machine, mostly. Of first tokens the median of each round counts."""
        rounds = [*self.gap_s.values()]
        for seconds in self.first_s.values():
            size = max(1, len(seconds) // len(next(iter(self.gap_s.values()))))
            parts = [seconds[start : start + size] for start in range(0, len(seconds), size)]
            rounds.append([median(part) for part in parts])
        return max(((max(each) - min(each)) / median(each) for each in rounds), default=0.0)

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
        gap_s = median(self.gap_s[min(self.gap_s)])
        cold_s = self.cold()
        found = []
        for prompt, seconds in sorted(self.second_s.items()):
            # Meanwhile the decode worker had nothing to do.
            idle = median(self.first_s[prompt, prompt]) > COLD_AFTER_S
            waited_s = median(seconds) - gap_s - (cold_s if idle else 0.0)
            if waited_s > 0:
                found.append((prompt, waited_s))
        return found


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
    """Asks through one client. `busy_s` reads the processor time of the gateway's loop, `totals`
    the steps of all workers so far. Nothing that is asked shares a prefix with anything else,
    unless that is meant."""

    def __init__(
        self,
        client: Client,
        asking: Asking,
        limits: LoadLimits,
        busy_s: Callable[[], float | None],
        totals: Callable[[], Awaitable[Steps]],
    ) -> None:
        self.seen = Seen()
        self._client, self._asking = client, asking
        self._asker = Asker(client, asking, ContentSource(SEED))
        self._limits = limits
        self._busy_s = busy_s
        self._totals = totals
        self._serial = count(1)
        # Tokens that this client was sent, and that workers had drawn before.
        self._drawn_tokens = 0
        self._drawn_before: int | None = None
        self._clock = start_clock()

    async def warm_up(self) -> None:
        """Everything has run once: code paths, connections, caches."""
        for prompt in self._limits.prompts:
            await self._ask(prompt, 8)
        await self._streams(self._limits.streams[-1], 32)

    async def round(self) -> None:
        """Every kind of load once. Raises `RequestFailed`."""
        self.seen.loads.append(await self._measured(self._alone()))
        await self._after_idleness()
        for streams in self._limits.streams:
            self.seen.loads.append(await self._measured(self._side_by_side(streams)))

    async def mix(self, load: Sequence[Conversation], point: int) -> MeasuredLoad:
        """Requests that come whether others have ended or not; of each `point` the prompts are
        others. Raises `RequestFailed`."""
        return await self._measured(self._mixed(load, point))

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
        self.seen.gap_s.setdefault(streams, []).append(_gap_s(records))
        return records

    async def _mixed(self, load: Sequence[Conversation], point: int) -> Sequence[MeasuredRequest]:
        asker = Asker(self._client, self._asking, ContentSource(SEED, point))
        records = await run_load(load, Pacing(open_loop=True), asker.send)
        for record in records:
            self._check(record)
        return records

    async def _streams(self, streams: int, tokens: int) -> Sequence[MeasuredRequest]:
        return await asyncio.gather(
            *(self._ask(STREAM_PROMPT_TOKENS, tokens) for _ in range(streams))
        )

    async def _measured(self, part: Awaitable[Sequence[MeasuredRequest]]) -> MeasuredLoad:
        """What workers and gateway did meanwhile."""
        before = await self._all_steps()
        busy_s, began_s = self._busy_s(), self._clock()
        records = await part
        after_s, wall_s = self._busy_s(), self._clock() - began_s
        steps = _since(before, await self._all_steps())
        loop = LoopTime(
            len(records),
            sum(_messages(each) for of_worker in steps.values() for each in of_worker),
            sum(record.emitted_tokens for record in records),
            wall_s,
            after_s - busy_s if after_s is not None and busy_s is not None else 0.0,
        )
        return MeasuredLoad(records, loop, steps)

    async def _all_steps(self) -> Steps:
        """All steps so far, as soon as those that drew the last tokens are reported."""
        if self._drawn_before is None:
            # What others have asked for is reported by then.
            await asyncio.sleep(REPORTED_S)
            steps = await self._totals()
            self._drawn_before = _drawn_tokens(steps) - self._drawn_tokens
            return steps
        for _ in range(round(TOTALS_S / LOOK_S)):
            steps = await self._totals()
            if _drawn_tokens(steps) >= self._drawn_before + self._drawn_tokens:
                return steps
            await asyncio.sleep(LOOK_S)
        raise RequestFailed("workers have not reported what their steps took; they may be gone")

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
        self._check(record)
        return record

    def _check(self, record: MeasuredRequest) -> None:
        if record.ending is not Ending.FINISHED:
            raise RequestFailed(f"a request of the calibration failed: {record.reason}")
        self._drawn_tokens += record.emitted_tokens


def _since(before: Steps, now: Steps) -> Steps:
    """What each worker has done between two looks."""
    found = {}
    for worker, totals in now.items():
        earlier = {(each.chunked, each.magnitude): each for each in before.get(worker, ())}
        new = [
            each.since(earlier[key]) if (key := (each.chunked, each.magnitude)) in earlier else each
            for each in totals
        ]
        found[worker] = tuple(each for each in new if each.steps)
    return found


def _drawn_tokens(steps: Steps) -> int:
    return sum(each.sampled_rows for of in steps.values() for each in of)


def _messages(steps: StepTotals) -> int:
    """With how many of these steps a worker sent tokens: not every chunk is a prompt's last."""
    return min(steps.steps, steps.sampled_rows)


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
