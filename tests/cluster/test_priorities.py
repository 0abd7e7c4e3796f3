"""Priorities of a worker: what runs first, what waits, what is preempted."""

from dataclasses import replace
from itertools import pairwise

from tandem.facts.errors import Overloaded
from tandem.facts.request import Request
from tandem.facts.slo import IN_BACKGROUND
from tandem.messages.worker import RequestsAborted
from tandem.policy.batching import BACKGROUND_TOKENS, TokenBudgetBatching
from tests.cluster.ledger_engine import VOCABULARY
from tests.cluster.ledger_worker import check_answer, request, small_worker


def test_an_urgent_request_takes_the_slot_of_a_lesser_one_which_goes_on_later():
    at = small_worker()
    lesser = [request("old", 5, (1, 2)), request("young", 5, (2, 3))]
    at.arrive(*lesser)
    at.land()
    at.arrive(request("urgent", 0, (4, 5)))
    at.land()
    assert sorted(at.running) == ["old", "urgent"]
    at.drain()
    for one in lesser:
        check_answer(one, at.answers[one.request_id])


def test_within_a_priority_nobody_is_pushed_out():
    at = small_worker()
    at.arrive(request("a"), request("b"))
    at.land()
    at.arrive(request("c"))
    at.land()
    assert sorted(at.running) == ["a", "b"]
    assert at.machine.planner.preemptions == 0
    at.drain()


def test_a_long_prompt_does_not_stop_those_who_already_talk():
    at = small_worker(batching=TokenBudgetBatching(4))
    at.arrive(request("talker"))
    at.land()
    at.arrive(request("reader", prompt=range(1, 11), max_tokens=1))
    for _ in range(3):
        before = len(at.answers["talker"])
        at.land()
        assert len(at.answers["talker"]) == before + 1
    at.drain()


def in_background(count: int) -> list[Request]:
    """Prompts of thirty tokens each, which share nothing."""
    prompts = [(n, *range(1, 30)) for n in range(count)]
    return [
        request(f"b{n}", IN_BACKGROUND, [token % VOCABULARY for token in prompt], max_tokens=2)
        for n, prompt in enumerate(prompts)
    ]


def test_prompts_that_nobody_waits_for_take_little_of_a_step_beside_those_who_talk():
    at = small_worker(batching=TokenBudgetBatching(1000), max_sequences=8, block_count=200)
    batch = in_background(5)

    def scheduled() -> int:
        known = [at.machine.unfinished.get(each.request_id) for each in batch]
        return sum(each.residency.scheduled if each else 30 for each in known)

    at.arrive(request("talker", max_tokens=8), *batch)
    computed = [0, scheduled()]
    for tokens in range(1, 5):
        at.land()
        assert len(at.answers["talker"]) == tokens
        computed.append(scheduled())
    # Two tokens of answers are no prompts.
    steps = [after - before for before, after in pairwise(computed)]
    assert max(steps) <= BACKGROUND_TOKENS + len(batch)
    assert computed[-1] >= 150
    at.drain()
    for one in batch:
        check_answer(one, at.answers[one.request_id])


def test_prompts_that_nobody_waits_for_take_the_whole_step_where_nobody_talks():
    at = small_worker(batching=TokenBudgetBatching(1000), max_sequences=8, block_count=200)
    at.arrive(*in_background(5))
    at.land()
    assert [len(answer) for answer in at.answers.values()] == [1] * 5
    at.drain()


def test_a_prefix_that_is_being_computed_is_awaited_not_computed_twice():
    at = small_worker(batching=TokenBudgetBatching(4), max_sequences=4)
    prompt = tuple(range(1, 10))
    at.arrive(request("first", prompt=prompt), request("second", prompt=prompt))
    while "second" not in at.running:
        at.land()
    second = next(s for s in at.machine.sequences.running if s.request.request_id == "second")
    assert second.prefix_hit.cached_tokens == 8
    at.drain()


def test_what_another_computed_of_a_prompt_while_one_had_given_way_is_a_hit():
    at = small_worker(batching=TokenBudgetBatching(4), max_sequences=1)
    prompt = (*range(1, 10), 1, 2, 3, 4)
    at.arrive(request("lesser", 5, prompt))
    at.land()
    at.arrive(request("urgent", 0, prompt, max_tokens=1))
    at.land()
    assert at.running == ["urgent"]
    lesser = at.machine.unfinished["lesser"]
    own_tokens = lesser.prefix_hit.reached_tokens
    assert 4 <= own_tokens < 12
    while at.running != ["lesser"]:
        at.land()
    assert lesser.residency.scheduled >= 12
    assert lesser.prefix_hit.cached_tokens == 12 - own_tokens
    at.drain()


def test_who_waits_for_a_prefix_does_not_wait_for_one_who_left():
    at = small_worker(batching=TokenBudgetBatching(4), max_sequences=4)
    prompt = tuple(range(1, 10)) * 3
    at.arrive(request("first", prompt=prompt), request("second", prompt=prompt))
    at.handle(RequestsAborted(("first",)))
    at.drain()
    assert at.finished.keys() == {"second"}


def test_an_urgent_prompt_is_not_queued_behind_a_long_lesser_one():
    at = small_worker(batching=TokenBudgetBatching(4), max_sequences=4)
    at.arrive(request("long", 10, range(1, 11), max_tokens=1))
    at.arrive(request("urgent", 0, (7, 7, 7), max_tokens=1))
    at.land()
    at.land()
    assert "urgent" in at.finished
    assert "long" not in at.finished
    at.drain()


def test_nobody_is_pushed_out_in_vain():
    # Pushing out the small one would not make room for the urgent one beside the first.
    at = small_worker(max_sequences=4, block_count=10, batching=TokenBudgetBatching(64))
    at.arrive(request("first", 0, range(1, 9), max_tokens=20))
    at.land()
    at.arrive(request("small", 10, (5, 5, 5, 5), max_tokens=30))
    at.land()
    at.arrive(request("urgent", 5, [9] * 38, max_tokens=1))
    at.land()
    assert sorted(at.running) == ["first", "small"]
    assert at.machine.planner.preemptions == 0
    at.drain()


def test_who_outranks_the_filler_of_a_prefix_does_not_wait_for_it():
    at = small_worker(batching=TokenBudgetBatching(4), max_sequences=4)
    prompt = tuple(range(1, 10)) * 2
    at.arrive(request("slow", 10, prompt))
    at.arrive(request("urgent", 0, prompt))
    at.land()
    assert "urgent" in at.running
    at.drain()


def test_a_token_id_outside_the_vocabulary_is_refused_wherever_it_stands():
    at = small_worker()
    at.arrive(
        request("prompt", prompt=(VOCABULARY,)),
        request("stop", stop_token_ids=(VOCABULARY,)),
        request("bias", logit_bias=((VOCABULARY, 1.0),)),
        request("negative", prompt=(-1,)),
    )
    assert at.refused.keys() == {"prompt", "stop", "bias", "negative"}
    at.drain()


def of(account: str, name: str, **options) -> Request:
    return replace(
        request(name, prompt=(1, 2, len(name), ord(name[-1]) % 8), **options), account=account
    )


def test_a_full_queue_takes_the_newest_of_whoever_has_most():
    at = small_worker(max_sequences=1, max_waiting=3)
    at.arrive(of("a", "a0", max_tokens=3))
    at.arrive(*(of("a", f"a{number}", max_tokens=3) for number in (1, 2, 3)))
    at.arrive(of("a", "a4"), of("b", "b0", max_tokens=3), of("b", "b1"))
    # The third of "b" would only turn the two round.
    assert at.refused.keys() == {"a4", "a3"} | {"b1"}
    assert all(isinstance(error, Overloaded) for error in at.refused.values())
    at.drain()
    assert list(at.finished) == ["a0", "b0", "a1", "a2"]


def test_whoever_was_begun_is_not_turned_away_for_a_newcomer():
    at = small_worker(max_sequences=1, max_waiting=1)
    at.arrive(of("a", "a0"))
    at.land()
    at.arrive(replace(of("a", "urgent"), priority=-1))
    at.land()
    # What ran waits now, with tokens that its client has.
    assert [each.request.request_id for each in at.machine.planner.waiting] == ["a0"]
    at.arrive(of("b", "b0"))
    assert at.refused.keys() == {"b0"}
    at.drain()
    assert at.finished.keys() == {"a0", "urgent"}
