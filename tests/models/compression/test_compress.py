"""A compressed folder is what its report says: judged by transformers, with the values that an
independent reader finds in it."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tandem.facts.errors import InvalidConfiguration
from tandem.models.compression import compress
from tandem.models.compression.checkpoint import CheckpointWriter
from tandem.models.compression.compress import (
    Compressed,
    JudgedText,
    Texts,
    compress_checkpoint,
)
from tandem.models.compression.plans import QuantisationPlan, ZerosPlan
from tandem.models.compression.scheme import (
    W4A16,
    W8A8,
    W8A16,
    Method,
    PruningPlan,
    Recipe,
    Scheme,
)
from tandem.models.configuration import read_model_spec
from tandem.models.load import LoadPlan, load_decoder
from tests.models.compression.decoding import decoded, files_of
from tests.models.paging import BLOCK_SIZE, Chunk, poisoned_store, run
from tests.models.test_logits import FP32
from tests.models.tiny import VARIANTS, build

W4 = replace(W4A16, group_size=32)
W4_ASYMMETRIC = replace(W4, symmetric=False)


def texts(seed: int = 0) -> Texts:
    draw = random.Random(seed)
    calibration = [draw.choices(range(199), k=length) for length in (40, 33, 17, 60)]
    held_out = [
        JudgedText(draw.choices(range(199), k=length), first)
        for length, first in ((150, 1), (25, 9))
    ]
    return Texts(calibration, held_out)


def compressed(model: Path, out: Path, scheme: Scheme, method: Method, **more) -> Compressed:
    return compress_checkpoint(
        model, out, QuantisationPlan(Recipe(scheme, method, **more)), texts()
    )


def logits(oracle: PreTrainedModel, text: JudgedText) -> Tensor:
    """Those that foretell the judged tokens."""
    with torch.inference_mode():
        return oracle(torch.tensor([text.ids])).logits[0, text.first - 1 : -1]


def surprise(logits_TV: Tensor, text: JudgedText) -> float:
    said = torch.tensor(text.ids[text.first :])
    return float(torch.nn.functional.cross_entropy(logits_TV, said, reduction="sum"))


def with_weights(oracle: PreTrainedModel, folder: Path) -> PreTrainedModel:
    other = type(oracle)(oracle.config).eval()
    _, unexpected = other.load_state_dict(decoded(folder), strict=False)
    assert not unexpected
    other.tie_weights()
    return other


def round_inputs(oracle: PreTrainedModel, folder: Path) -> None:
    """Of every matrix that the folder has in codes."""

    def rounded(module, args):
        (x,) = args
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (torch.round(x / scale).clamp(-128, 127) * scale,)

    for name in files_of(folder):
        module, _, kind = name.rpartition(".")
        if kind == "weight_scale":
            oracle.get_submodule(module).register_forward_pre_hook(rounded)


@pytest.mark.parametrize(
    ("variant", "scheme", "method"),
    [
        ("llama_biased", W4, "gptq"),
        ("gemma", replace(W4, group_size=8), "rtn"),
        ("qwen2_window", W4_ASYMMETRIC, "gptq"),
        ("qwen3_tied", W8A16, "rtn"),
        ("llama2_sharded", W8A8, "gptq"),
        ("gemma", W8A8, "smoothquant"),
        ("qwen3", W8A8, "smoothquant-gptq"),
    ],
)
def test_the_report_is_what_transformers_finds(
    variant: str, scheme: Scheme, method: Method, tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    oracle = build(VARIANTS[variant], model)
    done = compressed(model, out, scheme, method)
    other = with_weights(oracle, out)
    if scheme.rounds_inputs:
        round_inputs(other, out)
    before = [logits(oracle, text) for text in texts().held_out]
    after = [logits(other, text) for text in texts().held_out]
    errors = [(one - two).abs() for one, two in zip(before, after, strict=True)]
    quality = done.quality
    # An input in the middle between two codes may fall to either side: one logit shows it most.
    mean_tolerance, largest_tolerance = (0.02, 0.1) if scheme.rounds_inputs else (1e-3, 1e-3)
    assert quality.largest_error == pytest.approx(
        float(max(each.max() for each in errors)), rel=largest_tolerance
    )
    assert quality.mean_error == pytest.approx(float(torch.cat(errors).mean()), rel=mean_tolerance)
    assert quality.tokens == sum(len(text.ids) - text.first for text in texts().held_out)
    for reported, found in ((quality.perplexity_before, before), (quality.perplexity_after, after)):
        total = sum(
            surprise(each, text) for each, text in zip(found, texts().held_out, strict=True)
        )
        mean = torch.tensor(total / quality.tokens)
        assert reported == pytest.approx(float(mean.exp()), rel=2e-3)
    assert done.bytes_after < done.bytes_before
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == ["lm_head"]
    assert config["hidden_size"] == 64


def test_every_linear_but_the_head_is_in_codes_and_the_rest_is_untouched(tmp_path: Path) -> None:
    oracle = build(VARIANTS["llama3"], tmp_path / "model").to(torch.bfloat16)
    oracle.save_pretrained(tmp_path / "model")
    done = compressed(tmp_path / "model", tmp_path / "out", W4, "rtn")
    tensors, original = files_of(tmp_path / "out"), files_of(tmp_path / "model")
    coded = {name.removesuffix("_packed") for name in tensors if name.endswith("weight_packed")}
    assert coded == {name for name in original if name.endswith("_proj.weight")}
    assert done.matrices == len(coded) == 14
    for name in set(original) - coded:
        assert torch.equal(tensors[name], original[name])
    # Scales are in the precision of the weights that they stand for.
    assert tensors["model.layers.0.mlp.up_proj.weight_scale"].dtype is torch.bfloat16


def test_gptq_is_closer_than_rounding_and_gives_the_same_again(tmp_path: Path) -> None:
    build(VARIANTS["llama3"], tmp_path / "model")
    draw = random.Random(1)
    many = Texts([draw.choices(range(199), k=100) for _ in range(20)], texts().held_out)
    errors = {}
    for name, method in (("rtn", "rtn"), ("gptq", "gptq"), ("again", "gptq")):
        plan = QuantisationPlan(Recipe(W4, method))
        done = compress_checkpoint(tmp_path / "model", tmp_path / name, plan, many)
        errors[name] = done.quality.mean_error
    # Random tokens leave little for one weight to make good of another: on texts it is far closer.
    assert errors["gptq"] < 0.95 * errors["rtn"]
    first, second = (tmp_path / name / "model.safetensors" for name in ("gptq", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_what_is_ignored_keeps_its_weights(tmp_path: Path) -> None:
    build(VARIANTS["qwen3"], tmp_path / "model")
    ignore = ("model.layers.0", "down_proj")
    done = compressed(tmp_path / "model", tmp_path / "out", W4, "gptq", ignore=ignore)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert sorted(config["quantization_config"]["ignore"]) == sorted(
        [
            *(f"model.layers.0.self_attn.{each}_proj" for each in "qkvo"),
            *(f"model.layers.0.mlp.{each}_proj" for each in ("gate", "up", "down")),
            "model.layers.1.mlp.down_proj",
        ]
    )
    assert "lm_head.weight_packed" in files_of(tmp_path / "out")
    # Six in the other layer, and the head.
    assert done.matrices == 7


def test_a_coded_head_is_in_the_report(tmp_path: Path) -> None:
    oracle = build(VARIANTS["llama3"], tmp_path / "model")
    done = compressed(tmp_path / "model", tmp_path / "out", W8A8, "gptq", ignore=())
    other = with_weights(oracle, tmp_path / "out")
    round_inputs(other, tmp_path / "out")
    error = max(
        (logits(oracle, text) - logits(other, text)).abs().max() for text in texts().held_out
    )
    assert done.quality.largest_error == pytest.approx(float(error), rel=0.1)


@pytest.mark.parametrize("criterion", ["magnitude", "wanda"])
def test_a_pruned_checkpoint_is_an_ordinary_one(criterion, tmp_path: Path) -> None:
    oracle = build(VARIANTS["qwen2"], tmp_path / "model")
    plan = ZerosPlan(PruningPlan(criterion, 0.5, of_four=True))
    done = compress_checkpoint(tmp_path / "model", tmp_path / "out", plan, texts())
    other = type(oracle).from_pretrained(tmp_path / "out")
    error = max(
        (logits(oracle, text) - logits(other, text)).abs().max() for text in texts().held_out
    )
    assert done.quality.largest_error == pytest.approx(float(error), rel=1e-3)
    tensors = files_of(tmp_path / "out")
    pruned = [tensor for name, tensor in tensors.items() if name.endswith("_proj.weight")]
    assert len(pruned) == done.matrices == 14
    for tensor in pruned:
        assert ((tensor.view(-1, 4) == 0).sum(dim=1) == 2).all()


def test_large_checkpoints_are_written_in_several_files(monkeypatch, tmp_path: Path) -> None:
    oracle = build(VARIANTS["llama3"], tmp_path / "model")
    monkeypatch.setattr(
        compress, "CheckpointWriter", lambda folder: CheckpointWriter(folder, shard_bytes=20_000)
    )
    compressed(tmp_path / "model", tmp_path / "out", W8A16, "rtn")
    names = {path.name for path in (tmp_path / "out").glob("*.safetensors")}
    assert len(names) > 3
    assert f"model-00001-of-{len(names):05d}.safetensors" in names
    assert with_weights(oracle, tmp_path / "out") is not oracle


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (QuantisationPlan(Recipe(W4A16, "rtn")), "--group-size is 128; expected a divisor"),
        (
            QuantisationPlan(Recipe(W4, "rtn", ignore=("q_proj",))),
            "--ignore names model.layers.0.self_attn.q_proj and not",
        ),
    ],
)
def test_what_does_not_fit_is_said_and_leaves_nothing(plan, said: str, tmp_path: Path) -> None:
    build(VARIANTS["llama3"], tmp_path / "model")
    with pytest.raises(InvalidConfiguration, match=said):
        compress_checkpoint(tmp_path / "model", tmp_path / "out", plan, texts())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_codes_are_not_compressed_again(tmp_path: Path) -> None:
    build(VARIANTS["llama3"], tmp_path / "model")
    compressed(tmp_path / "model", tmp_path / "out", W8A16, "rtn")
    with pytest.raises(InvalidConfiguration, match="tandem compress"):
        compressed(tmp_path / "out", tmp_path / "again", W8A16, "rtn")


def test_a_damaged_checkpoint_is_said(tmp_path: Path) -> None:
    oracle = build(VARIANTS["llama3"], tmp_path / "model")
    with torch.no_grad():
        oracle.model.layers[1].input_layernorm.weight[3] = float("inf")
    oracle.save_pretrained(tmp_path / "model")
    with pytest.raises(InvalidConfiguration, match=r"layers\.1\.self_attn\.q_proj gets inputs"):
        compressed(tmp_path / "model", tmp_path / "out", W4, "gptq")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("as_stored", [False, True])
@pytest.mark.parametrize("scheme", [W8A16, W8A8, W4, W4_ASYMMETRIC], ids=lambda each: each.name)
def test_it_is_served_as_what_the_folder_says(
    scheme: Scheme, as_stored: bool, kernels, tmp_path: Path
) -> None:
    oracle = build(VARIANTS["qwen3"], tmp_path / "model")
    compressed(tmp_path / "model", tmp_path / "out", scheme, "gptq")
    spec = read_model_spec(tmp_path / "out")
    form = replace(FP32, as_stored=as_stored)
    decoder = load_decoder(spec, LoadPlan(tmp_path / "out", form), kernels)
    text = texts().held_out[0]
    blocks = -(-len(text.ids) // BLOCK_SIZE)
    whole = Chunk(text.ids, range(blocks), 0, len(text.ids))
    found = run(decoder, poisoned_store(decoder, blocks), whole)
    expected = logits(with_weights(oracle, tmp_path / "out"), text)
    # Kernels keep scales of groups in float16.
    tolerance = 0.02 if as_stored and scheme.group_size else 1e-4
    torch.testing.assert_close(found[text.first - 1 : -1], expected, atol=tolerance, rtol=0)
