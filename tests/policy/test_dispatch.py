"""Laws of dispatch: published thresholds to the token, and seconds compared as documented."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tandem.cost.worker import LinkCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.dispatch.contract import Placement, Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.routing.contract import Route
from tandem.policy.views import TierHits
from tests.policy.admission_fleet import COST, busy_worker, request, route, worker

PREFILL = worker("p", Role.PREFILL)
DECODE = worker("d", Role.DECODE)
LONG = {"workers": ("cpu",), "long_tokens": 30_000, "least_priority": 5}


def made(name, **values):
    return DISPATCHES[name](**(LONG if name == "long-prompts" else {}) | values)


def decide(policy, asked, prefill=PREFILL, decode=DECODE, others=()):
    return policy.decide(asked, route(asked, prefill, decode), [prefill, decode, *others], 0)


def cached(tokens, prompt):
    return request(prompt, hits={"d": TierHits(device_tokens=tokens)})


@pytest.mark.parametrize("name", DISPATCHES)
@given(
    prompt=st.integers(1, 40_000),
    hit=st.floats(0, 1),
    queued=st.integers(0, 40_000),
    running=st.integers(0, 50),
    priority=st.integers(0, 9),
)
def test_decisions_are_whole_and_repeatable(name, prompt, hit, queued, running, priority):
    asked = structs.replace(cached(int(prompt * hit), prompt), priority=priority)
    fleet = (
        worker("p", Role.PREFILL, queued_prefill_tokens=queued),
        busy_worker("d", running),
        worker("cpu", Role.PREFILL),
    )
    for transfer in Transfer:
        policy = made(name, transfer=transfer)
        decided = decide(policy, asked, fleet[0], fleet[1], fleet[2:])
        assert decided == policy.decide(asked, route(asked, *fleet[:2]), fleet[::-1], 1)
        assert (decided.decode, decided.transfer) == ("d", transfer)
        assert decided.reason
        expected = {
            Placement.LOCAL: {"d"},
            Placement.QUEUED: {""},
            Placement.DIRECT: {"p", "cpu"},
        }
        assert decided.prefill in expected[decided.placement]


@pytest.mark.parametrize("name", DISPATCHES)
def test_a_worker_that_does_both_phases_prefills_for_itself(name):
    both = worker("b", Role.BOTH)
    decided = decide(made(name), request(), both, both)
    assert (decided.placement, decided.prefill) == (Placement.LOCAL, "b")


def test_always_means_always():
    assert decide(made("local"), request(100_000)).placement is Placement.LOCAL
    assert decide(made("remote"), request(1)).prefill == "p"


@pytest.mark.parametrize(
    ("prompt", "hit", "placement"),
    [
        (20_470, 18_423, Placement.LOCAL),  # 2,047 uncached, a tenth of the prompt
        (20_480, 18_432, Placement.DIRECT),  # 2,048 are too many
        (1000, 301, Placement.LOCAL),  # 69.9 %
        (1000, 300, Placement.DIRECT),  # 70 % is too much
        (10, 0, Placement.DIRECT),  # short, but nothing of it is here
    ],
)
def test_conditional_has_the_published_thresholds(prompt, hit, placement):
    assert decide(made("conditional"), cached(hit, prompt)).placement is placement


def test_a_busy_decode_worker_vetoes_local_prefill():
    asked = cached(900, 1000)
    policy = made("conditional")
    for free, placement in ((15, Placement.LOCAL), (14, Placement.DIRECT)):
        decode = busy_worker("d", 4, total_blocks=100, free_blocks=free)
        assert decide(policy, asked, PREFILL, decode).placement is placement
    for queued, placement in ((10_000, Placement.LOCAL), (10_001, Placement.DIRECT)):
        decode = worker("d", Role.DECODE, queued_prefill_tokens=queued)
        assert decide(policy, asked, PREFILL, decode).placement is placement


def test_the_queue_takes_what_would_be_remote_and_leaves_what_is_local():
    decided = decide(made("queue"), request())
    assert (decided.placement, decided.prefill) == (Placement.QUEUED, "")
    assert decided.transfer is Transfer.PULL
    conditional = made("queue", inner="conditional")
    assert decide(conditional, cached(900, 1000)).placement is Placement.LOCAL
    assert decide(conditional, cached(0, 1000)).placement is Placement.QUEUED


def test_seconds_count_the_harm_to_running_decodes():
    asked = request(1000, answer=0.0)
    # Idle on both sides: local saves the transfer of 10 ms.
    idle = decide(made("seconds", transfer=Transfer.PULL), asked)
    assert idle.placement is Placement.LOCAL
    assert idle.reason.startswith("prefill at d loses 0.11")
    assert ", at p with the transfer 0.12" in idle.reason
    # Ten neighbours who would stall for the whole chunk are worth a detour, but no long wait.
    talking = busy_worker("d", 10)
    assert decide(made("seconds"), asked, PREFILL, talking).placement is Placement.DIRECT
    queue = worker("p", Role.PREFILL, queued_prefill_tokens=20_000)
    assert decide(made("seconds"), asked, queue, talking).placement is Placement.LOCAL


def test_a_push_hides_behind_the_prefill_and_a_pull_does_not():
    asked = request(4000, answer=0.0)
    seconds = {
        transfer: made("seconds", transfer=transfer).remote_seconds(asked, PREFILL, DECODE)
        for transfer in Transfer
    }
    # 4 MB take 40 ms, those of the last chunk 10 ms.
    assert seconds[Transfer.PULL] - seconds[Transfer.PUSH] == pytest.approx(0.03)
    # Where the link is the bottleneck, the three chunks before the last are all that hides.
    slow = structs.replace(PREFILL, cost=replace(COST, network=LinkCost(bytes_per_s=5e6)))
    seconds = {
        transfer: made("seconds", transfer=transfer).remote_seconds(asked, slow, DECODE)
        for transfer in Transfer
    }
    assert seconds[Transfer.PULL] - seconds[Transfer.PUSH] == pytest.approx(0.33)


@given(
    prompt=st.integers(1, 20_000),
    queued=st.integers(0, 20_000),
    more=st.integers(0, 20_000),
    running=st.integers(0, 100),
)
def test_load_only_ever_drives_the_prefill_away(prompt, queued, more, running):
    policy, asked = made("seconds"), request(prompt)

    def placement(queued_there, queued_here, decoding):
        there = worker("p", Role.PREFILL, queued_prefill_tokens=queued_there)
        here = busy_worker("d", decoding, queued_prefill_tokens=queued_here)
        return decide(policy, asked, there, here).placement

    if placement(queued, queued, running) is Placement.LOCAL:
        assert placement(queued + more, queued, running) is Placement.LOCAL
    else:
        assert placement(queued, queued + more, running) is Placement.DIRECT
        assert placement(queued, queued, running + 1) is Placement.DIRECT


def test_long_prompts_of_low_priority_go_to_the_workers_set_apart():
    policy = DISPATCHES["long-prompts"](("cpu-1", "cpu-2"), long_tokens=30_000, least_priority=5)
    busy = worker("cpu-1", Role.PREFILL, queued_prefill_tokens=9000)
    cpus = busy, worker("cpu-2", Role.PREFILL)

    def prefill(prompt, priority, others=cpus, **values):
        return decide(policy, request(prompt, priority=priority, **values), others=others).prefill

    assert prefill(30_001, 5) == "cpu-2"
    assert prefill(30_000, 5) == "p"
    assert prefill(30_001, 4) == "p"
    # What the routed worker knows already is not long any more.
    assert prefill(30_001, 5, hits={"p": TierHits(device_tokens=1)}) == "p"
    # A prefix at the busier one is worth more than its queue.
    assert prefill(40_000, 9, hits={"cpu-1": TierHits(device_tokens=20_000)}) == "cpu-1"
    assert prefill(40_000, 9, others=[structs.replace(cpu, accepting=False) for cpu in cpus]) == "p"
    assert (
        prefill(40_000, 9, others=[structs.replace(cpu, role=Role.DECODE) for cpu in cpus]) == "p"
    )


def test_a_long_prompt_whose_decode_is_set_apart_too_stays_there():
    both = worker("cpu", Role.BOTH)
    asked = request(50_000, priority=9)
    decided = made("long-prompts").decide(asked, Route("p", "cpu", 1, 1, ()), [PREFILL, both], 0)
    assert (decided.placement, decided.prefill) == (Placement.LOCAL, "cpu")


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("conditional", {"local_share": 1.5}, "local_share is 1.5; choose"),
        ("conditional", {"busy_kv_share": -0.5}, "busy_kv_share is -0.5; choose"),
        ("conditional", {"local_tokens": -1}, "local_tokens is -1; choose"),
        ("conditional", {"busy_queued_tokens": -1}, "busy_queued_tokens is -1; choose"),
        ("queue", {"inner": "queue"}, "inner dispatch is queue; choose one of local, remote"),
        ("long-prompts", {"workers": ()}, "workers is empty; name"),
        ("long-prompts", {"long_tokens": 0}, "long_tokens is 0; choose"),
    ],
)
def test_a_bad_setting_is_named(name, values, text):
    with pytest.raises(InvalidConfiguration, match=text):
        made(name, **values)
