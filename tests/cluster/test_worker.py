"""Parts of the worker machine: known tokens, committed blocks, and the load that it reports."""

from array import array
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.worker.load import adapter_figures, load_of
from tandem.cluster.worker.sequence import KnownTokens
from tandem.facts.adapter import AdapterFigures, AdapterMemory
from tandem.messages.router import LoadReported
from tandem.messages.worker import (
    BlocksCommitted,
    ImportsArrived,
    PrefillsArrived,
    ReportBlocks,
    RequestsAborted,
)
from tandem.policy.batching import TokenBudgetBatching
from tests.cluster.cluster_parts import of_kind
from tests.cluster.ledger_engine import ADAPTERS, keys_of
from tests.cluster.ledger_worker import LedgerWorker, configs, request, requests, small_worker

TOKENS = st.lists(st.integers(0, (1 << 32) - 1), max_size=8)


@given(TOKENS, TOKENS, TOKENS, st.sampled_from([tuple, list, lambda each: array("I", each)]))
def test_they_are_read_as_one_array_is(prompt, later, drawn, held_in):
    held = held_in(prompt)
    known = KnownTokens(held, later)
    for token in drawn[:3]:
        known.later.append(token)
    known.extend(array("I", drawn[3:]))
    plain = array("I", prompt + later + drawn)
    assert len(known) == len(plain)
    assert list(known) == list(plain)
    bounds = (None, *range(-len(plain) - 1, len(plain) + 2))
    for first in bounds:
        for end in bounds:
            assert known[first:end] == plain[first:end]
    assert list(held) == prompt


def test_choices_share_their_prompt():
    prompt = array("I", range(1000))
    first, second = KnownTokens(prompt), KnownTokens(prompt)
    first.later.append(7)
    assert first._prompt is second._prompt
    assert (len(first), len(second), len(prompt)) == (1001, 1000, 1000)


@settings(max_examples=60, deadline=None)
@given(
    configs(prefix_caching=True, reports_committed=True),
    st.lists(requests(), min_size=1, max_size=6),
)
def test_what_is_reported_as_committed_is_exactly_what_the_cache_gains(config, wanted):
    at = LedgerWorker.of(config)
    named: set[bytes] = set()
    at.arrive(*(replace(one, request_id=str(n), tenant="t") for n, one in enumerate(wanted)))
    while at.landing:
        effects = at.land()
        kinds = [type(effect) for effect in effects]
        committed = of_kind(effects, BlocksCommitted)
        stored = {
            digest for each in of_kind(effects, ReportBlocks) for digest in each.changes.stored
        }
        if committed:
            assert kinds.index(BlocksCommitted) < kinds.index(ReportBlocks)
        assert stored <= {name.digest for each in committed for name in each.names}
        for each in committed:
            for block, version, name in zip(each.blocks, each.versions, each.names, strict=True):
                assert name.tenant == "t"
                named.add(name.digest)
                if at.machine.sequences.pool.versions[block] == version:
                    keys = at.engine.kv[block]
                    assert keys == keys_of(keys[-1])[-config.block_size :]
    assert at.cached_hashes <= named


PROMPT = (1, 2, 3, 4) * 4


def carried(at) -> tuple[int, int, int]:
    """Running, waiting, and prompt tokens to compute."""
    load: LoadReported = load_of("w", at.machine)
    return load.running_sequences, load.waiting_requests, load.queued_prefill_tokens


def test_a_prompt_that_waits_for_a_slower_tier_is_still_to_be_computed_here():
    at = small_worker()
    at.handle(PrefillsArrived((request("r", prompt=PROMPT, max_tokens=2),), (12,)))
    assert at.imports.keys() == {"r"}
    assert carried(at) == (0, 1, 4)
    at.finish_import("r", keys_of(PROMPT)[:12])
    assert carried(at) == (1, 0, 0)
    at.land()


def test_who_comes_with_its_whole_prompt_is_counted_by_who_sent_it():
    at = small_worker()
    at.handle(ImportsArrived((request("r", prompt=PROMPT, max_tokens=2),), (16,)))
    assert carried(at) == (0, 0, 0)
    at.finish_import("r", keys_of(PROMPT), (3,))
    assert carried(at) == (1, 0, 0)
    at.drain()


def test_nothing_is_to_be_computed_for_who_left_while_its_import_goes_on():
    at = small_worker()
    at.handle(ImportsArrived((request("r", prompt=PROMPT, max_tokens=2),), (12,)))
    assert carried(at) == (0, 1, 4)
    at.handle(RequestsAborted(("r",)))
    assert at.cancelled == {"r"}
    assert carried(at) == (0, 0, 0)
    at.finish_import("r", [])
    at.assert_empty()


def test_a_prompt_that_is_scored_takes_nothing_from_the_cache_and_gives():
    at, prompt = small_worker(batching=TokenBudgetBatching(16, 8)), tuple(range(1, 10))
    computed = []
    for name, wanted in (("first", None), ("scored", 1), ("later", None)):
        at.arrive(request(name, prompt=prompt, max_tokens=1, prompt_logprobs=wanted))
        computed.append(sum(plan.batched_tokens for plan in at.landing))
        while at.landing:
            at.land()
            computed[-1] += sum(plan.batched_tokens for plan in at.landing)
    # Of 9 tokens 2 blocks of 4 are found; the scored prompt is computed in two chunks.
    assert computed == [9, 9, 1]
    at.arrive(request("alone", prompt=(7,) * 9, max_tokens=1, prompt_logprobs=0))
    at.drain()
    at.arrive(request("after", prompt=(7,) * 9, max_tokens=1))
    assert [plan.batched_tokens for plan in at.landing] == [1]
    at.drain()


def test_the_next_turn_of_a_chat_computes_none_of_what_is_known():
    at, begin = small_worker(), (1, 2, 3, 4, 5, 6)
    at.arrive(request("first", prompt=begin, max_tokens=5))
    at.drain()
    said = tuple(at.answers["first"])
    at.arrive(request("other", prompt=(*begin[:4], 9, 9, 9, 9, 9), max_tokens=1))
    at.drain()
    at.arrive(request("next", prompt=(*begin, *said, 7, 8), max_tokens=1))
    # KV of the last token of an answer was never computed.
    assert [plan.starts.tolist() for plan in at.landing] == [[len(begin) + len(said) - 1]]
    at.drain()
    at.arrive(request("again", prompt=(*begin, *said, 7, 8), max_tokens=1))
    assert [plan.batched_tokens for plan in at.landing] == [1]
    at.drain()


def test_without_a_prefix_cache_no_tail_is_kept():
    at = small_worker(prefix_caching=False)
    for name in ("first", "next"):
        at.arrive(request(name, prompt=(1, 2, 3, 4, 5, 6), max_tokens=1))
        assert [plan.starts.tolist() for plan in at.landing] == [[0]]
        at.drain()


def test_a_preempted_prompt_goes_on_behind_what_is_scored():
    """Its own blocks, whose tokens have their scores, are found again."""
    at = small_worker(batching=TokenBudgetBatching(8, 8), block_count=10, max_sequences=1)
    at.arrive(request("slow", priority=1, prompt=(1, 2, 3) * 7, max_tokens=1, prompt_logprobs=0))
    at.land()
    at.arrive(request("urgent", prompt=(5, 6), max_tokens=1))
    while "urgent" not in at.finished:
        at.land()
    assert at.machine.planner.preemptions == 1
    (again,) = at.landing
    # Of the 16 tokens that had been computed when it gave way.
    assert again.starts.tolist() == [16]
    at.drain()
    assert at.finished.keys() == {"slow", "urgent"}


def test_prompts_that_fill_the_arithmetic_come_one_after_the_other():
    batching = TokenBudgetBatching(16, enough_prompt_tokens=5)
    at = small_worker(batching=batching, max_sequences=4, block_count=60, prefix_caching=False)
    lengths = {"a": 6, "b": 3, "c": 3, "d": 20}
    at.arrive(*(request(name, prompt=(1,) * n) for name, n in lengths.items()))
    computed = []
    for _ in range(5):
        computed += [plan.counts.tolist() for plan in at.landing]
        at.land()
    # A long one has what is left of its steps, and nobody who decodes waits.
    assert computed == [[6], [1, 3, 3], [1, 1, 1, 13], [1, 1, 1, 7], [1, 1, 1, 1]]
    at.drain()


def test_adapters_of_those_who_run_import_and_wait_are_told_apart():
    at, memory = small_worker(max_adapters=1), AdapterMemory(0, 0, 9)
    _, a, b = ADAPTERS
    assert adapter_figures(at.machine, memory) == AdapterFigures((), (), 1, memory)
    at.handle(ImportsArrived((replace(request("r", prompt=PROMPT), adapter=a),), (12,)))
    at.arrive(*(replace(request(name), adapter=b) for name in ("s", "t")), request("u"))
    figures = adapter_figures(at.machine, memory)
    assert (figures.running, figures.waiting) == ((a.digest,), (b.digest,))
    at.finish_import("r", [])
    at.drain()
    assert adapter_figures(at.machine, memory) == AdapterFigures((), (), 1, memory)
