"""Asks a server for streamed tokens and notes when each came."""

import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Stream:
    """Instants in seconds of one clock: when the request went out, and when each token came.
    `output_tokens` is what the server says at the end of a whole answer; 0 before."""

    sent_s: float = 0.0
    tokens_s: list[float] = field(default_factory=list)
    output_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return self.tokens_s[0] - self.sent_s

    def gaps_s(self, begin_s: float, end_s: float) -> list[float]:
        """Gaps between tokens that lie, in part, within this time."""
        pairs = zip(self.tokens_s, self.tokens_s[1:], strict=False)
        return [after - before for before, after in pairs if after > begin_s and before < end_s]


class Client:
    """Streams completions of prompts given as token ids, all greedy and of their full length."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def complete(self, prompt: list[int], max_tokens: int, stream: Stream) -> None:
        """Fill in `stream` as the tokens come."""
        body = {
            "model": "bench",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        stream.sent_s = time.perf_counter()
        async with self._http.post(f"{self._url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if usage := event.get("usage"):
                        stream.output_tokens = usage["completion_tokens"]
                    if event.get("choices"):
                        stream.tokens_s.append(time.perf_counter())

    async def settled(self, stream: Stream, tokens: int) -> None:
        """Wait until so many tokens have come."""
        while len(stream.tokens_s) < tokens:
            await asyncio.sleep(0.005)
