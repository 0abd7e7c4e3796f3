"""Cluster files: what they may say, and how their mistakes are told."""

from dataclasses import replace

import pytest

from tandem.config.cluster.file import Cluster, bundled_clusters, read_cluster
from tandem.config.cluster.keys import Choice
from tandem.config.hardware.pools import pool_blocks, pool_cost, pool_device, worker_hardware
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role, Tier
from tandem.facts.slo import Slo
from tandem.policy.dispatch.contract import Transfer
from tests.config.clusters import mistake, written

SMALL = """\
model: llama-3.1-8b
pools:
  - {name: p, role: prefill, device: h100, count: 2}
  - {name: d, role: decode, device: a100}
"""


def read(tmp_path, text, *overrides) -> Cluster:
    return read_cluster(written(tmp_path, text), overrides)


@pytest.mark.parametrize("name", bundled_clusters())
def test_bundled_clusters_can_be_built(name):
    cluster = read_cluster(name)
    for pool in cluster.pools:
        assert pool_blocks(cluster, pool) > 0
        assert pool_cost(cluster, pool).prefill_seconds(1000) > 0
        assert pool_device(pool).usd_per_hour > 0


def test_a_worker_has_as_many_blocks_as_the_memory_holds_that_the_file_gives_it(tmp_path):
    text = (
        "model: tandem-mini\nblock_size: 16\npools: [{name: w, device: cpu, kv_dtype: float32}]\n"
    )
    cluster = read(tmp_path, text + "serve: {kv-cache-memory: 64MiB}\n")
    block_bytes = pool_cost(cluster, cluster.pools[0]).kv_bytes(16)
    assert pool_blocks(cluster, cluster.pools[0]) == (64 << 20) // block_bytes
    less = read(tmp_path, text, "serve.kv-cache-memory=64MiB", "pools.w.serve.kv-cache-memory=8MiB")
    assert pool_blocks(less, less.pools[0]) == (8 << 20) // block_bytes
    assert pool_blocks(read(tmp_path, text), cluster.pools[0]) > (1 << 30) // block_bytes


def test_the_bundled_clusters_are_those_promised():
    assert set(bundled_clusters()) >= {
        "agents", "aggregated-16", "laptop", "mixed", "mooncake-16", "tiers",
    }  # fmt: skip
    mooncake = read_cluster("mooncake-16")
    assert [(pool.role, pool.count, pool.devices) for pool in mooncake.pools] == [
        (Role.PREFILL, 8, 8),
        (Role.DECODE, 8, 8),
    ]


def test_everything_can_be_said(tmp_path):
    cluster = read(
        tmp_path,
        """\
model: llama-3-70b
block-size: 128
max-model-len: 128Ki
pools:
  - name: w
    device: h100
    count: 4
    min_count: 2
    max-count: 8
    tensor_parallel: 4
    pipeline_parallel: 2
    dtype: fp8
    kv_dtype: fp8
    max_num_seqs: 64
    max_num_batched_tokens: 16k
    memory_utilization: 90%
    startup: 90s
    price: 2.50
    time_model: {name: profile, path: here.json}
network: {fabric: 400 Gbit/s, latency: 5us}
tiers:
  host: {capacity: 256 GB, bandwidth: 40 GB/s}
  remote: {capacity: 10 TB, bandwidth: 2 GB/s, latency: 5ms}
policies:
  routing: prefix-first
  admission: {name: prediction, longest_retry_after_s: 30}
  transfer: pull
health: {report_interval: 500ms}
classes:
  - {name: gold, reserved: 0.5, slo: {ttft: 1s}, deadline: 2s, headers: {x-class: gold}}
tenants:
  - {name: alice, service_class: gold, weight: 3}
slo: {ttft: 2s, tpot: 50ms}
faults:
  - {at: 30s, crash: w-0}
seed: 7
""",
    )
    pool = cluster.pools[0]
    assert (cluster.block_size, cluster.max_model_len, cluster.seed) == (128, 131_072, 7)
    assert (pool.min_count, pool.max_count, pool.devices) == (2, 8, 8)
    assert (pool.max_num_batched_tokens, pool.memory_utilization) == (16_000, 0.9)
    assert (pool.startup_s, pool.price_usd_per_hour) == (90.0, 2.5)
    assert pool.time_model == Choice("profile", {"path": "here.json"})
    assert (cluster.network.fabric_bytes_per_s, cluster.network.latency_s) == (50e9, 5e-6)
    assert cluster.tiers.host is not None
    assert cluster.tiers.host.capacity_bytes == 256e9
    assert cluster.tiers.disk is None
    assert cluster.policies.admission == Choice("prediction", {"longest_retry_after_s": 30})
    assert cluster.policies.transfer is Transfer.PULL
    assert cluster.health.report_interval_s == 0.5
    assert cluster.classes[0].slo == Slo(ttft_s=1.0)
    assert cluster.tenants[0].weight == 3.0
    assert cluster.slo == Slo(ttft_s=2.0, tpot_s=0.05)
    assert cluster.faults == ({"at": "30s", "crash": "w-0"},)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("polices: {}", "cluster.yaml, line 5: unknown key polices; did you mean policies?"),
        ("slo: {ttft: 2}", "line 5: ttft: expected a time such as 2s, 50ms or 10m, got '2'"),
        ("slo: [2s]", "line 5: expected keys and values (ttft, tpot, e2e)"),
        ("slo: {ttft: 2s, ttft: 3s}", "line 5: ttft stands there twice"),
        ("policies:\n  routing: cst", "line 6: unknown routing policy cst; did you mean cost?"),
        ("policies:\n  routing: {harm: 2}", "line 6: routing: name is missing"),
        ("seed: 1.5", "line 5: seed: expected a whole number, got 1.5"),
        ("seed: -1", "line 5: seed: a number must not be negative, got '-1'"),
        ("block_size: 0", "line 5: block_size must be at least 1, got 0"),
        ("classes: {}", "line 5: classes: expected a list"),
        ("classes: [{priority: 1}]", "line 5: name is missing"),
        ("tenants: [{name: a, service_class: x}]", "line 5: tenant a: unknown service_class x"),
        ("tenants: [{name: a, may_use: [x]}]", "line 5: tenant a: unknown class x in may_use"),
        (
            "limits: {requests_per_minute: 0}",
            "line 5: requests_per_minute must be at least 1, got 0",
        ),
        ("tenants: [{name: a, limits: {burst: 2d}}]", "line 5: burst must be from 0s to 86400s"),
        ("tenants: [{name: a, limits: {rpm: 3}}]", "line 5: unknown key rpm"),
        ("tenants: [{name: ''}]", "line 5: a tenant's name has 1 to 128 bytes"),
        (
            "classes: [{name: a, default: true}, {name: b, default: true}]",
            "line 5: only one class can be the default",
        ),
        ("classes: [{name: a, pools: [q]}]", "line 5: class a: there is no pool q"),
        ("classes: [{name: a, pools: [p]}]", "line 5: class a: none of its pools takes decode"),
        (
            "classes: [{name: a, degrade: {service_class: b}}]",
            "line 5: class a: degrade: there is no class b",
        ),
        (
            "classes: [{name: a, degrade: {service_class: a}}]",
            "line 5: class a: degrade: name another class than its own",
        ),
        ("classes: [{name: a, pools: [p, d]}]", "line 5: every pool that takes prefill is some"),
        ("classes: [{name: a, client_may_raise: -1}]", "client_may_raise: a number must not be"),
        ("tiers: {pin_share: 1}", "line 5: pin_share must be at most 0.9, got 1"),
        ("slo: {ttft: 0s}", "line 5: slo: nobody keeps a ttft of 0"),
        ("classes: [{name: a, slo: {tpot: 0}}]", "line 5: slo: nobody keeps a tpot of 0"),
        ("faults_per_hour: 1e9", "line 5: faults_per_hour must be at most 100000, got 1e9"),
        ("classes: [{name: a, reserved: 2}]", "line 5: reserved must be at most 1, got 2"),
        ("tiers: {host: {capacity: 64}}", "line 5: capacity: expected a size such as 64 GiB"),
        ("network: {fabric: [1]}", "line 5: fabric: expected a single value"),
        ("- a", "line 5: not valid YAML"),
    ],
)
def test_a_mistake_names_file_line_and_remedy(tmp_path, change, told):
    assert told in mistake(read, tmp_path, SMALL + change)


TWO_MODELS = """\
model: m
pools:
- {name: p, device: h100}
- {name: s, device: h100, model: n}
"""


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        ("[]", "line 4: pool s has a model of its own, and no class names the pool"),
        ("[{name: a, pools: [p, s]}]", "line 5: class a: its pools serve different models"),
    ],
)
def test_nobody_is_answered_by_one_model_or_another(tmp_path, classes, told):
    assert told in mistake(read, tmp_path, f"{TWO_MODELS}classes: {classes}\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cluster.yaml is empty"),
        ("- a", "cluster.yaml, line 1: expected keys and values"),
        ("model: m", "line 1: pools is missing"),
        ("model: m\npools: []", "line 2: no pool takes prefill; add one with role prefill or both"),
        ("model: m\npools:\n- {name: p, role: prefill, device: h100}", "no pool takes decode"),
        (SMALL.replace("name: d", "name: p"), "line 4: two entries call themselves pool p"),
        (SMALL.replace("count: 2", "count: 2, max_count: 1"), "line 3: pool p: count 2 must lie"),
        (SMALL.replace("count: 2", "count: 1e12"), "line 3: count must be at most 100000"),
        (SMALL.replace("role: decode", "role: decod"), "line 4: role: 'decod' is not one of"),
    ],
)
def test_a_cluster_that_cannot_serve_is_refused(tmp_path, text, told):
    assert told in mistake(read, tmp_path, text)


def test_a_cluster_that_is_nowhere_gets_a_suggestion():
    with pytest.raises(InvalidConfiguration, match="did you mean mooncake-16"):
        read_cluster("moncake-16")


def test_overrides_reach_everything(tmp_path):
    cluster = read(
        tmp_path,
        SMALL + "policies: {routing: cost}\n",
        "pools.p.count=5",
        "pools.1.max-num-seqs=8",
        "policies.admission=prediction",
        "policies.admission.longest_retry_after_s=9",
        "slo.ttft=3s",
        "tiers={host: {capacity: 1 GB}}",
    )
    assert [pool.count for pool in cluster.pools] == [5, 1]
    assert cluster.pools[1].max_num_seqs == 8
    assert cluster.policies.admission == Choice("prediction", {"longest_retry_after_s": 9})
    assert cluster.slo == Slo(ttft_s=3.0)
    assert cluster.tiers.host is not None


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("policies.admision=none", "--set policies.admision=none: unknown key admision; did you"),
        ("pools.prefil.count=2", "--set pools.prefil.count=2: no entry prefil"),
        ("pools.p=2", "--set pools.p=2: p is not a key of keys and values"),
        ("seed", "--set seed: expected KEY=VALUE"),
        ("seed=", "--set seed=: expected KEY=VALUE"),
        ("seed=[", "--set seed=[, line 1: not valid YAML"),
        ("model.size=2", "model: expected a single value"),
        ("tiers.host.bandwidth=1GB/s", "--set tiers.host.bandwidth=1GB/s: capacity is missing"),
        ("policies.planning.x=1", "--set policies.planning.x=1: planning: name is missing"),
    ],
)
def test_a_wrong_override_is_quoted(tmp_path, override, told):
    assert told in mistake(read, tmp_path, SMALL, override)


def test_the_file_stands_before_the_datasheet(tmp_path):
    plain = read(tmp_path, SMALL)
    prefill = plain.pools[0]
    assert pool_cost(plain, prefill).tiers == {}
    changed = read(
        tmp_path,
        SMALL + "network: {fabric: 7 GB/s}\ntiers: {disk: {capacity: 1 TB, bandwidth: 3 GB/s}}\n",
        "pools.p.price=1.25",
    )
    cost = pool_cost(changed, changed.pools[0])
    assert cost.network.bytes_per_s == 7e9
    assert cost.network.latency_s == pool_cost(plain, prefill).network.latency_s
    assert list(cost.tiers) == [Tier.DISK]
    assert cost.tiers[Tier.DISK].bytes_per_s == 3e9
    assert cost.tiers[Tier.DISK].latency_s == 80e-6
    assert pool_device(changed.pools[0]).usd_per_hour == 1.25


def test_a_time_model_may_name_its_file(tmp_path):
    cluster = read(tmp_path, SMALL, "pools.p.time_model={name: tables, path: measured}")
    assert worker_hardware(cluster, cluster.pools[0]).tables == "measured"
    wrong = replace(cluster.pools[0], time_model=Choice("tables", {"pth": "measured"}))
    with pytest.raises(InvalidConfiguration, match="time_model knows no pth, only path"):
        worker_hardware(cluster, wrong)


def test_a_models_path_is_meant_from_the_file(tmp_path):
    (tmp_path / "shape").mkdir()
    cluster = read(tmp_path, SMALL.replace("llama-3.1-8b", "shape"))
    assert cluster.model == str(tmp_path / "shape")
