"""Laws of admission: refuse only what the prediction refuses, and tell an honest time."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.admission.contract import ADMITTED, Verdict
from tandem.policy.admission.decode_forecast import forecast
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.views import TierHits
from tests.policy.admission_fleet import COST, busy_worker, request, route, worker

BEST_EFFORT = Verdict(True, feasible=False)
EARLY = ["load", "prediction"]
PROMISES = st.sampled_from([None, 0.011, 0.015, 0.02, 0.05])


def judge(policy, asked, prefill, decode, now_ns=0):
    return policy.judge(asked, route(asked, prefill, decode), [prefill, decode], now_ns)


def prefill_worker(queued=0):
    return worker("p", Role.PREFILL, queued_prefill_tokens=queued)


@pytest.mark.parametrize("name", ADMISSIONS)
@given(prompt=st.integers(1, 20_000), answer=st.floats(0, 5000), slack=st.floats(1, 10))
def test_an_idle_fleet_admits_whatever_is_feasible(name, prompt, answer, slack):
    idle = prefill_worker(), worker("d", Role.DECODE)
    ttft_s = route(request(prompt, answer), *idle).ttft_s
    tpot_s = COST.decode_seconds(1, prompt + ceil(answer / 2))
    asked = request(prompt, answer, ttft=ttft_s * slack, tpot=tpot_s * slack)
    assert judge(ADMISSIONS[name](), asked, *idle) == ADMITTED


@pytest.mark.parametrize("name", ADMISSIONS)
def test_without_a_worker_the_sentence_says_for_which_phase(name):
    policy = ADMISSIONS[name](max_retry_s=7.0)
    verdict = policy.judge(request(), None, [worker("p", Role.PREFILL)], 0)
    assert (verdict.admitted, verdict.retry_after_s) == (False, 7.0)
    assert verdict.reason == "no worker accepts requests for decode"
    closed = [worker("b", accepting=False)]
    text = "no worker accepts requests for prefill or decode"
    assert policy.judge(request(), None, closed, 0).reason == text


@pytest.mark.parametrize("name", EARLY)
def test_a_long_queue_is_refused_in_words_until_it_drained(name):
    prefill = prefill_worker(queued=41_000)
    verdict = judge(ADMISSIONS[name](), request(ttft=2.0), prefill, worker("d", Role.DECODE))
    predicted_s = route(request(), prefill, worker("d", Role.DECODE)).ttft_s
    # 42 chunks of 110 ms and little else.
    assert 4.62 < predicted_s < 4.7
    assert verdict.reason == (
        f"predicted TTFT {predicted_s:.3g} s exceeds 2 s: 41,000 prompt tokens wait at worker p"
    )
    assert verdict.retry_after_s == predicted_s - 2.0


@pytest.mark.parametrize("name", EARLY)
def test_decodes_wait_for_prompts_where_both_are_computed(name):
    """Twenty answers of 100 tokens, for each of which a prompt of 110 ms comes meanwhile: 22 ms a
    token beside the 23 ms of its own step."""
    asked, policy = request(tpot=0.035), ADMISSIONS[name]()
    both = busy_worker("w", 20, Role.BOTH, typical_prefill_tokens=1000)
    assert judge(policy, asked, both, both).reason.startswith("predicted TPOT 4")
    cached = replace(both, typical_prefill_tokens=40)
    assert judge(policy, asked, cached, cached) == ADMITTED
    apart = replace(both, role=Role.DECODE)
    assert judge(policy, asked, prefill_worker(), apart) == ADMITTED


@pytest.mark.parametrize("name", EARLY)
def test_what_was_waited_counts_against_the_promise_and_not_against_the_next_try(name):
    asked = request(ttft=1.0)
    decode = worker("d", Role.DECODE)
    policy = ADMISSIONS[name]()
    spare_ns = round((1.0 - route(asked, prefill_worker(), decode).ttft_s) * 1e9)
    for each in (asked, request(deadline_ns=1_000_000_000)):
        in_time = judge(policy, each, prefill_worker(), decode, now_ns=spare_ns - 1000)
        assert in_time == ADMITTED
        late = judge(policy, each, prefill_worker(), decode, now_ns=spare_ns + 1000)
        assert (late.admitted, late.retry_after_s) == (False, 0.1)
    queue = prefill_worker(queued=20_000)
    fresh, late = (judge(policy, asked, queue, decode, now_ns) for now_ns in (0, 10**9))
    assert fresh.retry_after_s == late.retry_after_s > 1


@pytest.mark.parametrize("name", EARLY)
def test_a_ttft_that_no_idle_worker_keeps_is_refused_as_such(name):
    asked = request(prompt=10_000, ttft=1.0)
    pair = prefill_worker(), worker("d", Role.DECODE)
    verdict = judge(ADMISSIONS[name](max_retry_s=30.0), asked, *pair)
    idle_s = route(asked, *pair).ttft_s
    assert verdict.reason == (
        f"a TTFT of 1 s cannot hold even on idle workers: 10,000 prompt tokens take {idle_s:.3g} s"
    )
    assert verdict.retry_after_s == 30.0
    assert judge(ADMISSIONS[name](admit_infeasible=True), asked, *pair) == BEST_EFFORT
    # Known KV makes it feasible, on the device or where bringing it is quick.
    for hit in (TierHits(device_tokens=2000), TierHits(host_tokens=9000)):
        helped = replace(asked, hits={"p": hit})
        assert judge(ADMISSIONS[name](), helped, *pair) == ADMITTED
        waiting = judge(ADMISSIONS[name](), helped, prefill_worker(10_000), pair[1])
        assert "10,000 prompt tokens wait at worker p" in waiting.reason


@pytest.mark.parametrize("name", EARLY)
def test_a_tpot_that_no_idle_worker_keeps_is_refused_as_such(name):
    asked = request(prompt=1000, answer=100, tpot=0.005)
    pair = prefill_worker(), worker("d", Role.DECODE)
    verdict = judge(ADMISSIONS[name](), asked, *pair)
    assert verdict.reason == ("a TPOT of 5 ms cannot hold even on an idle worker: d takes 11.2 ms")
    assert judge(ADMISSIONS[name](admit_infeasible=True), asked, *pair) == BEST_EFFORT
    small = worker("d", Role.DECODE, total_blocks=60, free_blocks=60)
    verdict = judge(ADMISSIONS[name](admit_infeasible=True), asked, pair[0], small)
    assert verdict.reason == (
        "1,100 tokens of prompt and answer do not fit even on an idle worker: d holds 960"
    )


def test_load_reads_now_and_prediction_reads_the_start_of_the_decode():
    # 40 sequences decode at 10 + 4 + 20 = 34 ms; of 100 tokens each takes 3.4 s. The prompt waits
    # 1.7 s for its first token, when half of them are gone.
    decode = busy_worker("d", 40)
    assert COST.decode_seconds(40, 20_000) == pytest.approx(0.034)
    prefill = prefill_worker(queued=14_450)
    asked = request(prompt=1000, answer=100, tpot=0.030)
    ahead_s = route(asked, prefill, decode).ttft_s
    assert 1.7 < ahead_s < 1.75
    refused = judge(ADMISSIONS["load"](), asked, prefill, decode)
    assert refused.reason == (
        "predicted TPOT 35.1 ms exceeds 30 ms: 40 sequences decode at worker d now"
    )
    assert judge(ADMISSIONS["prediction"](), asked, prefill, decode) == ADMITTED
    # A prediction also sees who is on the way and does not decode yet.
    coming = replace(worker("d", Role.DECODE), expected_decodes=60, expected_context_tokens=30_000)
    assert judge(ADMISSIONS["load"](), asked, prefill, coming) == ADMITTED
    refused = judge(ADMISSIONS["prediction"](), asked, prefill, coming)
    assert refused.reason == (
        f"predicted TPOT 48.3 ms exceeds 30 ms: 60 sequences decode at worker d in {ahead_s:.3g} s"
    )
    # Long answers of the others: few of them are gone by then.
    patient = ADMISSIONS["prediction"](answer_tokens=1000)
    assert not judge(patient, asked, prefill, decode).admitted


@pytest.mark.parametrize("name", EARLY)
def test_room_for_sequences_and_kv_limits_without_any_promise(name):
    full = busy_worker("d", 8, max_sequences=8)
    verdict = judge(ADMISSIONS[name](answer_tokens=1000), request(), prefill_worker(), full)
    assert verdict.reason.startswith("worker d takes 8 sequences at a time: 8 decode there ")
    crowded = busy_worker("d", 8, context=2000, total_blocks=1050, free_blocks=50)
    verdict = judge(ADMISSIONS[name](answer_tokens=1000), request(), prefill_worker(), crowded)
    assert "KV tokens with this request exceed the 16,800 of worker d" in verdict.reason
    # The same contexts shared by all: what the device holds counts, not what is attended to.
    shared = replace(crowded, free_blocks=800)
    verdict = judge(ADMISSIONS[name](answer_tokens=1000), request(), prefill_worker(), shared)
    assert verdict == ADMITTED


@pytest.mark.parametrize("name", EARLY)
@given(
    running=st.integers(0, 100),
    more=st.integers(1, 50),
    expected=st.integers(0, 50),
    queued=st.integers(0, 20_000),
    tpot=PROMISES,
)
def test_more_decodes_never_admit_what_fewer_refuse(name, running, more, expected, queued, tpot):
    policy = ADMISSIONS[name](max_retry_s=1e6)
    asked = request(tpot=tpot)

    def verdict(count, coming):
        decode = busy_worker(
            "d", count, expected_decodes=coming, expected_context_tokens=500 * coming
        )
        return judge(policy, asked, prefill_worker(queued), decode)

    few, many = verdict(running, expected), verdict(running + more, expected)
    assert many.admitted <= few.admitted
    assert many.retry_after_s >= few.retry_after_s - 1e-6 * few.retry_after_s
    assert verdict(running, expected + more).admitted <= few.admitted


@pytest.mark.parametrize("name", EARLY)
@given(queued=st.integers(0, 50_000), more=st.integers(0, 50_000), ttft=st.floats(0.2, 4))
def test_a_longer_queue_never_admits_nor_shortens_the_retry(name, queued, more, ttft):
    policy, decode = ADMISSIONS[name](max_retry_s=1e6), worker("d", Role.DECODE)
    asked = request(ttft=ttft)
    short = judge(policy, asked, prefill_worker(queued), decode)
    longer = judge(policy, asked, prefill_worker(queued + more), decode)
    assert longer.admitted <= short.admitted
    assert longer.retry_after_s >= short.retry_after_s
    # Refused exactly when the prediction says so.
    assert short.admitted == (route(asked, prefill_worker(queued), decode).ttft_s <= ttft)


@given(
    running=st.integers(0, 60),
    expected=st.integers(0, 30),
    answer=st.integers(1, 400),
    queued=st.integers(0, 20_000),
    tpot=st.floats(0.012, 0.06),
)
def test_the_prediction_is_the_documented_formula(running, expected, answer, queued, tpot):
    decode = busy_worker(
        "d", running, expected_decodes=expected, expected_context_tokens=700 * expected
    )
    asked = request(answer=float(answer), tpot=tpot)
    ahead_s = route(asked, prefill_worker(queued), decode).ttft_s
    gap_s = COST.decode_seconds(max(1, running, expected), max(running * 500, expected * 700))
    answer_s = gap_s * answer
    gone = min(1.0, ahead_s / answer_s)
    alive = min(1.0, answer_s / ahead_s)
    mean_age = min(ahead_s, answer_s) / 2 / gap_s
    sequences = running * (1 - gone) + expected * alive
    context = running * (1 - gone) * (500 + answer * gone / 2)
    context += alive * expected * (700 + min(answer, mean_age))
    load = COST.decode_seconds(
        1 + ceil(sequences - 1e-6), 1000 + ceil(answer / 2) + ceil(context - 1e-6)
    )
    alone = COST.decode_seconds(1, 1000 + ceil(answer / 2))
    verdict = judge(ADMISSIONS["prediction"](), asked, prefill_worker(queued), decode)
    if not load - 1e-7 <= tpot <= load + 1e-7:
        assert verdict.admitted == (load <= tpot)
    assert ("cannot hold even" in verdict.reason) == (alone > tpot)


@given(
    running=st.integers(0, 300),
    expected=st.integers(0, 300),
    arriving_s=st.floats(0.1, 20),
    ahead_s=st.floats(0, 60),
)
def test_the_forecast_counts_as_a_roll_call_does(running, expected, arriving_s, ahead_s):
    # Answers of 200 tokens, of which those that run have written 100 on average.
    decode = busy_worker("d", running, context=101, expected_decodes=expected)
    expects = forecast(decode, 200, arriving_s)
    stay_s = expects.answer_s
    ends = [stay_s * (place + 0.5) / running for place in range(running)]
    starts = [arriving_s * (place + 0.5) / expected for place in range(expected)]
    ages_s = [ahead_s + stay_s - end for end in ends if end > ahead_s]
    ages_s += [ahead_s - start for start in starts if 0 <= ahead_s - start < stay_s]
    prompts = sum(end > ahead_s for end in ends)
    at = expects.at(ahead_s)
    assert at.sequences == pytest.approx(len(ages_s), abs=2)
    context_tokens = prompts + sum(ages_s) / expects.gap_s
    assert at.context_tokens == pytest.approx(context_tokens, abs=2 * 201)


def drained(remaining, context, seconds):
    """Sequences with so many tokens to go, decoded for so long: what is left of them."""
    left = list(remaining)
    while left and seconds > 0:
        seconds -= COST.decode_seconds(len(left), len(left) * context)
        left = [tokens - 1 for tokens in left if tokens > 1]
    return len(left)


@pytest.mark.parametrize("name", EARLY)
@given(running=st.integers(1, 120), answer=st.integers(10, 300), tpot=st.floats(0.013, 0.04))
def test_who_comes_back_when_told_is_admitted_after_decodes_ended(name, running, answer, tpot):
    policy = ADMISSIONS[name](max_retry_s=1e6)
    asked = request(answer=float(answer), tpot=tpot)
    verdict = judge(policy, asked, prefill_worker(), busy_worker("d", running))
    if verdict.admitted:
        return
    # Ages spread evenly over an answer, and contexts that stay: as told, within one step.
    remaining = [1 + (answer - 1) * index // running for index in range(running)]
    step_s = COST.decode_seconds(running, running * 500)
    left = drained(remaining, 500, verdict.retry_after_s + step_s)
    assert judge(policy, asked, prefill_worker(), busy_worker("d", left)) == ADMITTED


@pytest.mark.parametrize("name", EARLY)
@given(queued=st.integers(0, 100_000), ttft=st.floats(0.13, 5))
def test_who_comes_back_when_told_is_admitted_after_the_queue_drained(name, queued, ttft):
    policy, decode = ADMISSIONS[name](max_retry_s=1e6), worker("d", Role.DECODE)
    verdict = judge(policy, request(ttft=ttft), prefill_worker(queued), decode)
    if verdict.admitted:
        return
    # 1,000 tokens of the queue are worked off in 110 ms; one token of slack for the rounding.
    left = max(0, queued - 1 - int(verdict.retry_after_s / COST.prefill_seconds(1000) * 1000))
    assert judge(policy, request(ttft=ttft), prefill_worker(left), decode) == ADMITTED


@pytest.mark.parametrize("name", ADMISSIONS)
@given(queued=st.integers(0, 10**6), running=st.integers(0, 256), limit=st.floats(0.1, 100))
def test_verdicts_are_bounded_repeatable_and_reasoned(name, queued, running, limit):
    policy = ADMISSIONS[name](max_retry_s=limit)
    asked = request(ttft=1.0, tpot=0.02)
    pair = prefill_worker(queued), busy_worker("d", running)
    verdict = judge(policy, asked, *pair)
    assert verdict == judge(policy, asked, *pair)
    assert bool(verdict.reason) != verdict.admitted
    assert verdict.admitted or 0.1 <= verdict.retry_after_s <= limit


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=5))
def test_a_threshold_refuses_only_when_all_workers_are_busy(queues):
    pool = [
        worker(f"p{index}", Role.PREFILL, queued_prefill_tokens=queued)
        for index, queued in enumerate(queues)
    ]
    decode = worker("d", Role.DECODE)
    chosen = route(request(), pool[0], decode)
    verdict = ADMISSIONS["threshold"](max_retry_s=1e6).judge(request(), chosen, [*pool, decode], 0)
    assert verdict.admitted == any(queued <= 10_000 for queued in queues)
    if not verdict.admitted:
        least = min(queues)
        assert verdict.retry_after_s == max(0.1, COST.queue_seconds(least - 10_000))
        assert verdict.reason == (
            f"all {len(pool)} prefill workers are busy: {least:,} prompt tokens wait at worker "
            f"p{queues.index(least)}, above 10,000"
        )


def test_the_published_threshold_on_kv_is_passed_above_85_percent():
    prefill = prefill_worker()
    for free, admitted in ((15, True), (14, False)):
        decode = busy_worker("d", 4, total_blocks=100, free_blocks=free)
        verdict = judge(ADMISSIONS["threshold"](), request(), prefill, decode)
        assert verdict.admitted == admitted
    assert verdict.reason == (
        "all 1 decode workers are busy: worker d uses 86.0% of its KV blocks, above 85.0%"
    )
    # A hundredth and a bit of the sequences must end: 1 - 0.85 / 0.86 of 100 tokens of 12.4 ms.
    assert verdict.retry_after_s == 0.1


def test_a_worker_of_both_phases_is_busy_in_one_of_them():
    filled = busy_worker("a", 4, Role.BOTH, total_blocks=100, free_blocks=5)
    queued = worker("b", Role.BOTH, queued_prefill_tokens=20_000)
    policy = ADMISSIONS["threshold"]()
    fleet = [filled, queued]
    assert not policy.judge(request(), route(request(), filled, filled), fleet, 0).admitted
    idle = worker("c", Role.BOTH)
    assert policy.judge(request(), route(request(), idle, idle), [*fleet, idle], 0) == ADMITTED


def test_a_threshold_on_waiting_requests_tells_when_enough_of_them_left():
    policy = ADMISSIONS["threshold"](max_waiting_requests=4, max_queued_tokens=10**9)
    both = worker("b", Role.BOTH, waiting_requests=8, queued_prefill_tokens=8000)
    verdict = policy.judge(request(), route(request(), both, both), [both], 0)
    assert verdict.reason.endswith("8 requests wait at worker b, above 4")
    assert verdict.retry_after_s == pytest.approx(0.44)
    # Nothing to compute: they wait for sequences to end, 2 of 10 in a fifth of 1.6 s.
    slots = busy_worker("b", 10, Role.BOTH, waiting_requests=6)
    verdict = policy.judge(request(), route(request(), slots, slots), [slots], 0)
    assert verdict.retry_after_s == pytest.approx(0.32)


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("none", {"max_retry_s": 0.05}, "max_retry_s"),
        ("threshold", {"max_kv_share": 0.0}, "max_kv_share"),
        ("threshold", {"max_queued_tokens": -1}, "max_queued_tokens"),
        ("threshold", {"max_waiting_requests": -1}, "max_waiting_requests"),
        ("load", {"answer_tokens": 0.5}, "answer_tokens"),
        ("prediction", {"max_retry_s": float("nan")}, "max_retry_s"),
    ],
)
def test_a_bad_setting_is_named(name, values, field):
    with pytest.raises(InvalidConfiguration, match=rf"^{field} is .*; choose"):
        ADMISSIONS[name](**values)
