"""Adapters in the engine: what is held and for how long, how many run at once, and what becomes of
requests whose adapter cannot be had."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tandem.cluster.worker.machine import NO_ADAPTER
from tandem.engine.adapters import AdapterCache
from tandem.facts.adapter import Adapter, AdapterMemory
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.kernels.faces import choose_kernels
from tandem.models.load import load_adapter
from tests.engine.tiny import CPU, Arithmetic, Bench, Shape, naive_answer, tiny_decoder, tiny_spec
from tests.models.adapter_files import write_adapter

CHOSEN = Arithmetic(choose_kernels(CPU, torch.float32, allow_native=True)[0], "float32")
PROMPT = tuple(range(1, 20))
GREEDY = SamplingParameters(max_tokens=6)


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder(CHOSEN)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> list[Adapter]:
    folder, spec = tmp_path_factory.mktemp("adapters"), tiny_spec()
    return [write_adapter(folder / str(seed), spec, rank=4, seed=seed) for seed in range(4)]


def asked(name: str, adapter: Adapter | None, **changes: object) -> Request:
    return replace(Request(name, PROMPT, GREEDY, adapter=adapter), **changes)


def test_no_kv_is_shared_between_adapters(decoder, adapters) -> None:
    bench = Bench(decoder, CHOSEN, Shape(blocks=60, max_sequences=1))
    requests = [asked(str(n), each) for n, each in enumerate([None, *adapters[:2]] * 2)]
    computed = []
    for request in requests:
        before = bench.prefill_tokens
        bench.ask(request)
        bench.drain()
        computed.append(bench.prefill_tokens - before)
        assert bench.answers[request.request_id] == naive_answer(decoder, CHOSEN, request).tokens
    # The first of each computes its whole prompt, the second all but its full blocks.
    assert computed[0] == computed[1] == computed[2]
    assert [first - again for first, again in zip(computed[:3], computed[3:], strict=True)] == [
        16,
        16,
        16,
    ]
    assert len({tuple(bench.answers[request.request_id]) for request in requests}) == 3


def test_a_request_goes_on_anywhere_with_its_adapter(decoder, adapters) -> None:
    """As after a failover: with the tokens so far, on another worker."""
    whole = naive_answer(decoder, CHOSEN, asked("whole", adapters[0])).tokens
    bench = Bench(decoder, CHOSEN, Shape())
    bench.ask(asked("resumed", adapters[0], output_tokens=tuple(whole[:3])))
    bench.drain()
    assert bench.answers["resumed"] == whole[3:]


def test_one_that_cannot_be_read_fails_its_requests_alone(decoder, adapters, caplog) -> None:
    gone = replace(adapters[1], path="/nowhere")
    changed = replace(adapters[2], digest="0" * 32)
    bench = Bench(decoder, CHOSEN, Shape(max_batched_tokens=20, chunk_tokens=5))
    beside = [asked("base", None), asked("good", adapters[0])]
    bench.ask(*beside, asked("gone", gone), asked("changed", changed))
    bench.drain()
    assert bench.failed == {"gone": NO_ADAPTER, "changed": NO_ADAPTER}
    for request in beside:
        assert bench.answers[request.request_id] == naive_answer(decoder, CHOSEN, request).tokens
    assert "/nowhere is no directory" in caplog.text
    assert "has changed" in caplog.text
    # It is not remembered as unreadable, and nothing that it computed was cached.
    bench.ask(asked("again", adapters[1]))
    bench.drain()
    again = asked("again", adapters[1])
    assert bench.answers["again"] == naive_answer(decoder, CHOSEN, again).tokens


def running_adapters(bench: Bench) -> set[str]:
    running = bench.machine.sequences.running
    return {each.request.adapter.digest for each in running if each.request.adapter is not None}


def test_so_many_adapters_run_at_once(decoder, adapters) -> None:
    bench = Bench(decoder, CHOSEN, Shape(blocks=80, max_sequences=4, max_adapters=2))
    names = [(f"{turn}-{number}", number) for turn in range(3) for number in range(4)]
    bench.ask(*(asked(name, adapters[number]) for name, number in names), asked("base", None))
    most = 0
    while bench.landing:
        assert len(running_adapters(bench)) <= 2
        most = max(most, len(bench.machine.sequences.running))
        bench.land()
    assert most == 4, "those whose adapters run already enter past others"
    assert bench.finished.keys() == {name for name, _ in names} | {"base"}


def test_one_without_room_is_not_overtaken_for_ever(decoder, adapters) -> None:
    """A stream of requests with the one adapter that runs: the other one's turn comes all the
    same."""
    bench = Bench(decoder, CHOSEN, Shape(blocks=80, max_sequences=2, max_adapters=1))
    bench.ask(asked("first", adapters[0]))
    bench.ask(asked("other", adapters[1]))
    for number in range(12):
        bench.ask(asked(f"more-{number}", adapters[0]))
    order = []
    while bench.landing:
        bench.land()
        order += [name for name in bench.finished if name not in order]
    # As many overtake it as there are slots, and the first had come before it.
    assert order.index("other") <= 3
    assert len(order) == 14


class Loads:
    """Counts what is loaded."""

    def __init__(self, decoder) -> None:
        self._decoder = decoder
        self.digests: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, adapter: Adapter):
        self.gate.wait(20)
        self.digests.append(adapter.digest)
        return load_adapter(self._decoder.spec, adapter, self._decoder.kernels, CPU)


def test_the_least_recently_used_goes(decoder, adapters) -> None:
    loads = Loads(decoder)
    one_bytes = loads(adapters[0]).held_bytes
    cache = AdapterCache(loads, 2 * one_bytes)
    a, b, c, d = adapters
    for each in (a, b, a, c):
        cache.weights(each)
    assert cache.digests == (a.digest, c.digest)
    assert cache.memory().held_bytes == 2 * one_bytes
    # What the running step needs stays, whatever the bound.
    cache.pin_for_step((a.digest, c.digest))
    cache.weights(b)
    assert cache.digests == (a.digest, c.digest, b.digest)
    cache.pin_for_step((b.digest,))
    cache.weights(d)
    assert cache.digests == (b.digest, d.digest)
    assert cache.memory().held_bytes == 2 * one_bytes


def test_several_threads_load_one_once(decoder, adapters) -> None:
    loads = Loads(decoder)
    cache = AdapterCache(loads, 1 << 30)
    loads.gate.clear()
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.weights(adapters[0]))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    loads.gate.set()
    for thread in threads:
        thread.join(20)
    assert loads.digests == [adapters[0].digest]
    assert len(found) == 3
    assert len({id(each) for each in found}) == 1


def test_a_failure_to_load_is_told_and_not_kept(decoder, adapters, tmp_path: Path) -> None:
    loads = Loads(decoder)
    cache = AdapterCache(loads, 1 << 30)
    moved = write_adapter(tmp_path / "adapter", tiny_spec(), seed=9)
    (tmp_path / "adapter").rename(tmp_path / "away")
    with pytest.raises(InvalidConfiguration, match="is no directory"):
        cache.weights(moved)
    (tmp_path / "away").rename(tmp_path / "adapter")
    assert cache.weights(moved).held_bytes
    assert cache.digests == (moved.digest,)


def test_without_adapters_a_step_looks_for_none(decoder, adapters) -> None:
    """And joins anew only what changed since the step before."""
    bench = Bench(decoder, CHOSEN, Shape(max_sequences=2, steps_in_flight=0))
    bench.ask(asked("base", None))
    bench.drain()
    assert bench.engine._adapters._layers == ()
    bench.ask(asked("a", adapters[0]))
    layers = bench.engine._adapters._layers
    bench.land()
    assert layers
    assert bench.engine._adapters._layers is layers
    bench.drain()


class Held:
    held_bytes = 40


def test_what_an_adapter_cache_holds_is_counted():
    one, two, three = (Adapter(letter * 32, f"/{letter}", 40) for letter in "abc")
    cache = AdapterCache(lambda _: Held(), 100)
    assert cache.memory() == AdapterMemory(0, 0, 100)
    for adapter, counted in (
        (one, AdapterMemory(1, 40, 100, loads=1)),
        (two, AdapterMemory(2, 80, 100, loads=2)),
        (one, AdapterMemory(2, 80, 100, loads=2)),
        # The second is the least recently used.
        (three, AdapterMemory(2, 80, 100, loads=3, evictions=1)),
        (two, AdapterMemory(2, 80, 100, loads=4, evictions=2)),
    ):
        cache.weights(adapter)
        assert cache.memory() == counted
