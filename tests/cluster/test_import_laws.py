"""Laws of imports on one worker: KV that comes from a slower tier, late, in part or not at all,
changes no answer and loses no block."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.request import Request
from tandem.messages.worker import (
    ImportBlocks,
    ImportsArrived,
    RequestsAborted,
    RequestsArrived,
)
from tandem.policy.batching import TokenBudgetBatching
from tests.cluster.ledger_engine import answer, keys_of
from tests.cluster.ledger_worker import (
    CONTEXT_TOKENS,
    LedgerWorker,
    check_answer,
    configs,
    request,
    requests,
    small_worker,
)

SEEDS = st.integers(0, 1 << 32)


class TieredWorker:
    """A worker beside a tier that holds all KV; chance decides what happens next."""

    def __init__(self, config, chance: Random) -> None:
        self.at = LedgerWorker.of(config)
        self.chance = chance
        self.asked: dict[str, Request] = {}
        self.aborted: set[str] = set()

    def arrive(self, one: Request) -> None:
        self.asked[one.request_id] = one
        known_tokens = len(one.prompt_tokens) + len(one.output_tokens)
        import_tokens = self.chance.randint(0, known_tokens + 2)
        self.at.handle(ImportsArrived((one,), (import_tokens,)))

    def finish_some_import(self) -> None:
        request_id = self.chance.choice(sorted(self.at.imports))
        one, wanted = self.asked[request_id], self.at.imports[request_id]
        known = (*one.prompt_tokens, *one.output_tokens)
        come = self.chance.choice([0, wanted.end_token, self.chance.randint(0, wanted.end_token)])
        self.at.finish_import(request_id, keys_of(known, one.adapter)[:come])

    def abort_some(self) -> None:
        gone = self.chance.choice(sorted(self.asked))
        if gone not in self.at.finished:
            self.aborted.add(gone)
        self.at.handle(RequestsAborted((gone,)))

    def turn(self) -> None:
        match self.chance.randrange(12):
            case 0:
                self.abort_some()
            case 1 | 2 | 3 | 4 if self.at.imports:
                self.finish_some_import()
            case _ if self.at.landing:
                self.at.land()

    def settle(self) -> None:
        while self.at.landing or self.at.imports:
            if self.at.imports and self.chance.randrange(2):
                self.finish_some_import()
            elif self.at.landing:
                self.at.land()
        self.at.assert_empty()


@settings(max_examples=200)
@given(configs(), st.lists(requests(), min_size=1, max_size=10), SEEDS, st.booleans())
def test_what_comes_from_a_tier_changes_no_answer(config, wanted, seed, resumed):
    worker = TieredWorker(config, Random(seed))
    answers = [answer(one.prompt_tokens, one.sampling, CONTEXT_TOKENS) for one in wanted]
    drawn = [expected[: len(expected) // 2 * resumed] for expected in answers]
    for index, one in enumerate(wanted):
        worker.arrive(replace(one, request_id=str(index), output_tokens=tuple(drawn[index])))
        for _ in range(worker.chance.randrange(8)):
            worker.turn()
    worker.settle()
    assert not worker.at.refused
    for index, one in enumerate(wanted):
        got = drawn[index] + worker.at.answers.get(str(index), [])
        check_answer(one, got, whole=str(index) not in worker.aborted)


def test_only_what_is_not_cached_is_asked_for_and_only_the_rest_is_computed():
    at = small_worker(max_sequences=3)
    prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    at.arrive(request("first", prompt=prompt[:5], max_tokens=1))
    at.drain()
    at.handle(ImportsArrived((request("second", prompt=prompt),), (8,)))
    wanted = at.imports["second"]
    assert (wanted.first_token, wanted.end_token, len(wanted.blocks)) == (4, 8, 1)
    assert not at.landing
    at.finish_import("second", keys_of(prompt))
    (plan,) = at.landing
    assert (plan.starts.tolist(), plan.counts.tolist()) == ([8], [2])
    at.drain()
    check_answer(request("second", prompt=prompt), at.answers["second"])


def test_an_import_that_the_cache_covers_asks_for_nothing():
    at = small_worker()
    prompt = (1, 2, 3, 4, 5)
    at.arrive(request("first", prompt=prompt, max_tokens=1))
    at.drain()
    at.handle(ImportsArrived((request("second", prompt=prompt),), (3,)))
    assert at.imports["second"] == ImportBlocks("second", 4, 4, ())
    at.finish_import("second", keys_of(prompt))
    at.drain()


def test_an_id_whose_import_is_not_quiet_yet_is_taken():
    at = small_worker()
    again = ImportsArrived((request("one", prompt=(1, 2, 3, 4, 5)),), (4,))
    at.handle(again)
    at.handle(RequestsAborted(("one",)))
    assert at.cancelled == {"one"}
    at.handle(again)
    assert at.refused.keys() == {"one"}
    at.finish_import("one", [])
    at.assert_empty()
    at.refused.clear()
    at.handle(again)
    at.finish_import("one", [])
    at.drain()
    assert at.finished.keys() == {"one"}


def test_nothing_is_brought_into_blocks_that_a_step_under_way_may_still_touch():
    at = small_worker(block_count=10, steps_in_flight=1)
    at.arrive(request("leaves", prompt=[3] * 39, max_tokens=1))
    at.handle(RequestsAborted(("leaves",)))
    at.handle(ImportsArrived((request("comes", prompt=[4] * 30),), (20,)))
    assert not at.imports
    while at.landing:
        at.land()
    at.finish_import("comes", keys_of((4,) * 30))
    at.drain()
    assert at.finished.keys() == {"comes"}


def test_an_import_that_ends_before_it_was_asked_for_is_never_asked_for():
    at = small_worker(block_count=10, steps_in_flight=1)
    at.arrive(request("leaves", prompt=[3] * 39, max_tokens=1))
    at.handle(RequestsAborted(("leaves",)))
    at.handle(ImportsArrived((request("comes", prompt=[4] * 30),), (20,)))
    at.handle(RequestsAborted(("comes",)))
    at.drain()
    assert not at.imports


def test_a_prefix_that_is_being_imported_is_awaited_not_computed():
    at = small_worker()
    prompt = (1, 2, 3, 4, 5, 6)
    at.handle(ImportsArrived((request("first", prompt=prompt, max_tokens=1),), (4,)))
    at.arrive(request("second", prompt=prompt, max_tokens=1))
    assert not at.landing
    at.finish_import("first", keys_of(prompt))
    assert sorted(at.running) == ["first", "second"]
    assert sum(plan.batched_tokens for plan in at.landing) == 4
    at.drain()


def test_a_step_without_budget_left_does_not_delay_an_import():
    at = small_worker(max_sequences=3, block_count=30, batching=TokenBudgetBatching(4))
    at.arrive(request("reads", prompt=[3] * 20))
    at.handle(ImportsArrived((request("comes", prompt=[4] * 10),), (8,)))
    at.land()
    assert at.imports.keys() == {"comes"}
    at.finish_import("comes", [])
    at.drain()


def test_what_the_device_has_is_not_read_from_slower_tiers():
    at = small_worker()
    prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    at.arrive(request("first", prompt=prompt, max_tokens=1))
    at.drain()
    at.handle(RequestsArrived((request("second", prompt=prompt),), (8,)))
    assert not at.imports
    at.drain()
    assert at.finished.keys() == {"first", "second"}
