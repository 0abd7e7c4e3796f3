"""The low-rank adapters of an engine: loaded from their folders, held within a bound of memory, and
put together for each step.

They may be loaded ahead, in any thread, so that the step which first needs one does not wait.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from threading import Lock

import numpy as np

from tandem.facts.adapter import Adapter, AdapterMemory
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.steps import IntArray
from tandem.kernels.lora import adapter_rows
from tandem.models.adapter_weights import (
    AdaptedTokens,
    AdapterWeights,
    LayerDeltas,
    join_adapters,
    unreadable_adapter,
)
from tandem.models.decoder import Decoder

logger = logging.getLogger(__name__)

# Reads an adapter. Raises `InvalidConfiguration` when it is not there, or is another one by now.
LoadAdapter = Callable[[Adapter], AdapterWeights]


def no_adapter(adapter: Adapter) -> AdapterWeights:
    """Of an engine that serves none."""
    raise InvalidConfiguration(f"adapter {adapter.path}: this engine serves no adapters")


class AdapterCache:
    """Adapters by their digests, the least recently used of which go where all together hold more
    than `limit_bytes`; those of the running step stay. Use it from any thread."""

    def __init__(self, load: LoadAdapter, limit_bytes: int) -> None:
        self._load = load
        self._limit_bytes = limit_bytes
        self._lock = Lock()
        self._held: OrderedDict[str, AdapterWeights] = OrderedDict()
        self._loading: dict[str, Future[AdapterWeights]] = {}
        self._in_step: Collection[str] = ()
        self._held_bytes = self._loads = self._evictions = 0

    @property
    def digests(self) -> tuple[str, ...]:
        """Of what is held, the least recently used first."""
        with self._lock:
            return tuple(self._held)

    def memory(self) -> AdapterMemory:
        """What is held now, and what came and went since the start."""
        with self._lock:
            return AdapterMemory(
                len(self._held), self._held_bytes, self._limit_bytes, self._loads, self._evictions
            )

    def holds(self, adapter: Adapter) -> bool:
        """Whether `weights` gives it at once."""
        return adapter.digest in self._held

    def weights(self, adapter: Adapter) -> AdapterWeights:
        """Held from before, or loaded now; of several threads that want one, the first loads.
        Raises `InvalidConfiguration`."""
        digest = adapter.digest
        with self._lock:
            if (held := self._held.get(digest)) is not None:
                self._held.move_to_end(digest)
                return held
            loading = self._loading.get(digest)
            if loading is None:
                own = self._loading[digest] = Future()
        if loading is not None:
            return loading.result()
        try:
            weights = self._load(adapter)
            self._keep(digest, weights)
            own.set_result(weights)
        except InvalidConfiguration as error:
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._loading[digest]
            if not own.done():
                own.set_exception(InvalidConfiguration(f"{adapter.path} could not be loaded"))
        return weights

    def pin_for_step(self, digests: Collection[str]) -> None:
        """These are what the step needs, and so the last that go."""
        with self._lock:
            self._in_step = digests
            for digest in digests:
                if digest in self._held:
                    self._held.move_to_end(digest)

    def _keep(self, digest: str, weights: AdapterWeights) -> None:
        with self._lock:
            self._held[digest] = weights
            self._held_bytes += weights.held_bytes
            self._loads += 1
            for old in [each for each in self._held if each not in self._in_step]:
                if self._held_bytes <= self._limit_bytes or old == digest:
                    return
                self._held_bytes -= self._held.pop(old).held_bytes
                self._evictions += 1


class StepAdapters:
    """Puts the adapters of a step's rows together for a decoder; those of the step before are kept
    as they were, for mostly they are the same."""

    def __init__(self, decoder: Decoder, cache: AdapterCache) -> None:
        self._decoder = decoder
        self._cache = cache
        self._digests: tuple[str, ...] | None = None
        self._layers: tuple[LayerDeltas, ...] = ()

    def adapted_tokens(
        self, adapters: Sequence[Adapter | None], counts_N: IntArray, wanted_W: IntArray
    ) -> AdaptedTokens:
        """Of rows of so many tokens, each with its adapter or none; `wanted_W` are the tokens whose
        hidden states are wanted."""
        by_digest = {each.digest: each for each in adapters if each is not None}
        digests = tuple(sorted(by_digest))
        if digests == self._digests:
            self._cache.pin_for_step(digests)
        else:
            self._join(digests, by_digest)
        number_of = {digest: number for number, digest in enumerate(digests)}
        numbers_N = np.array(
            [-1 if each is None else number_of[each.digest] for each in adapters], np.int32
        )
        numbers_T = np.repeat(numbers_N, counts_N)
        count, device = len(digests), self._decoder.weights.device
        place = None if device.type == "cpu" else device
        return AdaptedTokens(
            self._layers,
            adapter_rows(numbers_T, count, place),
            adapter_rows(numbers_T[wanted_W], count, place),
        )

    def _join(self, digests: tuple[str, ...], by_digest: dict[str, Adapter]) -> None:
        decoder = self._decoder
        self._digests = None
        self._cache.pin_for_step(digests)
        weights, all_read = [], True
        for digest in digests:
            try:
                weights.append(self._cache.weights(by_digest[digest]))
            except InvalidConfiguration as error:
                # Its requests end with an error each; others go on.
                logger.warning("an adapter cannot be loaded: %s", error)
                device = decoder.weights.device
                weights.append(unreadable_adapter(decoder.spec, decoder.kernels, device))
                all_read = False
        self._layers = join_adapters(weights, decoder.kernels)
        # What could not be read is tried again by the next step that needs it.
        self._digests = digests if all_read else None
