"""From wishes to numbers: every size fits the machine, or one line says what to change."""

import re
from dataclasses import replace

import pytest

from tandem.config.environment import MachineFacts
from tandem.config.memory import ModelFacts, adapter_bytes
from tandem.config.options import read_options
from tandem.config.resolve import machine_facts, memory_shares, resolve
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.facts.units import GIB

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    layers=16,
    hidden_features=2048,
    feed_forward_features=8192,
    vocabulary_tokens=128_256,
    context_tokens=131_072,
    norm=NormSpec(eps=1e-5),
    attention=AttentionSpec(32, 8, 64, 0.125, (None,) * 16),
    rope=RopeSpec(),
    tied_embeddings=True,
    weight_dtype="bfloat16",
)
MODEL = ModelFacts(SPEC)
LAPTOP = MachineFacts(
    cores=8, free_memory_bytes=16 * GIB, gpu_total_bytes=0, gpu_free_bytes=0, api_keys=()
)
WORKSTATION = replace(LAPTOP, gpu_total_bytes=80 * GIB, gpu_free_bytes=79 * GIB)


def resolved(machine=LAPTOP, **flags):
    return resolve(read_options(None, flags), MODEL, machine)


def test_a_laptop_stores_what_the_checkpoint_stores_and_fits_the_context_to_memory():
    plan = resolved()
    assert plan.device.type == "cpu"
    assert plan.storage == "bfloat16"
    assert plan.layout.dtype == "float32"
    assert plan.threads == 8
    assert plan.kv_bytes <= 4 * GIB
    assert plan.worker.context_tokens == plan.worker.block_count * plan.worker.block_size
    assert plan.slots.context_tokens == plan.worker.context_tokens < SPEC.context_tokens


def test_attention_is_in_fewer_bits_only_where_weights_are():
    for flags in ({"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}):
        assert resolved(**flags).arithmetic("auto") == "auto"
        assert resolved(**flags).arithmetic("float32") == "float32"
    for dtype in ("float32", "float16"):
        assert resolved(dtype=dtype).arithmetic("auto") == "float32"
    assert replace(resolved(dtype="float32"), as_stored=True).arithmetic("auto") == "auto"


def test_kv_on_a_cpu_is_for_all_sequences_at_their_longest_and_no_more():
    plan = resolved(max_num_seqs=2, max_model_len=1024)
    assert plan.worker.block_count == 2 * 1024 // plan.worker.block_size
    # What is asked for may be cache as well.
    asked = resolved(max_num_seqs=2, max_model_len=1024, kv_cache_memory="1GiB")
    assert asked.worker.block_count == 2 * plan.worker.block_count


def test_a_gpu_is_taken_when_there_is_one_and_filled_to_its_share():
    plan = resolved(WORKSTATION, max_num_seqs=256)
    assert plan.device.type == "cuda"
    assert plan.layout.dtype == "bfloat16"
    weights_and_pool = SPEC.parameters * 2 + plan.kv_bytes
    assert weights_and_pool < 0.9 * WORKSTATION.gpu_total_bytes
    assert plan.worker.context_tokens == SPEC.context_tokens
    assert resolved(WORKSTATION, device="cpu").device.type == "cpu"


def test_the_kv_of_another_layout_or_model_has_another_root():
    roots = {
        resolved().worker.root.hash(""),
        resolved(block_size=32).worker.root.hash(""),
        resolved(kv_cache_dtype="bfloat16").worker.root.hash(""),
        resolved().of_model("content", "native/1").worker.root.hash(""),
        resolved().of_model("content", "native/2").worker.root.hash(""),
        resolved().worker.root.hash("tenant"),
    }
    assert len(roots) == 6


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, ["max-num-batched-tokens", "64"]),
        ({"max_model_len": 200_000}, ["max-model-len 200000", "131072"]),
        ({"max_model_len": 131_072}, ["does not fit", "--kv-cache-memory"]),
        ({"kv_cache_memory": "1MiB"}, ["no memory is left", "--kv-cache-memory"]),
        ({"device": "cuda"}, ["cuda is not available", "--device cpu"]),
        ({"max_model_len": 1}, ["max-model-len", "at least 2"]),
        ({"quantization": "int8", "dtype": "float16"}, ["int8", "float16", "exclude"]),
    ],
)
def test_what_does_not_fit_is_said_with_its_remedy(flags, words):
    with pytest.raises(InvalidConfiguration) as refusal:
        resolved(**flags)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_int8_is_for_the_cpu():
    assert resolved(quantization="int8").storage == "int8"
    with pytest.raises(InvalidConfiguration, match="int8 runs on a CPU only"):
        resolved(WORKSTATION, quantization="int8")


def test_this_machine_can_be_read():
    facts = machine_facts()
    assert facts.cores >= 1
    assert facts.free_memory_bytes > 0


@pytest.mark.parametrize("flags", [{}, {"kv_cache_memory": "3GiB"}, {"device": "cuda"}])
def test_two_models_in_a_process_divide_its_memory(flags):
    options = read_options(None, {**flags, "max_num_seqs": 256})
    machine = WORKSTATION if flags.get("device") else LAPTOP
    smaller = replace(SPEC, layers=4, attention=AttentionSpec(32, 8, 64, 0.125, (None,) * 4))
    models = [(options, MODEL), (options, ModelFacts(smaller))]
    shares = memory_shares(models, machine)
    plans = [
        resolve(options, model, machine, share=share)
        for (_, model), share in zip(models, shares, strict=True)
    ]
    alone = resolve(options, MODEL, machine)
    assert sum(share.kv for share in shares) == pytest.approx(1)
    # Room for equally many tokens, and together no more than one of them would have.
    assert abs(plans[0].worker.block_count - plans[1].worker.block_count) <= 1
    assert sum(plan.kv_bytes for plan in plans) <= alone.kv_bytes
    assert shares[0].other_bytes > smaller.parameters * 2


def test_two_models_that_do_not_fit_together_are_refused_with_the_figures():
    options = read_options(None, {"kv_cache_memory": "8GiB"})
    machine = replace(LAPTOP, free_memory_bytes=13 * GIB)
    resolve(options, MODEL, machine)
    share, _ = memory_shares([(options, MODEL), (options, MODEL)], machine)
    with pytest.raises(InvalidConfiguration, match="other memory"):
        resolve(options, MODEL, machine, share=share)


def test_the_memory_that_would_hold_a_context_is_that_of_both_models():
    options = read_options(None, {"kv_cache_memory": "64MiB"})
    machine = replace(LAPTOP, free_memory_bytes=64 * GIB)
    share, _ = memory_shares([(options, MODEL), (options, MODEL)], machine)
    (cut,) = resolve(options, MODEL, machine, share=share).cuts
    wanted = re.search(r"kv-cache-memory (\S+) would hold all", cut)[1]
    options = read_options(None, {"kv_cache_memory": wanted})
    assert not [
        cut for cut in resolve(options, MODEL, machine, share=share).cuts if "context" in cut
    ]


def test_adapters_have_room_of_their_own_beside_the_kv_cache():
    flags = {"kv-cache-memory": "auto", "max-loras": 4, "max-lora-rank": 32}
    without, with_adapters = resolved(**flags), resolved(**flags, **{"enable-lora": True})
    assert without.worker.max_adapters == 0
    assert with_adapters.worker.max_adapters == 4
    options = read_options(None, {**flags, "enable-lora": True})
    # The sum of inputs and outputs of all linears, in float32.
    spec = MODEL.spec
    attention, hidden, inner = spec.attention, spec.hidden_features, spec.feed_forward_features
    features = 2 * (hidden + attention.query_features) + 2 * (hidden + attention.kv_features)
    features += 3 * (hidden + inner)
    assert adapter_bytes(options, spec) == 4 * 4 * 32 * features * spec.layers
    named = read_options(None, {"enable-lora": True, "lora-memory": "3MiB"})
    assert adapter_bytes(named, spec) == 3 << 20
    with pytest.raises(InvalidConfiguration, match="other memory 1,"):
        resolved(**{"enable-lora": True, "lora-memory": "1000GiB"})
