"""Parameters of policies as a cluster file writes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest

from tandem.commands.scenario import scenario_of
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.live import as_served, checked
from tandem.config.cluster.tree import parse
from tandem.config.policies import parameters, planning_policy, router_config
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.policy.admission.breaker import BreakerTerms
from tandem.policy.admission.policies import ADMISSIONS, Threshold
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import DISPATCHES


def make(
    workers: Sequence[str],
    share: float = 0.5,
    tokens: int | None = None,
    period_s: float = 1.0,
    score: Callable[[], float] = float,
) -> object:
    return workers, share, tokens, period_s, score


def read(**written: object) -> dict[str, object]:
    return parameters("kind", Choice("name", written), make)


def test_numbers_may_carry_units():
    assert read(workers=["a"], share="85%", tokens="20k", period_s="2m") == {
        "workers": ["a"],
        "share": 0.85,
        "tokens": 20_000,
        "period_s": 120.0,
    }
    assert read(workers=[], share=1, tokens=None) == {"workers": [], "share": 1.0, "tokens": None}


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({}, "kind name needs workers, as {name: name, workers: ...}"),
        ({"worker": []}, "kind name has no parameter worker; did you mean workers?"),
        ({"workers": "a"}, "kind name: workers: Expected `array`, got `str`"),
        ({"workers": [], "tokens": "1.5"}, "kind name: tokens: Expected `int | null`"),
        ({"workers": [], "share": True}, "kind name: share: Expected `float`, got `bool`"),
        ({"workers": [], "period_s": "soon"}, "kind name: period_s: expected a time such as 2s"),
        ({"workers": [], "score": "x"}, "kind name has no parameter score"),
        (
            {"workers": [], "period_s": inf},
            "kind name: period_s: expected a finite number, got inf",
        ),
    ],
)
def test_what_does_not_fit_is_named(written, told):
    with pytest.raises(InvalidConfiguration) as caught:
        read(**written)
    assert told in str(caught.value)


@dataclass
class Inner:
    period_s: float = 1.0


def outer(inner: Inner) -> object:
    return inner


def test_a_policy_within_a_policy_is_a_mapping():
    choice = Choice("name", {"inner": {"period_s": "2m"}})
    assert parameters("kind", choice, outer) == {"inner": Inner(120.0)}
    for inner, told in (
        ({"perod_s": 1}, "kind name: inner has no parameter perod_s; did you mean period_s?"),
        ({"period_s": "soon"}, "kind name: inner: period_s: expected a time such as 2s"),
        (120, "kind name: inner: expected a mapping of its parameters"),
    ):
        with pytest.raises(InvalidConfiguration) as caught:
            parameters("kind", Choice("name", {"inner": inner}), outer)
        assert told in str(caught.value)


def test_a_policy_without_parameters_says_so():
    with pytest.raises(InvalidConfiguration, match="kind name has no parameter x; it takes none"):
        parameters("kind", Choice("name", {"x": 1}), object)


FILE = """\
model: tandem-mini
block_size: 16
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu}
policies:
  routing: block-cost
  dispatch: {name: conditional, local_tokens: 1k}
  admission: {name: threshold, max_kv_share: 70%}
  transfer: pull
classes: [{name: gold, default: true}]
queue: {max_requests: 7}
"""


def test_the_simulator_and_a_gateway_have_the_same_policies():
    cluster = checked(parse(FILE, "c.yaml"), Path()).cluster
    live = router_config(as_served(cluster), CacheRoot("", "", b""), 16, {})
    twin = scenario_of(cluster).policies
    assert live.admission == twin.admission == Threshold(max_kv_share=0.7)
    assert live.dispatching == twin.dispatching
    assert live.dispatching.transfer is Transfer.PULL
    assert type(live.routing) is type(twin.routing)
    assert (live.queue, live.classes.default) == (twin.queue, twin.classes.default)
    assert planning_policy(cluster) is None
    assert twin.planning is None


def test_the_places_are_as_many_as_there_are_slots_at_everybodys_workers():
    pool = "{{name: {}, role: both, device: cpu, count: {}, max_num_seqs: {}}}"
    pools = f"pools: [{pool.format('main', 2, 8)}, {pool.format('lane', 1, 4)}]"
    for classes, places in (
        ("", 0),
        ("classes: [{name: gold}]", 20),
        ("classes: [{name: gold, pools: [lane]}]", 16),
    ):
        file = f"model: tandem-mini\n{pools}\n{classes}"
        cluster = checked(parse(file, "c.yaml"), Path()).cluster
        assert scenario_of(cluster).policies.queue.max_requests == places


def test_a_dispatch_policy_takes_another_one_by_its_name():
    made = DISPATCHES["long-prompts"]
    written = {"workers": ["cpu-0"], "inner": "seconds", "long_tokens": "16k"}
    values = parameters("dispatch", Choice("long-prompts", written), made)
    assert values == {"workers": ["cpu-0"], "inner": "seconds", "long_tokens": 16_000}
    assert made(**values).long_tokens == 16_000


def test_a_policy_within_a_policy_has_parameters_of_its_own():
    made = parameters(
        "admission",
        Choice("prediction", {"breaker": {"window_s": "10s", "least_share": "20%"}}),
        ADMISSIONS["prediction"],
    )
    assert made == {"breaker": BreakerTerms(window_s=10.0, least_share=0.2)}
    for wrong, problem in (
        (
            {"breaker": {"windows_s": 1}},
            "breaker has no parameter windows_s; did you mean window_s",
        ),
        ({"breaker": "on"}, "breaker: expected a mapping of its parameters"),
        ({"breaker": {"window_s": 0}}, "window_s is 0; choose more than 0"),
    ):
        with pytest.raises(InvalidConfiguration, match=problem):
            parameters("admission", Choice("prediction", wrong), ADMISSIONS["prediction"])
    with pytest.raises(InvalidConfiguration, match="none has no parameter breaker"):
        parameters("admission", Choice("none", {"breaker": {}}), ADMISSIONS["none"])
