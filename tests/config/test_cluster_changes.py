"""What another cluster file changes in a running cluster, and what of it cannot be."""

from pathlib import Path

import pytest

from tandem.config.cluster.changes import changes
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Change, key, section
from tandem.config.cluster.live import checked
from tandem.config.cluster.tree import override, parse

TEXT = """
model: tandem-mini
block_size: 16
serve: {port: 0, api-key: [first-secret], max-num-seqs: 8}
slo: {ttft: 2s}
classes:
  - {name: premium, reserved: 0.5}
  - {name: free, priority: 3}
tenants:
  - {name: acme, service_class: premium, api_keys: [acme-secret]}
  - {name: globex, weight: 2}
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu, count: 2, max_count: 4}
policies: {admission: {name: prediction}}
tiers: {host: {capacity: 1GiB}}
"""
# An assignment, the key that it changes, its new value as shown, and when a cluster heeds it.
ONE_KEY = [
    ("slo.ttft=500ms", "slo.ttft", "500ms", Change.NEW_REQUESTS),
    ("classes.free.priority=7", "classes.free.priority", "7", Change.AT_ONCE),
    ("classes.free.slo.tpot=1s", "classes.free.slo.tpot", "1s", Change.NEW_REQUESTS),
    ("tenants.globex.weight=5", "tenants.globex.weight", "5", Change.AT_ONCE),
    (
        "tenants.globex.response_cache=true",
        "tenants.globex.response_cache",
        "true",
        Change.NEW_REQUESTS,
    ),
    ("tenants.globex.kv_share=0.5", "tenants.globex.kv_share", "0.5", Change.WORKER_RESTART),
    (
        "tenants.acme.api_keys=[new]",
        "tenants.acme.api_keys",
        "(secret) changed",
        Change.NEW_REQUESTS,
    ),
    ("serve.api-key=[new]", "serve.api_key", "(secret) changed", Change.NEW_REQUESTS),
    ("serve.port=8000", "serve.port", "8000", Change.NEVER),
    ("policies.admission=none", "policies.admission", "none", Change.AT_ONCE),
    ("policies.first_token=recomputed", "policies.first_token", "recomputed", Change.NEVER),
    ("queue.max_requests=3", "queue.max_requests", "3", Change.AT_ONCE),
    ("pools.d.count=3", "pools.d.count", "3", Change.WORKERS),
    ("pools.d.dtype=float32", "pools.d.dtype", "float32", Change.NEVER),
    ("block_size=32", "block_size", "32", Change.NEVER),
    ("tiers.host.capacity=2GiB", "tiers.host.capacity", "2.0 GiB", Change.NEVER),
    ("tiers.disk.capacity=2GiB", "tiers.disk", "2.0 GiB", Change.NEVER),
    ("planning.mode=advisory", "planning.mode", "advisory", Change.AT_ONCE),
    ("explain_memory=0", "explain_memory", "0", Change.AT_ONCE),
    ("journal.directory=/tmp/j", "journal", "/tmp/j", Change.NEVER),
]


def cluster(*assignments: str, text: str = TEXT) -> Cluster:
    tree = parse(text, "c.yaml")
    for assignment in assignments:
        override(tree, assignment)
    return checked(tree, Path()).cluster


@pytest.mark.parametrize(("assignment", "place", "new", "when"), ONE_KEY)
def test_one_key_changes_alone_and_back(assignment, place, new, when):
    before, after = cluster(), cluster(assignment)
    (change,) = changes(before, after)
    assert (change.place, change.new, change.when) == (place, new, when)
    assert bool(change.instead) == (when in (Change.NEVER, Change.WORKER_RESTART))
    (back,) = changes(after, before)
    assert back.place == place
    assert not changes(after, after)


def test_keys_change_together_as_they_do_alone():
    chosen = [each for index, each in enumerate(ONE_KEY) if index % 2]
    both = changes(cluster(), cluster(*(assignment for assignment, *_ in chosen)))
    assert {change.place for change in both} == {place for _, place, *_ in chosen}


def test_pools_classes_and_tenants_come_and_go_with_no_secret_shown():
    after = TEXT.replace("name: d, role: decode", "name: e, role: decode, dtype: float32")
    after = after.replace(
        "{name: globex, weight: 2}", "{name: initech, api_keys: [secret], kv_share: 0.3}"
    )
    after = after.replace("{name: free, priority: 3}", "{name: batch, slo: {ttft: 9s}}")
    found = changes(cluster(), cluster(text=after))
    assert {(change.place, change.when) for change in found} == {
        ("pools.d", Change.WORKERS),
        ("pools.e", Change.WORKERS),
        ("classes.free", Change.NEW_REQUESTS),
        ("classes.batch", Change.NEW_REQUESTS),
        ("tenants.globex", Change.NEW_REQUESTS),
        ("tenants.initech", Change.NEW_REQUESTS),
        # Tiers are told of shares as their processes start.
        ("tenants.initech.kv_share", Change.WORKER_RESTART),
    }
    assert "secret" not in str(found).replace("(secret)", "")


@section
class Entry:
    name: str = key("Its name.")
    live: int = key("At once.", default=0)
    fixed: int = key("Never.", default=0, live=Change.NEVER)


@section
class File:
    entries: tuple[Entry, ...] = key("Some.", default=(), live=Change.AT_ONCE)


def test_a_new_entry_does_not_hide_what_cannot_change_live():
    found = changes(File(), File((Entry("plain", live=3), Entry("odd", fixed=3))))
    assert [(change.place, change.when) for change in found] == [
        ("entries.plain", Change.AT_ONCE),
        ("entries.odd", Change.AT_ONCE),
        ("entries.odd.fixed", Change.NEVER),
    ]


def test_a_new_pool_brings_options_of_its_own():
    pools = "  - {name: e, role: decode, device: cpu, serve: {threads: 2}}\npolicies"
    (change,) = changes(cluster(), cluster(text=TEXT.replace("policies", pools)))
    assert (change.place, change.when) == ("pools.e", Change.WORKERS)
    other = TEXT.replace("count: 2,", "count: 2, serve: {threads: 2},")
    (change,) = changes(cluster(), cluster(text=other))
    assert (change.place, change.when) == ("pools.d.serve.threads", Change.NEVER)


def test_the_order_counts_where_it_decides():
    rows = "  - {name: premium, reserved: 0.5}\n", "  - {name: free, priority: 3}\n"
    turned = TEXT.replace("".join(rows), "".join(reversed(rows)))
    (change,) = changes(cluster(), cluster(text=turned))
    assert (change.place, change.old, change.new) == ("classes", "premium, free", "free, premium")
    pools = TEXT.split("pools:\n")[1].split("policies")[0].splitlines(keepends=True)
    assert not changes(cluster(), cluster(text=TEXT.replace("".join(pools), "".join(pools[::-1]))))


def test_what_only_the_simulator_heeds_changes_nothing():
    assert not changes(cluster(), cluster("faults_per_hour=5", "pools.d.price=3"))
