"""A person is told why a process finds no machine, and what to change."""

import pytest

from tandem.live.launching.ray_places import Machine, unreachable, why_unplaced

MACHINES = (
    Machine("10.0.0.2", {"CPU": 4, "prefill_node": 1, "node:10.0.0.2": 1, "memory": 1e9}),
    Machine("10.0.0.3", {"CPU": 4, "node:10.0.0.3": 1}),
)


def test_a_resource_that_nobody_has_is_named_with_what_there_is():
    told = why_unplaced({"decode-0": {"CPU": 1, "decode_node": 1}}, MACHINES, "spread")
    assert told == (
        "no machine has all that a process needs: decode-0 needs 1 CPU, 1 decode_node. There are "
        "10.0.0.2 with 4 CPU, 1 prefill_node; 10.0.0.3 with 4 CPU"
    )


def test_who_is_left_over_when_the_machines_are_full():
    bundles = {f"decode-{index}": {"CPU": 3.0} for index in range(3)}
    assert "no room is left for decode-2 (3 CPU)." in why_unplaced(bundles, MACHINES, "pack")


def test_one_machine_each_is_told_where_there_are_too_few():
    bundles = {f"decode-{index}": {"CPU": 1.0} for index in range(3)}
    told = why_unplaced(bundles, MACHINES, "strict_spread")
    assert "wants a machine for each of 3 processes, and there are 2" in told


def test_machines_that_others_use_are_told_apart():
    assert "others use them" in why_unplaced({"decode-0": {"CPU": 4}}, MACHINES, "spread")
    assert why_unplaced({"decode-0": {"CPU": 4}}, (), "spread").endswith("There are no machines")


@pytest.mark.parametrize(
    ("listen", "machines", "problem"),
    [
        ("127.0.0.1", MACHINES, "nobody on 10.0.0.2 reaches 127.0.0.1"),
        ("0.0.0.0", MACHINES, "no address that workers could be told"),
        ("10.0.0.1", MACHINES, ""),
        ("gateways.example", MACHINES, ""),
        ("127.0.0.1", (Machine("127.0.0.2", {}), Machine("127.0.0.3", {})), ""),
    ],
)
def test_a_gateway_must_be_where_workers_reach_it(listen, machines, problem):
    told = unreachable(listen, machines)
    assert problem in told
    assert bool(told) == bool(problem)
