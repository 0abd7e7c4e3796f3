"""Low-rank adapters: what is read of a folder and what is refused, and the logits of adapted models
against those of PEFT."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from peft import LoraConfig, get_peft_model

from tandem.facts.adapter import Adapter
from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.lora import adapter_rows
from tandem.models.adapter_weights import (
    AdaptedTokens,
    AdapterWeights,
    join_adapters,
    unreadable_adapter,
)
from tandem.models.adapters import read_adapter
from tandem.models.configuration import read_model_spec
from tandem.models.decoder import Decoder, TokenBatch
from tandem.models.load import LoadPlan, load_adapter, load_decoder
from tandem.models.weights import WeightForm
from tests.models.adapter_files import ALL_TARGETS, write_adapter
from tests.models.paging import Chunk, batch_of, poisoned_store
from tests.models.test_logits import shuffled_blocks, tokens_of
from tests.models.tiny import VARIANTS, build

CPU = torch.device("cpu")
FP32 = WeightForm("float32", torch.float32, CPU)
TOLERANCE = 1e-4
TOKENS = 21
# As users configure PEFT; each of another shape of checkpoint.
CONFIGURATIONS = {
    "all-linear": ("llama3", {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    "attention": ("qwen2", {"r": 16, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "regex": (
        "mistral_window",
        {"r": 3, "lora_alpha": 5, "target_modules": r".*\.(k_proj|o_proj|down_proj)"},
    ),
    "rank-stabilised": (
        "qwen3_tied",
        {"r": 128, "lora_alpha": 16, "use_rslora": True, "target_modules": list(ALL_TARGETS)},
    ),
    "patterns": (
        "gemma",
        {
            "r": 8,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "k_proj", "up_proj", "down_proj"],
            "rank_pattern": {"q_proj": 24, r"layers\.1\.mlp\.up_proj": 2},
            "alpha_pattern": {"k_proj": 3},
        },
    ),
    "one-layer": (
        "llama_biased",
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": ["q_proj", "gate_proj", "o_proj"],
            "layers_to_transform": [1],
        },
    ),
    "excluded": (
        "llama2",
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": "all-linear",
            "exclude_modules": ["v_proj", "model.layers.0.mlp.gate_proj"],
        },
    ),
}


def adapted(
    decoder: Decoder, batch: TokenBatch, adapters: list[AdapterWeights], numbers: list[int]
) -> TokenBatch:
    """The batch, each of its tokens with the adapter of this number."""
    wanted = range(len(numbers)) if batch.wanted is None else batch.wanted.tolist()
    return replace(
        batch,
        adapted=AdaptedTokens(
            join_adapters(adapters, decoder.kernels),
            adapter_rows(np.array(numbers, np.int32), len(adapters)),
            adapter_rows(np.array([numbers[row] for row in wanted], np.int32), len(adapters)),
        ),
    )


def logits_of(decoder: Decoder, batch: TokenBatch) -> torch.Tensor:
    with torch.inference_mode():
        return decoder.logits(decoder.forward(batch, poisoned_store(decoder, 64)))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_are_those_of_peft(name: str, kernels, tmp_path: Path) -> None:
    variant, configuration = CONFIGURATIONS[name]
    checkpoint = tmp_path / "base"
    oracle = get_peft_model(build(VARIANTS[variant], checkpoint), LoraConfig(**configuration))
    torch.manual_seed(7)
    with torch.no_grad():
        for tensor, parameter in oracle.named_parameters():
            if "lora_" in tensor:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    oracle.eval().save_pretrained(tmp_path / "adapter")
    spec = read_model_spec(checkpoint)
    decoder = load_decoder(spec, LoadPlan(checkpoint, FP32), kernels)
    files = read_adapter(tmp_path / "adapter", spec)
    weights = load_adapter(spec, files.adapter, kernels, CPU)
    tokens = tokens_of(1, TOKENS)
    batch = batch_of([Chunk(tokens, shuffled_blocks(2, count=TOKENS), 0, TOKENS)])
    with torch.inference_mode():
        wanted = oracle(torch.tensor([tokens])).logits[0].float()
    found = logits_of(decoder, adapted(decoder, batch, [weights], [0] * TOKENS))
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)
    assert (found - logits_of(decoder, batch)).abs().max() > 100 * TOLERANCE


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("base")
    build(VARIANTS["llama3"], directory)
    return directory


def mixed_adapters(base: Path, folder: Path) -> list[Adapter]:
    """Of unlike ranks, storages and targets."""
    spec = read_model_spec(base)
    return [
        write_adapter(folder / "a", spec, rank=8, seed=1),
        write_adapter(folder / "b", spec, rank=40, seed=2, dtype=torch.bfloat16),
        write_adapter(folder / "c", spec, rank=5, seed=3, targets=("v_proj", "down_proj")),
    ]


def test_each_row_as_if_it_were_alone(base: Path, kernels, tmp_path: Path) -> None:
    """Four sequences with three adapters and none, cut in the middle; all rows, and wanted ones."""
    spec = read_model_spec(base)
    decoder = load_decoder(spec, LoadPlan(base, FP32), kernels)
    adapters = mixed_adapters(base, tmp_path)
    weights = [load_adapter(spec, each, kernels, CPU) for each in adapters]
    blocks = np.split(np.array(shuffled_blocks(3, count=4 * 4 * 6)), 4)
    chunks = [Chunk(tokens_of(seed, TOKENS), blocks[seed], 0, TOKENS) for seed in range(4)]
    numbers = [number for number in (1, -1, 0, 2) for _ in range(TOKENS)]
    together = logits_of(decoder, adapted(decoder, batch_of(chunks), weights, numbers))
    exact = kernels.batch_invariant

    def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.testing.assert_close(found, wanted, rtol=0, atol=0 if exact else 2e-5)

    for place, chunk in enumerate(chunks):
        rows = slice(place * TOKENS, (place + 1) * TOKENS)
        number = numbers[rows.start]
        alone = batch_of([chunk])
        if number >= 0:
            alone = adapted(decoder, alone, [weights[number]], [0] * TOKENS)
        same(together[rows], logits_of(decoder, alone))
    wanted = torch.tensor([70, 3, 45, 44])
    some = adapted(decoder, batch_of(chunks, wanted), weights, numbers)
    same(logits_of(decoder, some), together[wanted])


def test_nothing_that_an_unreadable_adapter_touches_is_a_number(base: Path, kernels) -> None:
    decoder = load_decoder(read_model_spec(base), LoadPlan(base, FP32), kernels)
    nothing = unreadable_adapter(decoder.spec, kernels, CPU)
    blocks = shuffled_blocks(3, count=48)
    chunks = [Chunk(tokens_of(seed, 8), blocks[6 * seed :][:6], 0, 8) for seed in (0, 1)]
    logits = logits_of(decoder, adapted(decoder, batch_of(chunks), [nothing], [0] * 8 + [-1] * 8))
    assert logits[:8].isnan().all(1).all()
    assert torch.equal(logits[8:], logits_of(decoder, batch_of(chunks))[8:])


def test_a_digest_names_what_is_computed(base: Path, tmp_path: Path) -> None:
    spec = read_model_spec(base)
    one = write_adapter(tmp_path / "one", spec, seed=1)
    same = write_adapter(tmp_path / "same", spec, seed=1, inference_mode=True)
    others = [
        write_adapter(tmp_path / "seed", spec, seed=2),
        write_adapter(tmp_path / "alpha", spec, seed=1, lora_alpha=3),
        write_adapter(tmp_path / "root", spec, seed=1, use_rslora=True),
        write_adapter(tmp_path / "storage", spec, seed=1, dtype=torch.float16),
    ]
    assert one.digest == same.digest
    assert len({one.digest, *(each.digest for each in others)}) == 1 + len(others)
    assert one.path != same.path


def test_one_that_has_changed_is_not_taken_for_what_it_was(base: Path, kernels, tmp_path) -> None:
    spec = read_model_spec(base)
    adapter = write_adapter(tmp_path, spec, seed=1)
    assert load_adapter(spec, adapter, kernels, CPU).held_bytes >= adapter.weight_bytes
    write_adapter(tmp_path, spec, seed=2)
    with pytest.raises(InvalidConfiguration, match="has changed"):
        load_adapter(spec, adapter, kernels, CPU)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"use_dora": True}, "use_dora is set; Tandem cannot serve DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"bias": "all"}, "bias is 'all'; expected none"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is set"),
        ({"target_modules": ["lm_head"]}, "target_modules is .*; expected some of the linear"),
        ({"target_modules": ["q_proj"]}, "holds .*down_proj.* has no such adapted layer"),
        ({"target_modules": "(q_proj"}, "target_modules is .*; expected a regular expression"),
        ({"r": 8}, r"lora_A.weight has shape \[4, 64\]; expected \[8, 64\]"),
        ({"r": 0}, "r is 0; expected a positive whole number"),
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"rank_pattern": {"q_proj": 0.5}}, "rank_pattern is .*; expected ranks"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern is .*; expected positive numbers"),
        ({"rank_pattern": {"(": 3}}, "no regular expression"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_named(base: Path, tmp_path: Path, config, problem) -> None:
    spec = read_model_spec(base)
    write_adapter(tmp_path, spec)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(InvalidConfiguration, match=problem):
        read_adapter(tmp_path, spec)


def test_files_that_are_not_whole_or_of_another_model(base: Path, tmp_path: Path) -> None:
    spec = read_model_spec(base)

    def refused(problem: str, folder: Path = tmp_path, most_rank: int = 64) -> None:
        with pytest.raises(InvalidConfiguration, match=problem):
            read_adapter(folder, spec, most_rank)

    refused("is no directory", tmp_path / "nowhere")
    refused(r"adapter_config.json does not exist")
    write_adapter(tmp_path, spec, rank=4)
    refused("has rank 4, more than the 3 that are allowed; raise --max-lora-rank", most_rank=3)
    path = tmp_path / "adapter_model.safetensors"
    tensors = load_file(path)
    name, *rest = sorted(tensors)
    save_file({each: tensors[each] for each in rest}, path)
    refused(f"lacks {name}; adapter_config.json says that it is adapted")
    save_file(
        {**tensors, "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(2)}, path
    )
    refused("holds .*lora_embedding_A; only lora_A and lora_B of linear layers")
    save_file({**tensors, name: tensors[name].double()}, path)
    refused("is stored as F64; expected F32, BF16 or F16")
    path.write_bytes(path.read_bytes()[:40])
    refused("cannot be read as safetensors")
    path.unlink()
    refused("does not exist; an adapter in another format")
    wide = replace(spec, hidden_features=128)
    write_adapter(tmp_path, wide)
    refused(r"has shape \[4, 128\]; expected \[4, 64\] for this model: the adapter was trained")
