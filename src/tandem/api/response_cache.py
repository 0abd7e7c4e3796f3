"""Response cache: answers to requests whose tokens are certain beforehand, returned without being
computed again.

Tokens are a pure function of prompt, sampling parameters and seed, so a request that is greedy or
names its seed has one answer only. It is kept under everything that decides it, and under what
keeps callers apart in the KV cache (tenant and `cache_salt`). Nothing is approximate: a request
that differs in one token misses.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tandem.api.config import ResponseCacheConfig
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tandem.facts.serving import Caller, Generator

CACHE_HEADER = "X-Tandem-Response-Cache"
# One answer may take this share of the cache.
LARGEST_SHARE = 1 / 8
# What is returned at once, so that a long answer does not hold the loop.
TURN_TOKENS = 256
# Of an entry without its tokens, of a token with log-probabilities, and of each alternative to it.
_ENTRY_BYTES = 400
_LOGPROB_BYTES = 250
_ALTERNATIVE_BYTES = 120

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """All tokens of one answer. `finish_reason` is None where its reader had enough before the end,
    as it will have again: the stop strings belong to the key."""

    tokens: "array[int]"
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stopped_by_token: bool

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        alternatives = sum(len(each.top) for each in self.logprobs)
        return (
            _ENTRY_BYTES
            + self.tokens.itemsize * len(self.tokens)
            + _LOGPROB_BYTES * len(self.logprobs)
            + _ALTERNATIVE_BYTES * alternatives
        )

    def outputs(self, cached_tokens: int) -> Iterator[TokenOutput]:
        """The answer as an engine would give it, in turns of `TURN_TOKENS`."""
        count = len(self.tokens)
        for begin in range(0, max(1, count), TURN_TOKENS):
            end = begin + TURN_TOKENS
            is_last = end >= count
            yield TokenOutput(
                tuple(self.tokens[begin:end]),
                self.logprobs[begin:end],
                finish_reason=self.finish_reason if is_last else None,
                stopped_by_token=self.stopped_by_token and is_last,
                cached_tokens=cached_tokens,
            )


class ResponseCache:
    """At most `limit_bytes` of answers; the least recently used ones leave first. Use it from one
    event loop."""

    def __init__(self, config: ResponseCacheConfig, model_name: str) -> None:
        self._config = config
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._size_bytes = 0
        self._registry = CollectorRegistry()
        name, labels = "tandem:response_cache", ("model_name",)
        self._lookups = Counter(
            f"{name}_queries", "Answers looked up", labels, registry=self._registry
        ).labels(model_name)
        self._hits = Counter(
            f"{name}_hits", "Answers found", labels, registry=self._registry
        ).labels(model_name)
        self._bytes_held = Gauge(
            f"{name}_bytes", "Memory of the answers kept", labels, registry=self._registry
        ).labels(model_name)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def serves(self, caller: Caller) -> bool:
        """Whether this caller's tenant has opted in."""
        tenants = self._config.tenants
        return self._config.limit_bytes > 0 and (tenants is None or caller.tenant in tenants)

    def find(self, key: bytes) -> CachedResponse | None:
        self._lookups.inc()
        found = self._responses.get(key)
        if found is not None:
            self._hits.inc()
            self._responses.move_to_end(key)
        return found

    def keep(self, key: bytes, response: CachedResponse) -> None:
        """Unless it is too large for the cache."""
        if response.size_bytes > self._config.limit_bytes * LARGEST_SHARE:
            return
        older = self._responses.pop(key, None)
        self._size_bytes += response.size_bytes - (older.size_bytes if older else 0)
        self._responses[key] = response
        while self._size_bytes > self._config.limit_bytes:
            _, oldest = self._responses.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
        self._bytes_held.set(self._size_bytes)

    def metrics_text(self) -> bytes:
        """Prometheus exposition; empty where nothing is ever kept."""
        return generate_latest(self._registry) if self._config.limit_bytes else b""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How one call uses the cache: whether answers are looked up, and whether they are kept; and
    which of those that were looked up have been `found`."""

    cache: ResponseCache
    generator: Generator
    looks_up: bool
    keeps: bool
    stop_strings: Sequence[str] = ()
    found: list[bool] = field(default_factory=list)

    def headers(self) -> dict[str, str]:
        """Whether all of its choices so far were found; nothing where none was looked up."""
        return {CACHE_HEADER: "hit" if all(self.found) else "miss"} if self.found else {}

    def look_up(self, request: Request) -> "ResponseLookup":
        key = self.key_of(request) if self.looks_up or self.keeps else None
        found = None
        if key is not None and self.looks_up:
            found = self.cache.find(key)
            self.found.append(found is not None)
        return ResponseLookup(self, request, key, found)

    def key_of(self, request: Request) -> bytes | None:
        return response_key(self.generator.model_identity, request, self.stop_strings)


class ResponseLookup:
    """One request at the cache: its answer, if it was there, else what becomes of it."""

    def __init__(
        self, use: CacheUse, request: Request, key: bytes | None, found: CachedResponse | None
    ) -> None:
        self.found = found
        self._use, self._request, self._key = use, request, key
        self._records = use.keeps and key is not None and found is None
        self._tokens = array("I")
        self._logprobs: list[TokenLogprobs] = []

    def outputs(self, caller: Caller) -> AsyncGenerator[TokenOutput, None]:
        """What `Generator.generate` gives, out of the cache where it is there."""
        if self.found is not None:
            return _replayed(self.found, len(self._request.prompt_tokens))
        return self._use.generator.generate(self._request, caller)

    def add(self, output: TokenOutput) -> None:
        if output.degraded or output.finish_reason is FinishReason.DEADLINE:
            # It is not what the request asked for.
            self._records = False
        if self._records:
            self._tokens.extend(output.tokens)
            self._logprobs += output.logprobs

    def complete(self, last: TokenOutput) -> None:
        """The reader has all it wants: the end, or what a stop string ended."""
        # Workers may have been replaced meanwhile by others that compute other numbers.
        if not self._records or self._use.key_of(self._request) != self._key:
            return
        if self._key is not None and last.finish_reason is not FinishReason.ABORT:
            response = CachedResponse(
                self._tokens, tuple(self._logprobs), last.finish_reason, last.stopped_by_token
            )
            self._use.cache.keep(self._key, response)


async def _replayed(
    response: CachedResponse, prompt_tokens: int
) -> AsyncGenerator[TokenOutput, None]:
    for output in response.outputs(prompt_tokens):
        yield output
        await asyncio.sleep(0)


def response_key(
    identity: str | None, request: Request, stop_strings: Sequence[str]
) -> bytes | None:
    """A digest of all that decides the tokens of an answer, and of whose it is. None where workers
    of unlike numbers serve (`identity` is None): either could answer."""
    if identity is None:
        return None
    sampling = request.sampling
    if sampling.temperature == 0:
        # Greedy answers draw nothing.
        sampling = replace(sampling, seed=0)
    head = _encode((identity, str(request.salt), sampling, tuple(stop_strings)))
    digest = blake2b(len(head).to_bytes(8, "little") + head, digest_size=32)
    digest.update(array("I", request.prompt_tokens))
    return digest.digest()
