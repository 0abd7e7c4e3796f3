"""Faults: their instants and words, the list in a cluster file, and schedules drawn from a seed."""

from collections import Counter
from itertools import pairwise
from math import inf

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.twin.faults.chance import random_faults
from tandem.twin.faults.entries import read_faults
from tandem.twin.faults.kinds import Crash, Fault, Hang, Partition, SlowLink, TierDown, link_factor

WORKERS = ("prefill-0", "decode-0", "decode-1")
EVERY_KIND = """
- {at: 2m, down: remote, for: 0.5h}
- {at: 30s, crash: decode-1, restart: 20s}
- {at: 30, hang: decode-1, for: 500ms}
- {at: 1.5 s, slow: decode-0, factor: 1e-5, for: 1min}
- {at: 0, partition: [[prefill-0], [decode-0, decode-1]]}
- {at: 5us, down: disk, worker: decode-1}
- {at: 90ns, crash: prefill-0}
"""


def test_every_kind_is_read_in_order_of_time():
    assert read_faults(yaml.safe_load(EVERY_KIND), WORKERS) == (
        Fault(0.0, Partition(("prefill-0",), ("decode-0", "decode-1"))),
        Fault(90e-9, Crash("prefill-0")),
        Fault(5e-6, TierDown(Tier.DISK, "decode-1")),
        Fault(1.5, SlowLink("decode-0", 1e-5), 60.0),
        Fault(30.0, Crash("decode-1"), 20.0),
        Fault(30.0, Hang("decode-1"), 0.5),
        Fault(120.0, TierDown(Tier.REMOTE), 1800.0),
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"at": "30s", "crsh": "a"},
            "must name one of crash, hang, slow, throttle, lossy, partition, down",
        ),
        ({"at": "30s", "crash": "a", "hang": "a"}, "it names crash and hang"),
        ({"crash": "a"}, "at is missing: when it happens, such as at: 30s"),
        ({"at": "soon", "crash": "a"}, "at must be a time such as 30s, got 'soon'"),
        ({"at": "-3s", "crash": "a"}, "at must be a time such as 30s, got '-3s'"),
        ({"at": "3 parsecs", "crash": "a"}, "at must be a time such as 30s, got '3 parsecs'"),
        ({"at": True, "crash": "a"}, "at must be a time such as 30s, got True"),
        ({"at": 1, "crash": "a", "restrat": 3}, "restrat is unknown; did you mean restart?"),
        ({"at": 1, "crash": "a", "for": 3}, "for is unknown"),
        ({"at": 1, "hang": 7}, "hang must be a name, got 7"),
        ({"at": 1, "slow": "a"}, "factor must be what is left of the bandwidth, between 0 and 1"),
        ({"at": 1, "slow": "a", "factor": 0}, "got 0; for a link that is cut use partition"),
        ({"at": 1, "slow": "a", "factor": 1.0}, "got 1.0"),
        ({"at": 1, "partition": ["a", "b"]}, "partition must be two lists of workers"),
        ({"at": 1, "partition": [["a"]]}, "partition must be two lists of workers"),
        ({"at": 1, "partition": [["a", "b"], ["b"]]}, "partition has b on both sides"),
        ({"at": 1, "down": "device"}, "down must be one of host, disk, remote, got 'device'"),
        ({"at": 1, "down": "remote", "worker": "a"}, "worker does not go with down: remote"),
        ({"at": 1, "crash": "a", "silently": 1}, "silently must be true or false, got 1"),
        ({"at": 1, "lossy": "a", "share": 0}, "share must be above 0 and at most 1, got 0"),
        ({"at": 1, "leave": 2}, "leave must be above 0 and at most 1, got 2"),
        ({"at": 1, "drain": "a", "then": "x"}, "then must be one of prefill, decode, both, got"),
        ({"at": 1, "fill": "ram"}, "fill must be one of host, disk, remote, got 'ram'"),
        ("crash", "is not a mapping such as {at: 30s, crash: decode-1}"),
    ],
)
def test_a_mistake_is_reported_with_its_entry_and_a_remedy(entry, problem):
    with pytest.raises(InvalidConfiguration) as raised:
        read_faults([{"at": 1, "crash": "a"}, entry])
    assert str(raised.value).startswith("faults[1]: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"at": 1, "crash": "decode-11"}, "there is no worker decode-11; did you mean decode-1?"),
        (
            {"at": 1, "partition": [["decode-0"], ["x"]]},
            "there is no worker x; known: decode-0, decode-1, prefill-0",
        ),
        ({"at": 1, "down": "disk", "worker": "decode0"}, "no worker decode0; did you mean decode-"),
    ],
)
def test_an_unknown_worker_is_a_mistake_where_the_names_are_known(entry, problem):
    assert read_faults([entry])
    with pytest.raises(InvalidConfiguration, match=r"^faults\[0\]: ") as raised:
        read_faults([entry], WORKERS)
    assert problem in str(raised.value)


def test_a_fault_has_instants_and_a_description():
    crash = Fault(1.5, Crash("decode-1"), 20.0)
    assert (crash.begin_ns, crash.end_ns) == (1_500_000_000, 21_500_000_000)
    assert str(crash) == "crash of decode-1 for 20 s"
    assert Fault(1.0, Hang("a")).end_ns is None
    assert str(Fault(1.0, Hang("a"))) == "hang of a to the end"
    assert str(Partition(("a", "b"), ("c",))) == "partition of a, b from c"
    assert str(TierDown(Tier.DISK, "a")) == "tier disk down at a"
    assert str(SlowLink("a", 0.25)) == "links of a at 0.25 of their bandwidth"


def test_of_slow_links_that_overlap_the_worst_counts():
    active = [
        Fault(0, SlowLink("a", 0.5)),
        Fault(1, SlowLink("a", 0.1)),
        Fault(2, SlowLink("b", 0.01)),
        Fault(3, Hang("a")),
    ]
    assert link_factor(active, "a") == 0.1
    assert link_factor(active, "c") == 1.0


@given(st.integers(), st.sampled_from([WORKERS, WORKERS[:1]]), st.floats(0, 200))
def test_random_faults_are_what_the_list_could_say(seed, workers, duration_s):
    faults = random_faults(seed, workers, duration_s, 0.1)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    for fault in faults:
        assert 0 <= fault.at_s < duration_s
        assert fault.for_s is not None
        assert 1 <= fault.for_s < 30
        assert set(fault.workers) <= set(workers)
        if isinstance(fault.cause, SlowLink):
            assert 0.01 <= fault.cause.factor < 0.5
        if isinstance(fault.cause, Partition):
            assert sorted(fault.workers) == sorted(workers)
            assert len(fault.cause.one) == 1
    longer = random_faults(seed, workers, duration_s + 50, 0.1)
    assert longer[: len(faults)] == faults
    assert all(fault.at_s >= duration_s for fault in longer[len(faults) :])


def test_a_seed_means_the_same_faults_everywhere():
    faults = random_faults(7, WORKERS, 100.0, 0.05)
    assert [(fault.begin_ns, str(fault)) for fault in faults] == [
        (30667214698, "partition of decode-1 from prefill-0, decode-0 for 29.3461 s"),
        (40414728431, "links of prefill-0 at 0.301487 of their bandwidth for 26.5129 s"),
        (57409632084, "hang of decode-0 for 27.3221 s"),
        (68930807156, "hang of decode-1 for 14.1989 s"),
        (72078902834, "tier remote down for 29.0967 s"),
        (99032740151, "crash of decode-0 for 1.61788 s"),
    ]
    assert faults != random_faults(8, WORKERS, 100.0, 0.05)


def test_they_come_at_the_rate_asked_for_and_of_every_kind_alike():
    faults = random_faults(1, WORKERS, 10_000.0, 0.5)
    # 5,000 expected, with a deviation of 71: four of them to either side.
    assert abs(len(faults) - 5_000) < 284
    gaps_s = [b.at_s - a.at_s for a, b in pairwise(faults)]
    # Exponential gaps of mean 2: as many above 4 as e to the -2.
    assert sum(gap_s > 4 for gap_s in gaps_s) / len(gaps_s) == pytest.approx(0.1353, abs=0.02)
    kinds = Counter(type(fault.cause) for fault in faults)
    assert set(kinds) == {Crash, Hang, SlowLink, Partition, TierDown}
    assert all(count / len(faults) == pytest.approx(0.2, abs=0.03) for count in kinds.values())
    struck = Counter(fault.cause.worker for fault in faults if isinstance(fault.cause, Crash))
    assert all(count / kinds[Crash] == pytest.approx(1 / 3, abs=0.06) for count in struck.values())


@pytest.mark.parametrize(
    ("workers", "duration_s", "rate_per_s", "problem"),
    [
        ((), 1.0, 1.0, "workers is empty"),
        (WORKERS, -1.0, 1.0, "duration_s must be 0 or more, got -1"),
        (WORKERS, 1.0, inf, "rate_per_s must be 0 or more, got inf"),
    ],
)
def test_a_schedule_that_cannot_be_drawn_is_refused(workers, duration_s, rate_per_s, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        random_faults(1, workers, duration_s, rate_per_s)


def test_no_rate_no_faults():
    assert random_faults(1, WORKERS, 100.0, 0.0) == ()
