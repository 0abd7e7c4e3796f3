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
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric

from tandem.api.choice import Endings
from tandem.api.config import ResponseCacheConfig
from tandem.facts.request import (
    CascadeAnswer,
    FinishReason,
    Request,
    TokenLogprobs,
    TokenOutput,
)
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
    """All tokens of one answer. `finish_reason` is None where a stop string ended it: what decides
    where stop strings match belongs to the key."""

    tokens: "array[int]"
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stopped_by_token: bool
    cascade: CascadeAnswer | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return _ENTRY_BYTES + _values_bytes(len(self.tokens), self.logprobs)

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
                cascade=self.cascade,
            )


class ResponseCache:
    """At most `limit_bytes` of answers; the least recently used ones leave first. Use it from one
    event loop."""

    def __init__(self, config: ResponseCacheConfig, model_name: str) -> None:
        self._config = config
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self._size_bytes = 0
        self._registry = CollectorRegistry()
        name, labels = "response_cache", ("model_name",)
        self._lookups = Counter(
            f"{name}_queries", "Answers looked up", labels, registry=self._registry
        ).labels(model_name)
        self._hits = Counter(
            f"{name}_hits", "Answers found", labels, registry=self._registry
        ).labels(model_name)
        self._bytes_held = Gauge(
            f"{name}_bytes", "Memory of the answers kept", labels, registry=self._registry
        ).labels(model_name)

    def reconfigure(self, config: ResponseCacheConfig) -> None:
        """Keep answers by another configuration from now on. Those of a tenant that has opted out
        are not found any more, and leave as others come."""
        self._config = config

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

    def may_keep(self, size_bytes: int) -> bool:
        """Whether one answer may be so large."""
        return size_bytes <= self._config.limit_bytes * LARGEST_SHARE

    def keep(self, key: bytes, response: CachedResponse) -> None:
        """Unless it is too large for the cache."""
        if not self.may_keep(response.size_bytes):
            return
        self.drop(key)
        self._size_bytes += response.size_bytes
        self._responses[key] = response
        while self._size_bytes > self._config.limit_bytes:
            _, oldest = self._responses.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
        self._bytes_held.set(self._size_bytes)

    def drop(self, key: bytes) -> None:
        """Forget this answer, if it is there."""
        dropped = self._responses.pop(key, None)
        self._size_bytes -= dropped.size_bytes if dropped else 0
        self._bytes_held.set(self._size_bytes)

    def metric_families(self) -> Iterable[Metric]:
        """At this moment; none where nothing is ever kept."""
        return self._registry.collect() if self._config.limit_bytes else ()


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How one call uses the cache: whether answers are looked up, and whether they are kept.
    `endings` is what decides at which token its stop strings end an answer."""

    cache: ResponseCache
    generator: Generator
    looks_up: bool
    keeps: bool
    endings: Endings = ()

    def look_up(self, request: Request) -> "ResponseLookup":
        key = self.key_of(request) if self.looks_up or self.keeps else None
        found = self.cache.find(key) if key is not None and self.looks_up else None
        return ResponseLookup(self, request, key, found)

    def key_of(self, request: Request) -> bytes | None:
        return response_key(self.generator.model_identity, request, self.endings)


class ResponseLookup:
    """One request at the cache: its answer where `found`, else what is recorded of the computed
    one, to be kept."""

    def __init__(
        self, use: CacheUse, request: Request, key: bytes | None, found: CachedResponse | None
    ) -> None:
        self.request = request
        self.found = found
        self.looked_up = use.looks_up and key is not None
        self._use, self._key = use, key
        self._records = use.keeps and key is not None and found is None
        self._recorded_bytes = 0
        self._tokens = array("I")
        self._logprobs: list[TokenLogprobs] = []

    @property
    def generator(self) -> Generator:
        """What computes the answers that are not found."""
        return self._use.generator

    def outputs(self, caller: Caller) -> AsyncGenerator[TokenOutput, None]:
        """What `Generator.generate` gives, out of the cache where it is there."""
        if self.found is not None:
            return self._replayed(self.found, caller)
        return self.generator.generate(self.request, caller)

    def add(self, output: TokenOutput) -> None:
        """Record what was computed, as long as it may be kept."""
        if not self._records:
            return
        self._recorded_bytes += _values_bytes(len(output.tokens), output.logprobs)
        # Something else than the request asked for or would get again, or more than may be kept.
        cut = bool(output.degraded) or output.finish_reason is FinishReason.DEADLINE
        by_chance = output.cascade is not None and not output.cascade.repeatable
        if cut or by_chance or not self._use.cache.may_keep(self._recorded_bytes):
            self._records = False
            self._tokens, self._logprobs = array("I"), []
            return
        self._tokens.extend(output.tokens)
        self._logprobs += output.logprobs

    def complete(self, last: TokenOutput) -> None:
        """The reader has all it wants: the end, or what a stop string ended."""
        # Workers may have been replaced meanwhile by others that compute other numbers.
        if not self._records or self._use.key_of(self.request) != self._key:
            return
        if self._key is not None and last.finish_reason is not FinishReason.ABORT:
            response = CachedResponse(
                self._tokens,
                tuple(self._logprobs),
                last.finish_reason,
                last.stopped_by_token,
                last.cascade,
            )
            self._use.cache.keep(self._key, response)

    async def _replayed(
        self, kept: CachedResponse, caller: Caller
    ) -> AsyncGenerator[TokenOutput, None]:
        """The kept answer. Where its reader has not had enough with it, it is dropped, and what is
        missing is computed."""
        for output in kept.outputs(len(self.request.prompt_tokens)):
            yield output
            await asyncio.sleep(0)
        assert self._key is not None
        self._use.cache.drop(self._key)
        self.found = None
        known = len(kept.tokens)
        async with aclosing(self.generator.generate(self.request, caller)) as outputs:
            async for output in outputs:
                count = len(output.tokens)
                tokens, logprobs = output.tokens[known:], output.logprobs[known:]
                yield replace(output, tokens=tokens, logprobs=logprobs)
                known = max(0, known - count)


def cache_headers(lookups: Sequence[ResponseLookup]) -> dict[str, str]:
    """Whether all answers of a call were found; nothing where none was looked up."""
    if not any(each.looked_up for each in lookups):
        return {}
    return {CACHE_HEADER: "hit" if all(each.found for each in lookups) else "miss"}


def _values_bytes(tokens: int, logprobs: Sequence[TokenLogprobs]) -> int:
    alternatives = sum(len(each.top) for each in logprobs)
    return (
        array("I").itemsize * tokens
        + _LOGPROB_BYTES * len(logprobs)
        + _ALTERNATIVE_BYTES * alternatives
    )


def response_key(identity: str | None, request: Request, endings: Endings) -> bytes | None:
    """A digest of all that decides the tokens of an answer, and of whose it is. None where workers
    of unlike numbers serve (`identity` is None): either could answer. Nor is there one where the
    prompt is scored: that is more than is kept of an answer."""
    if identity is None or request.sampling.prompt_logprobs is not None:
        return None
    sampling = request.sampling
    if sampling.temperature == 0:
        # Greedy answers draw nothing.
        sampling = replace(sampling, seed=0)
    head = _encode((identity, str(request.salt), sampling, endings))
    digest = blake2b(len(head).to_bytes(8, "little") + head, digest_size=32)
    digest.update(array("I", request.prompt_tokens))
    return digest.digest()
