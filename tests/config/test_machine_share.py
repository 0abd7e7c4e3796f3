"""A cluster file for machines that Ray finds: what must be said, and what a process then gets."""

import pytest

from tandem.config.cluster.live import worker_options
from tandem.config.environment import BUNDLED_MODEL, MachineFacts
from tandem.config.machine_share import (
    MachineShare,
    bundles,
    placed_options,
    refused_placement,
)
from tandem.config.memory import adapter_bytes
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.units import GIB
from tests.config.clusters import live

TEXT = """\
model: tandem-mini
launcher: ray
serve: {kv-cache-memory: 64MiB}
pools:
  - {name: p, role: prefill, device: cpu, resources: {num_cpus: 4, prefill_node: 1}}
  - {name: d, role: decode, device: cpu, count: 2, tensor_parallel: 2, serve: {threads: 3}}
"""


def refused(cluster):
    return [problem for _, problem in refused_placement(cluster)]


def test_every_process_has_a_bundle_in_the_names_of_ray(tmp_path):
    cluster = live(tmp_path, TEXT).cluster
    assert not refused(cluster)
    assert bundles(cluster) == {
        "p-0": {"CPU": 4, "prefill_node": 1},
        "d-0": {"CPU": 6},
        "d-1": {"CPU": 6},
    }


def test_a_gpu_worker_gets_a_core_and_its_gpus_unless_told_otherwise(tmp_path):
    text = TEXT.replace("device: cpu, resources: {num_cpus: 4", "device: h100, resources: {a: 2")
    cluster = live(
        tmp_path, text.replace("count: 2,", "count: 2, resources: {num_gpus: 0},")
    ).cluster
    assert bundles(cluster)["p-0"] == {"CPU": 1, "GPU": 1, "a": 2, "prefill_node": 1}


def test_cores_become_threads_of_each_rank(tmp_path):
    cluster = live(
        tmp_path, TEXT, "pools.d.resources.num_cpus=7", "pools.d.serve.threads=0"
    ).cluster
    prefill, decode = cluster.pools
    for pool, threads in ((prefill, 4), (decode, 3)):
        assert placed_options(pool, worker_options(cluster, pool)).threads == threads


def test_what_a_machine_nobody_has_seen_cannot_be_asked(tmp_path):
    cluster = live(tmp_path, TEXT, "pools.d.serve.threads=0", "serve.kv-cache-memory=auto").cluster
    assert [problem.split(":")[0] for problem in refused(cluster)] == ["pool p", "pool d", "pool d"]
    assert "resources: {num_cpus: 8}" in refused(cluster)[1]
    alone = live(
        tmp_path, TEXT, "serve.kv-cache-memory=auto", "ray.placement=strict_spread"
    ).cluster
    assert not refused(alone)


def test_resources_need_ray(tmp_path):
    [problem] = refused(live(tmp_path, TEXT, "launcher=local").cluster)
    assert "write launcher: ray" in problem


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("launcher=rey", "unknown launcher rey; did you mean ray?"),
        ("ray.placement=spred", "unknown placement"),
        ("ray.adress=auto", "did you mean address?"),
        ("ray.address=ray://head:10001", "this machine, which must belong to the Ray cluster"),
        ("ray.timeout=soon", "timeout: expected a time"),
    ],
)
def test_slips_are_told(tmp_path, assignment, told):
    with pytest.raises(InvalidConfiguration, match=told):
        live(tmp_path, TEXT, assignment)


ON_A_GPU = """\
model: tandem-mini
pools:
  - {name: p, role: prefill, device: h100}
  - {name: d, role: decode, device: h100, count: 2}
"""
GPU = MachineFacts(
    cores=8,
    free_memory_bytes=64 * GIB,
    gpu_total_bytes=80 * GIB,
    gpu_free_bytes=80 * GIB,
    gpus=("NVIDIA H100",),
)


@pytest.mark.parametrize(
    "more", ["pools.d.serve.speculation=draft", "pools.d.serve.enable-lora=true"]
)
def test_workers_on_one_gpu_leave_room_for_what_is_beside_the_model(tmp_path, more):
    taken = []
    for wishes in ((), (more,)):
        cluster = live(tmp_path, ON_A_GPU, *wishes).cluster
        share = MachineShare(cluster, BUNDLED_MODEL, {}, alone=True, joins=False)
        share.alone, share.host = False, GPU
        decode = cluster.pools[1]
        memory = int(share.worker_options(decode).kv_cache_memory)
        model = share.models[decode.name]
        options = worker_options(cluster, decode)
        beside = model.drafts.other_bytes(options, is_cpu=False)
        beside += adapter_bytes(options, model.spec)
        taken.append((memory, beside))
    (plain, nothing), (less, beside) = taken
    assert nothing == 0 < beside == plain - less


def test_workers_on_cpus_have_kv_for_all_their_sequences_and_no_more(tmp_path):
    text = "model: tandem-mini\npools: [{name: w, device: cpu, count: 2, max_num_seqs: 4}]\n"
    cluster = live(tmp_path, text).cluster
    share = MachineShare(cluster, BUNDLED_MODEL, {}, alone=False, joins=False)
    share.host = MachineFacts(cores=8, free_memory_bytes=64 * GIB)
    context, token_bytes = 4096, 4 * 2 * 4 * 4 * 32
    options = share.worker_options(cluster.pools[0])
    assert int(options.kv_cache_memory) == 4 * context * token_bytes
