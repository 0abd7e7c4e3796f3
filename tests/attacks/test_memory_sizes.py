"""A model or a KV cache that the machine has no room for is refused with the numbers before
anything is loaded, and a size that is cut says so."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tandem.config.cluster.live import checked, worker_options
from tandem.config.cluster.tree import parse
from tandem.config.environment import BUNDLED_MODEL, MachineFacts, control_groups, spare_bytes
from tandem.config.machine_share import need_beside_kv
from tandem.config.memory import ModelFacts
from tandem.config.options import read_options
from tandem.config.processes import PoolNodeSetup, WorkerSetup
from tandem.config.resolve import resolve
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.kernels.faces import choose_kernels
from tandem.live.processes import shared_pool as pool_process
from tandem.live.processes import stores
from tandem.live.processes.model import plan_model
from tandem.live.processes.setups import Setups, fresh_keys
from tandem.live.processes.shared_pool import check_memory, tiers_of
from tandem.live.processes.worker_rank import plan_worker
from tandem.models.checkpoint import SafetensorsWeights
from tandem.models.configuration import read_model_spec
from tandem.models.footprint import header_shapes, weight_bytes
from tandem.models.parallel import WHOLE, places
from tandem.models.weights import WeightForm, assemble_weights
from tests.config.clusters import shared_pool_of_one

GIB = 1 << 30
EIGHT_BILLION = ModelSpec(
    architecture="LlamaForCausalLM",
    layers=32,
    hidden_features=4096,
    feed_forward_features=14336,
    vocabulary_tokens=128_256,
    context_tokens=8192,
    norm=NormSpec(eps=1e-5),
    attention=AttentionSpec(32, 8, 128, 0.088, (None,) * 32),
    rope=RopeSpec(),
    weight_dtype="bfloat16",
)
MODEL = ModelFacts(EIGHT_BILLION)
SMALL = MachineFacts(8, 12 * GIB, 0, 0, ())


def resolved(machine=SMALL, host_tier_bytes=0, **flags):
    return resolve(read_options(None, flags), MODEL, machine, host_tier_bytes=host_tier_bytes)


@pytest.mark.parametrize("flags", [{}, {"kv_cache_memory": "64MiB"}, {"max_model_len": 512}])
def test_a_model_that_is_too_large_is_to_blame_whatever_is_said_of_the_kv_cache(flags):
    with pytest.raises(InvalidConfiguration, match="the model does not fit into memory") as refusal:
        resolved(**flags)
    told = str(refusal.value)
    assert "weights 15.0 GiB" in told
    assert "12.0 GiB are free" in told
    assert "raise --kv-cache-memory" not in told


def test_the_same_model_in_narrower_weights_fits():
    assert resolved(quantization="int8", max_model_len=512).storage == "int8"


def test_a_kv_cache_that_is_too_large_is_to_blame_where_the_model_fits():
    machine = replace(SMALL, free_memory_bytes=17 * GIB)
    with pytest.raises(InvalidConfiguration, match="the KV cache does not fit into memory") as said:
        resolved(machine, kv_cache_memory="8GiB")
    assert "lower kv-cache-memory to" in str(said.value)
    assert resolved(machine, kv_cache_memory="256MiB", max_num_seqs=8).kv_bytes <= GIB // 4


def test_a_gpu_has_memory_of_its_own():
    gpu = replace(SMALL, gpu_total_bytes=16 * GIB, gpu_free_bytes=14 * GIB)
    with pytest.raises(InvalidConfiguration, match="the model does not fit into memory"):
        resolved(gpu, kv_cache_memory="64MiB")
    large = replace(gpu, gpu_total_bytes=24 * GIB, gpu_free_bytes=23 * GIB)
    with pytest.raises(InvalidConfiguration, match="the KV cache does not fit"):
        resolved(large, kv_cache_memory="16GiB")
    assert resolved(large).kv_bytes < 8 * GIB


def test_made_up_weights_count_as_others_do(tmp_path: Path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 16384,
                "intermediate_size": 65536,
                "num_hidden_layers": 200,
                "num_attention_heads": 128,
                "num_key_value_heads": 8,
                "vocab_size": 32000,
                "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-5,
                "torch_dtype": "bfloat16",
            }
        )
    )
    options = read_options(
        None, {"load-format": "dummy", "kv-cache-memory": "1GiB", "device": "cpu"}
    )
    with pytest.raises(InvalidConfiguration, match="the model does not fit into memory"):
        plan_model(str(tmp_path), options)


@pytest.mark.parametrize("storage", ["bfloat16", "float32", "int8"])
def test_the_figure_is_what_loading_takes(storage):
    """To the byte, of the matrices as the kernels keep them; at most that where bfloat16 is
    compact."""
    spec, cpu = read_model_spec(BUNDLED_MODEL), torch.device("cpu")
    shapes = header_shapes(BUNDLED_MODEL)
    kernels, _ = choose_kernels(cpu, torch.float32, allow_native=True)
    form = WeightForm(storage, torch.float32, cpu)
    for place in (WHOLE, *places(2, 2)):
        with SafetensorsWeights(BUNDLED_MODEL) as checkpoint:
            held = assemble_weights(spec, checkpoint, form, kernels, place=place)
        figure = weight_bytes(spec, shapes, [place], storage=storage, compute_bytes=4)
        each = 2 * (spec.hidden_features + spec.attention.head_dim)
        vectors = 4 * (len(held.layers) + 1) * each
        scales = 4 * spec.vocabulary_tokens * 12
        most = held.bytes / (0.74 if storage == "bfloat16" else 1.0)
        assert held.bytes <= figure.held <= most + vectors + (storage == "int8") * scales
        assert figure.held < figure.peak


def test_the_headers_are_believed_not_the_configuration():
    spec = read_model_spec(BUNDLED_MODEL)
    small = replace(spec, hidden_features=8)
    shapes = header_shapes(BUNDLED_MODEL)
    wide = {"storage": "float32", "compute_bytes": 4}
    told, believed = (weight_bytes(each, shapes, [WHOLE], **wide) for each in (small, spec))
    assert told == believed


CLUSTER = """\
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 8, kv-cache-memory: KV}
pools:
  - {name: w, role: both, device: cpu, count: COUNT, tensor_parallel: 2}
"""


def setups(kv: str, count: int, free_bytes: int) -> Setups:
    text = CLUSTER.replace("KV", kv).replace("COUNT", str(count))
    made = Setups(checked(parse(text, "c.yaml"), Path()).cluster)
    made.share.host = MachineFacts(4, free_bytes)
    return made


def test_workers_of_one_machine_are_counted_together():
    alone = setups("16MiB", 1, 3 * GIB)
    assert not alone.share.checked_memory()
    need = need_beside_kv(
        alone.share.models["w"],
        alone.cluster.pools[0],
        worker_options(alone.cluster, alone.cluster.pools[0]),
    )
    assert need.without_kv < 3 * GIB
    with pytest.raises(InvalidConfiguration, match=r"the model does not fit .* fewer workers"):
        setups("16MiB", 8, 3 * GIB).share.checked_memory()


def test_a_tier_in_memory_counts_where_a_worker_starts_alone():
    """As `tandem join`, Kubernetes and Ray start it: nobody has counted before."""
    cpu = {"device": "cpu", "max_model_len": 512, "quantization": "int8"}
    planned = partial(resolved, replace(SMALL, free_memory_bytes=20 * GIB), **cpu)
    with pytest.raises(InvalidConfiguration, match=r"tiers\.host .* takes 15\.0 GiB beside"):
        planned(15 * GIB)
    # The automatic cache takes its share of what is left.
    without, beside = planned(0), planned(6 * GIB)
    assert 0 < beside.kv_bytes < without.kv_bytes
    # And one that is named has to fit as well.
    assert planned(0, kv_cache_memory="6GiB", max_num_seqs=256).kv_bytes > 3 * GIB
    with pytest.raises(InvalidConfiguration, match=r"KV cache does not fit .* other memory 7"):
        planned(7 * GIB, kv_cache_memory="6GiB", max_num_seqs=256)


def test_a_tier_lies_in_the_memory_of_the_host_whatever_the_gpu_has():
    gpu = MachineFacts(8, 4 * GIB, 80 * GIB, 79 * GIB, ())
    with pytest.raises(InvalidConfiguration, match=r"tiers\.host .* 4\.0 GiB are free"):
        resolved(gpu, 5 * GIB, device="cuda")
    with_tier, without = (resolved(gpu, size * GIB, device="cuda") for size in (3, 0))
    assert with_tier.kv_bytes == without.kv_bytes


def joining(host: str) -> WorkerSetup:
    """A worker of a pool that others are in already, on this machine or on one of its own."""
    text = CLUSTER.replace("KV", "auto").replace("COUNT", "1").replace(", tensor_parallel: 2", "")
    # So many that memory bounds what KV they may have.
    text = text.replace("max-num-seqs: 8", "max-num-seqs: 128")
    text += f"tiers: {{host: {{capacity: {host}}}}}\n"
    cluster = checked(parse(text, "c.yaml"), Path()).cluster
    made = Setups(cluster, fresh_keys(), joins=True)
    made.share.host = MachineFacts(4, 4 * GIB)
    return made.worker(cluster.pools[0], "w-9", ())


def test_a_worker_that_joins_leaves_room_for_its_tier(monkeypatch):
    small, large = joining("64MiB"), joining("2GiB")
    kv_bytes = [int(setup.options.kv_cache_memory) for setup in (small, large)]
    assert 0 < kv_bytes[1] < kv_bytes[0] - 2**29
    # What its process makes of it, which has to look itself.
    monkeypatch.setattr(
        "tandem.live.processes.model.machine_facts", lambda: MachineFacts(4, 2 * GIB, 0, 0, ())
    )
    assert plan_worker(small).model.plan.kv_bytes > 0
    with pytest.raises(InvalidConfiguration, match=r"tiers\.host does not fit .* 2\.0 GiB"):
        plan_worker(large)


def test_a_process_of_the_pool_counts_what_it_is_about_to_take(monkeypatch):
    node = PoolNodeSetup(
        node="pool-0",
        gateways=("tcp://127.0.0.1:1",),
        keys=fresh_keys(),
        shared_format=BlockFormat(bytes(16), 64 << 10),
        cluster=shared_pool_of_one(4 * GIB),
    )
    tiers, stored = tiers_of(node), BlockFormat(bytes(16), 65 << 10)
    check_memory(node, tiers, stored, 8 * GIB)
    # Without room for what is on its way.
    with pytest.raises(InvalidConfiguration, match=r"pool-0: tiers\.remote .* takes 4\.1 GiB"):
        check_memory(node, tiers, stored, 4 * GIB + GIB // 8)
    mapped = []
    monkeypatch.setattr(pool_process, "host_facts", lambda: MachineFacts(4, 2 * GIB))
    monkeypatch.setattr(stores, "HostStore", lambda *_: mapped.append(1))
    with pytest.raises(InvalidConfiguration, match=r"2\.0 GiB are free"):
        pool_process._run(node)
    assert not mapped


def test_sizes_that_are_cut_say_so():
    def planned(**flags: str):
        return plan_model(None, read_options(None, {"device": "cpu", **flags})).plan

    (cut,) = setups("500GiB", 1, 8 * GIB).share.checked_memory()
    assert cut.startswith("each worker of pool w: KV cache cut to ")
    assert "500.0 GiB" in cut
    assert "KV cache cut to" in planned(kv_cache_memory="500GiB").cuts[0]
    plan = planned(kv_cache_memory="1MiB")
    assert plan.cuts[0].startswith(f"context cut to {plan.worker.context_tokens} of ")
    assert not planned().cuts


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used"),
    [
        ("0::/box/inner", "box", "max", "current"),
        ("4:cpu,memory:/box/inner", "memory/box", "limit_in_bytes", "usage_in_bytes"),
    ],
)
def test_a_limit_of_any_group_above_counts_less_the_pages_of_files(
    tmp_path, line, folder, limit, used
):
    (tmp_path / "cgroup").write_text(f"{line}\n")
    group = tmp_path / "sys" / folder
    (group / "inner").mkdir(parents=True)
    (group / f"memory.{limit}").write_text(f"{8 * GIB}\n")
    (group / f"memory.{used}").write_text(f"{6 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {3 * GIB}\nactive_file {GIB}\n")
    groups = control_groups(tmp_path / "cgroup", tmp_path / "sys")
    assert group in groups
    assert min(map(spare_bytes, groups)) == 6 * GIB
