"""What a live cluster makes of a cluster file, and how what it cannot do is told."""

import subprocess
import sys

import pytest

from tandem.config.api_options import api_config
from tandem.config.cluster.file import read_cluster
from tandem.config.cluster.live import (
    as_served,
    connectors,
    gateway_options,
    live_model,
    worker_options,
)
from tandem.config.hardware.pools import pool_cost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tests.config.clusters import live, mistake, written

SMALL = """\
model: tandem-mini
block_size: 16
pools:
  - {name: p, role: prefill, device: cpu}
  - {name: d, role: decode, device: cpu, count: 2}
"""


def test_everything_live_can_be_said(tmp_path):
    file = live(
        tmp_path,
        """\
name: lab
model: tandem-mini
listen: 10.0.0.5:9000
gateways: 2
serve:
  {port: 0, api-key: [k], kv-cache-memory: 64MiB, log_level: info, max-num-seqs: 32,
   metrics_prefix: vllm}
transport: {connectors: [nixl, tcp], wire_dtype: bfloat16, checksums: false}
health: {lease: 12s}
policies: {first_token: recomputed}
pools:
  - name: p
    role: prefill
    device: cpu
    block_size: 128
    tensor_parallel: 2
    sequence_parallel: true
    all_reduce: two-shot
    serve: {threads: 3, steps_in_flight: 0, kv-cache-memory: 1048576}
  - {name: d, role: decode, device: cpu, max_num_seqs: 8, dtype: int8, kv_dtype: float32}
""",
    )
    cluster = file.cluster
    assert (cluster.name, cluster.listen, cluster.gateways) == ("lab", "10.0.0.5:9000", 2)
    assert cluster.transport.connectors == ("nixl", "tcp")
    assert (cluster.transport.wire_dtype, cluster.transport.checksums) == ("bfloat16", False)
    assert (cluster.health.lease_s, cluster.policies.first_token) == (12.0, "recomputed")
    prefill, decode = cluster.pools
    assert (prefill.all_reduce, prefill.sequence_parallel) == ("two-shot", True)
    options = worker_options(cluster, prefill)
    assert (options.threads, options.steps_in_flight, options.block_size) == (3, 0, 128)
    # What stands under serve, and best at the pool, counts before the pool's own figures.
    assert (options.max_num_seqs, options.kv_cache_memory) == (32, "1048576")
    assert (options.device, options.log_level, options.dtype) == ("cpu", "info", "auto")
    assert not options.api_key
    assert api_config(gateway_options(cluster, ()), ()).metrics_prefix == "vllm"
    options = worker_options(cluster, decode)
    assert (options.quantization, options.dtype, options.kv_cache_dtype) == (
        "int8", "auto", "float32",
    )  # fmt: skip
    assert (options.block_size, options.max_num_seqs) == (64, 32)
    assert gateway_options(cluster, ("other",)).api_key == ("k",)
    assert [pool.max_num_seqs for pool in as_served(cluster).pools] == [32, 32]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("name: a/b", "line 6: name 'a/b': up to 64 letters"),
        ("gateways: 0", "line 6: gateways must be at least 1, got 0"),
        ("listen: here:there", "line 6: listen: expected an address or address:port"),
        ("gateways: 2\nserve: {batch-directory: b}", "batch-directory: 2 gateways cannot share it"),
        ("gateways: 2\nlisten: 127.0.0.1:65535", "line 7: listen: 2 gateways need as many ports"),
        ("serve: {prot: 1}", "line 6: unknown key prot; did you mean port?"),
        ("serve:\n  port: 70000", "line 7: port: expected int <= 65535"),
        ("serve: {port: eighty}", "line 6: port: expected int, got str"),
        ("serve: {log-level: loud}", "line 6: log_level: invalid enum value 'loud'"),
        ("serve: {block-size: 32}", "line 6: serve: block_size does not stand here; write it at"),
        ("serve: {cascade-model: m}", "line 6: serve: cascade_model does not stand here; only a"),
        ("serve: {seed: 1, seed: 2}", "line 6: seed stands there twice"),
        ("serve: [port]", "line 6: serve: expected keys and values"),
        ("transport: {connectors: [shm, tpc]}", "unknown connector tpc; did you mean tcp?"),
        ("transport: {connectors: []}", "line 6: connectors: name at least one"),
        ("transport: {connectors: [cuda-ipc]}", "line 6: cuda-ipc reaches the memory of GPUs only"),
        ("transport: {checksums: 1}", "line 6: checksums: expected true or false"),
        ("health: {lease: 0s}", "line 6: lease must be more than 0"),
        ("health: {report_interval: 6s}", "line 6: heartbeat_timeout (10s) must be at least twice"),
        ("tenants: [{name: a, api_keys: [k, k]}]", "line 6: tenants: one of the api_keys stands"),
        (
            "policies: {first_token: drawn}",
            "line 6: first_token: 'drawn' is not one of sent, recomputed",
        ),
        ("serve:\n  seed: 1\n  kv-cache-memory: lots", "line 8: kv-cache-memory: expected a size"),
        ("serve:\n  max-num-batched-tokens: 8", "line 7: pool p: max_num_batched_tokens (8)"),
        ("serve:\n  seed: 1\n  gpu-memory-utilization: 7", "line 8: gpu_memory_utilization: exp"),
        ("tenants:\n  - {name: a}\n  - {name: a}", "line 8: two entries call themselves tenant a"),
        ("planning:\n  mode: slow", "line 7: mode: 'slow' is not one of automatic, advisory"),
        ("policies:\n  eviction: lfu", "line 7: a live worker evicts the block used longest ago"),
    ],
)
def test_a_mistake_names_file_line_and_remedy(tmp_path, change, told):
    assert told in mistake(live, tmp_path, f"{SMALL}{change}\n")


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ("name: a b", "line 10: pool name 'a b': up to 64 letters"),
        ("device: toaster", "line 10: device: there is no 'toaster'"),
        ("block_size: 24", "line 10: block_size: 24 is no multiple of 16"),
        ("block_size: 512", "line 10: block-size: expected"),
        ("max_num_seqs: 5000", "line 10: max-num-seqs: expected"),
        ("serve: {max-num-batched-tokens: 16}", "line 10: pool x.y: max_num_batched_tokens (16)"),
    ],
)
def test_a_mistake_of_a_pool_names_its_own_line(tmp_path, pool, told):
    key = pool.partition(":")[0]
    first = "startup: 1s" if key == "name" else "name: x.y"
    second = "startup: 1s" if key == "device" else "device: cpu"
    lines = [first, second, "role: both", "count: 1", pool]
    assert told in mistake(live, tmp_path, SMALL + "  - " + "\n    ".join(lines) + "\n")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("pools.p.serve.port=1", "serve: port does not stand here; write it under serve at the"),
        ("pools.p.block_size=24", "block_size: 24 is no multiple of 16"),
        ("pools.p.block_size=512", "block-size: expected `int` <= 256 (got 512)"),
        ("pools.p.dtype=fp8", "live weights are stored as auto, float32"),
        ("pools.p.kv_dtype=fp8", "live KV is auto, float32, bfloat16, float16, int8, not fp8"),
        ("pools.p.sequence_parallel=true", "needs a tensor_parallel of 2 or more"),
        ("pools.p.engine=dumy", "did you mean dummy?"),
        ("pools.p.device=toaster", "device: there is no 'toaster'"),
        ("pools.p.all_reduce=magic", "unknown all_reduce magic"),
        ("pools.p.count=600", "the cluster would be 603 processes on this machine; 512 at most"),
        ("pools.p.serve.max-num-seqs=9000", "max_num_seqs: expected int <= 4096"),
        ("serve.max-num-batched-tokens=8", "max_num_batched_tokens (8) must be at least"),
        ("serve.kv-cache-memory=64Mib2", "kv-cache-memory: expected a size such as 512MiB"),
        ("pools.p.serve.kv-cache-memory=lots", "kv-cache-memory: expected a size such as 512MiB"),
        ("pools.p.name=a/b", "pool name 'a/b': up to 64 letters"),
    ],
)
def test_a_wrong_setting_of_a_worker_is_told(tmp_path, override, told):
    said = mistake(live, tmp_path, SMALL, override)
    assert told in said
    assert "cluster.yaml" in said or override in said


def test_a_dummy_engine_has_one_rank(tmp_path):
    overrides = ("pools.p.engine=dummy", "pools.p.tensor_parallel=2")
    said = mistake(live, tmp_path, SMALL, *overrides)
    assert "pool p: a dummy engine has one rank; set tensor_parallel and" in said


def test_the_simulator_takes_a_live_file_as_it_is(tmp_path):
    text = SMALL + "serve: {port: 0}\ntransport: {connectors: [tcp]}\nname: lab\ngateways: 3\n"
    cluster = read_cluster(written(tmp_path, text))
    assert pool_cost(cluster, cluster.pools[0]).prefill_seconds(100) > 0
    # Faults and prices are the simulator's; a live cluster takes no notice.
    assert live(tmp_path, text + "faults:\n  - {at: 3s, crash: d-0}\n").cluster.faults


def test_the_resolved_text_says_the_same(tmp_path):
    file = live(tmp_path, SMALL + "slo: {ttft: 2s}\n", "pools.d.count=3", "serve.threads=2")
    folder = tmp_path / "it's a: folder"
    folder.mkdir()
    again = live(tmp_path, file.text(str(folder))).cluster
    assert again.model == str(folder)
    assert again.pools == file.cluster.pools
    assert (again.serve, again.slo) == (file.cluster.serve, file.cluster.slo)
    assert [pool.role for pool in again.pools] == [Role.PREFILL, Role.DECODE]


def test_what_a_model_may_be(tmp_path):
    assert live_model("tandem-mini") is None
    assert str(live_model("tandem-mini-draft")).endswith("bundled/tandem-mini-draft")
    assert live_model(str(tmp_path)) == str(tmp_path)
    assert live_model("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"
    with pytest.raises(InvalidConfiguration, match="is a shape without weights"):
        live_model("llama-3-70b")


def test_connectors_suit_the_devices(tmp_path):
    assert connectors(live(tmp_path, SMALL).cluster) == ("shm", "tcp")
    on_gpu = live(tmp_path, SMALL, "pools.d.device=h200").cluster
    assert connectors(on_gpu) == ("cuda-ipc", "tcp")


def test_a_gateway_gets_its_policies_without_torch():
    script = (
        "import sys; import tandem.config.hardware.pools, tandem.config.policies; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
