"""A light client of the streaming API: sends, reads as its manner is, and keeps what came when."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.chaos.workload import Answer, Arrival, Manner, Question

# A slow reader rests after every so many pieces, and lets the server's buffers fill.
SLOW_PIECES, SLOW_S = 40, 0.3
LIMIT_S = 0.4
# A gateway that was killed comes back, or another one answers: a retry may take so long.
RETRY_S, RETRIES = 0.25, 120


class Refused(Exception):
    """The server refused, or ended a stream with an error: `status` 0."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Broken(Exception):
    """The connection broke before the end."""


@dataclass
class Record:
    """One arrival and what came of it. `lost` counts attempts that broke with their gateway,
    `refused` those that were to come again later; `left`: the client did not stay."""

    arrival: Arrival
    began_s: float = 0.0
    ended_s: float = 0.0
    pieces_s: list[float] = field(default_factory=list)
    lost: int = 0
    refused: int = 0
    left: bool = False
    answers: list[Answer] = field(default_factory=list)
    problem: str = ""


class Clients:
    """All clients. `expected` are the turns of every question, as one process answers them."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self.records: list[Record] = []

    async def arrive(self, arrival: Arrival, expected: list[Answer]) -> None:
        """The whole visit. A problem is noted, not raised."""
        record = Record(arrival, time.monotonic())
        self.records.append(record)
        try:
            await self._visit(record, expected)
        except (Refused, Broken, TimeoutError) as error:
            record.problem = f"{arrival.question.name} ({arrival.manner}): {error!r}"
        record.ended_s = time.monotonic()

    async def _visit(self, record: Record, expected: list[Answer]) -> None:
        question = record.arrival.question
        body = dict(question.body)
        for turn, wanted in enumerate(expected):
            answer = await self._until_answered(
                record, Question(question.name, question.path, body), wanted
            )
            if answer is None:
                return
            record.answers.append(answer)
            if answer != wanted:
                record.problem = f"{question.name}, turn {turn}: {answer} instead of {wanted}"
                return
            if turn < len(question.turns):
                body = next_turn(body, answer, question.turns[turn])

    async def _until_answered(
        self, record: Record, question: Question, wanted: Answer
    ) -> Answer | None:
        """None when the client left. A stream that broke with its gateway is asked for again."""
        for _ in range(RETRIES):
            try:
                return await self._answer(record, question, wanted)
            except Broken:
                record.lost += 1
            except Refused as refused:
                if refused.status != 503:
                    raise
                record.refused += 1
            await asyncio.sleep(RETRY_S)
        raise Broken(f"no answer after {RETRIES} attempts")

    async def _answer(self, record: Record, question: Question, wanted: Answer) -> Answer | None:
        if record.arrival.manner is Manner.WHOLE:
            return await whole(self._http, self._url, question)
        gathered = Gathered(question.body.get("n", 1))
        limited = record.arrival.manner is Manner.LIMITED
        try:
            async with asyncio.timeout(LIMIT_S if limited else None):
                async for event in events(self._http, self._url, question):
                    gathered.take(event)
                    record.pieces_s.append(time.monotonic())
                    if await self._leaves(record, gathered):
                        record.left = True
                        break
        except TimeoutError:
            record.left = True
        if record.left:
            begun = zip(gathered.texts, wanted.texts, strict=True)
            if not all(whole.startswith("".join(part)) for part, whole in begun):
                record.problem = f"{question.name}: {gathered.answer()} does not begin {wanted}"
            return None
        return gathered.answer()

    async def _leaves(self, record: Record, gathered: "Gathered") -> bool:
        manner = record.arrival.manner
        if manner is Manner.SLOW and gathered.pieces % SLOW_PIECES == 0:
            await asyncio.sleep(SLOW_S)
        return manner is Manner.LEAVES and gathered.pieces >= record.arrival.after_pieces


class Gathered:
    """What a stream has brought so far."""

    def __init__(self, answers: int) -> None:
        self.texts: list[list[str]] = [[] for _ in range(answers)]
        self.reasons = [""] * answers
        self.logprobs: list[list[float]] = [[] for _ in range(answers)]
        self.output_tokens = 0
        self.pieces = 0

    def take(self, event: dict[str, Any]) -> None:
        self.pieces += 1
        if usage := event.get("usage"):
            self.output_tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            index = choice["index"]
            assert not self.reasons[index], "a piece after the end"
            delta = choice.get("delta", choice)
            self.texts[index].append(delta.get("content", delta.get("text")) or "")
            self.logprobs[index] += logprobs_of(choice)
            self.reasons[index] = choice["finish_reason"] or ""

    def answer(self) -> Answer:
        return Answer(
            tuple("".join(text) for text in self.texts),
            tuple(self.reasons),
            self.output_tokens,
            tuple(value for part in self.logprobs for value in part),
        )


def next_turn(body: dict[str, Any], answer: Answer, text: str) -> dict[str, Any]:
    """The conversation goes on with the first answer."""
    known = {"role": "assistant", "content": answer.texts[0]}
    return body | {"messages": [*body["messages"], known, {"role": "user", "content": text}]}


def logprobs_of(choice: dict[str, Any]) -> list[float]:
    found = choice.get("logprobs") or {}
    if "token_logprobs" in found:
        return list(found["token_logprobs"])
    return [entry["logprob"] for entry in found.get("content") or ()]


async def whole(http: aiohttp.ClientSession, url: str, question: Question) -> Answer:
    """The answer at one go. Raises `Refused` or `Broken`."""
    try:
        async with http.post(url + question.path, json=question.body) as response:
            if response.status != 200:
                raise Refused(response.status, await response.text())
            found = await response.json()
    except aiohttp.ClientError as error:
        raise Broken(repr(error)) from error
    return Answer(
        tuple(
            choice["message"]["content"] if "message" in choice else choice["text"]
            for choice in found["choices"]
        ),
        tuple(choice["finish_reason"] for choice in found["choices"]),
        found["usage"]["completion_tokens"],
        tuple(value for choice in found["choices"] for value in logprobs_of(choice)),
    )


async def events(
    http: aiohttp.ClientSession, url: str, question: Question
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream up to its `[DONE]`. Raises `Refused` or `Broken`."""
    body = question.body | {"stream": True, "stream_options": {"include_usage": True}}
    try:
        async with http.post(url + question.path, json=body) as response:
            if response.status != 200:
                raise Refused(response.status, await response.text())
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise Refused(0, str(event["error"]))
                    yield event
    except aiohttp.ClientError as error:
        raise Broken(repr(error)) from error
    raise Broken("the stream was cut off")


async def undisturbed(
    url: str, questions: list[Question], at_once: int = 6
) -> dict[str, list[Answer]]:
    """What one process answers to every question, turn by turn."""
    answers: dict[str, list[Answer]] = {}
    timeout = aiohttp.ClientTimeout(total=600)
    gate = asyncio.Semaphore(at_once)

    async def answer(http: aiohttp.ClientSession, question: Question) -> None:
        async with gate:
            body, turns = dict(question.body), []
            for text in (*question.turns, ""):
                turns.append(await whole(http, url, Question(question.name, question.path, body)))
                if text:
                    body = next_turn(body, turns[-1], text)
            answers[question.name] = turns

    async with aiohttp.ClientSession(timeout=timeout) as http:
        await asyncio.gather(*(answer(http, question) for question in questions))
    return answers
