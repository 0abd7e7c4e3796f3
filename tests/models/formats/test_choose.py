"""Which quantised checkpoints are read, and what is said of the others: one line, before any weight
is read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.config.checkpoints import check_model
from tandem.config.kv_format import storage_of
from tandem.config.memory import model_facts
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.models.checkpoint import SafetensorsWeights
from tandem.models.configuration import read_model_spec
from tandem.models.formats.choose import METHODS, read_quantization
from tandem.models.formats.gptq import Gptq
from tandem.models.formats.weights import QuantizedWeights
from tandem.models.parameters import all_parts, decoder_parts
from tests.models.formats.written import FORMATS, configure, ct, of_gptq, write

SINGLE = "model.safetensors"
GROUPED = {"strategy": "group", "group_size": 32}


def config_of(folder: Path, quantization: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    return folder


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is bitsandbytes"),
        ({"load_in_8bit": True}, "quant_method is bitsandbytes"),
        ({"quant_method": "hqq"}, "quant_method is hqq, which Tandem cannot read; take a"),
        ({"quant_method": "aqlm"}, "quant_method is aqlm"),
        ({"quant_method": "exl2"}, "in one of gptq, awq, compressed-tensors, fp8"),
        ({"quant_method": "mxfp4"}, "or the original weights with --quantization int8 or int4"),
        ({"bits": 4}, "quant_method is missing"),
        (of_gptq(3, 128), "bits is 3; expected 4 or 8"),
        (of_gptq(4, 0), "group_size is 0; expected a positive"),
        (of_gptq(4, 128, checkpoint_format="marlin"), "'marlin'; expected gptq or gptq_v2"),
        (of_gptq(4, 128, is_marlin_format=True), "'marlin'; expected gptq or gptq_v2"),
        (of_gptq(4, 128, pack_dtype="int8"), "pack_dtype is 'int8'; expected int32"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "bits is 8; expected 4"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"},
            "version is 'gemv'; expected gemm",
        ),
        (ct("marlin-24", {}), "format is 'marlin-24'; expected one of pack-quantized"),
        (ct("pack-quantized", {"num_bits": 2}), "num_bits is 2; expected 4 or 8"),
        (
            ct("pack-quantized", {}, sparsity_config={"format": "sparse-24-bitmask"}),
            "sparse weights are not supported",
        ),
        (
            ct("pack-quantized", {}, transform_config={"config_groups": {"u": {}}}),
            "weights that were rotated",
        ),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'; expected e4m3"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"is \[128\]; expected two sizes"),
    ],
)
def test_what_cannot_be_read_says_what_could(
    quantization: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfiguration, match=words) as caught:
        read_quantization(config_of(tmp_path, quantization))
    assert "\n" not in str(caught.value)
    assert "quantization_config" in str(caught.value)


def test_older_spellings(tmp_path: Path) -> None:
    """A file beside config.json, and other names of fields and of the whole."""
    (tmp_path / "config.json").write_text("{}")
    assert read_quantization(tmp_path) is None
    (tmp_path / "quant_config.json").write_text(
        json.dumps({"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"})
    )
    found = read_quantization(tmp_path)
    assert found is not None and (found.method, repr(found.format)) == ("awq", "Awq(size=128)")
    (tmp_path / "quantize_config.json").write_text(
        json.dumps({"bits": 4, "group_size": -1, "desc_act": True})
    )
    found = read_quantization(tmp_path)
    assert found is not None and found.format == Gptq(4, 0, 1, reordered=True, dynamic=False)
    whole = ct("pack-quantized", GROUPED)
    for nested in (whole, {"quantization_config": whole}):
        (tmp_path / "config.json").write_text(json.dumps({"compression_config": nested}))
        found = read_quantization(tmp_path)
        assert found is not None and found.method == "compressed-tensors"


def check(directory: Path) -> None:
    found = read_quantization(directory)
    assert found is not None
    with SafetensorsWeights(directory) as checkpoint:
        parts = all_parts(decoder_parts(read_model_spec(directory)))
        QuantizedWeights(checkpoint, found.format).check(parts, frozenset())


def rewrite(directory: Path, **changes: torch.Tensor | None) -> None:
    """Tensors of the first layer's q_proj; None removes one."""
    tensors = load_file(directory / SINGLE)
    for ending, changed in changes.items():
        name = f"model.layers.0.self_attn.q_proj.{ending}"
        tensors.pop(name, None)
        if changed is not None:
            tensors[name] = changed
    save_file(tensors, directory / SINGLE)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gptq", {"qzeros": None}, "lacks model.layers.0.self_attn.q_proj.qzeros"),
        (
            "gptq",
            {"scales": torch.ones(3, 64)},
            r"q_proj.scales is F32 \[3, 64\]; expected F16 or BF16 or F32 \[2, 64\]",
        ),
        (
            "gptq",
            {"qweight": torch.zeros(16, 64, dtype=torch.int32)},
            r"q_proj.qweight is I32 \[16, 64\]; expected I32 \[8, 64\]",
        ),
        ("gptq", {"g_idx": torch.zeros(9, dtype=torch.int32)}, r"q_proj.g_idx is I32 \[9\]"),
        ("gptq", {"bias": torch.ones(64)}, "q_proj.bias is not zero, and config.json says"),
        ("gptq", {"other": torch.ones(64)}, "also holds model.layers.0.self_attn.q_proj.other"),
        ("awq", {"qweight": None}, "lacks model.layers.0.self_attn.q_proj.weight"),
        ("awq", {"qzeros": torch.zeros(2, 8)}, r"q_proj.qzeros is F32 \[2, 8\]; expected I32"),
        ("packed", {"weight_scale": None}, "lacks model.layers.0.self_attn.q_proj.weight_scale"),
        (
            "packed",
            {"weight_packed": torch.zeros(64, 4, dtype=torch.int32)},
            r"weight_packed is I32 \[64, 4\]; expected I32 \[64, 8\]",
        ),
        ("int8", {"weight_scale": torch.ones(64, 2)}, r"weight_scale is F32 \[64, 2\]"),
        ("fp8 in blocks", {"weight_scale_inv": None}, "lacks .*q_proj.weight_scale_inv"),
        (
            "fp8 in blocks",
            {"weight": torch.zeros(64, 64).to(torch.float8_e5m2)},
            "q_proj.weight is F8_E5M2 .*; expected F8_E4M3",
        ),
        (
            "fp8 in blocks",
            {"weight": torch.zeros(64, 64, dtype=torch.int8)},
            "also holds .*q_proj.weight_scale_inv",
        ),
        (
            "mxfp4",
            {"weight_scale": torch.ones(64, 2)},
            r"weight_scale is F32 \[64, 2\]; expected U8",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(
    name: str, changes: dict[str, torch.Tensor | None], words: str, tmp_path: Path
) -> None:
    files = write(tmp_path, FORMATS[name])
    check(files.directory)
    rewrite(files.directory, **changes)
    with pytest.raises(InvalidConfiguration, match=words) as caught:
        check(files.directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("group", [-1, 2])
def test_groups_that_are_not_there_are_refused(group: int, tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS["gptq"])
    rewrite(files.directory, g_idx=torch.full((64,), group, dtype=torch.int32))
    found = read_quantization(files.directory)
    assert found is not None
    with SafetensorsWeights(files.directory) as checkpoint:
        source = QuantizedWeights(checkpoint, found.format)
        part = decoder_parts(read_model_spec(files.directory)).layers[0].qkv.weights[0]
        assert source.read_coded(part) is None
        with pytest.raises(InvalidConfiguration, match=r"q_proj.g_idx names groups beyond the 2"):
            source.read(part)


def test_spare_tensors_are_ignored(tmp_path: Path) -> None:
    """Biases of zeros, where config.json knows of none, and what is of activations and the KV."""
    files = write(tmp_path, FORMATS["packed"])
    spare = ("bias", "input_scale", "k_scale", "output_scale")
    rewrite(files.directory, **{ending: torch.zeros(64) for ending in spare})
    check(files.directory)


def test_options_name_the_method_or_leave_it(tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS["awq"])
    for quantization in ("auto", "awq", "none", "int8", "int4"):
        options = ServeOptions(quantization=quantization, device="cpu")
        facts = model_facts(files.directory, options)
        kept = facts.kept_codes(options, is_cpu=True)
        assert bool(kept) is (quantization in ("auto", "awq"))
        assert not facts.kept_codes(options, is_cpu=False)
        stored = quantization if quantization in ("int8", "int4") else "float16"
        assert storage_of(options, facts.spec, is_cpu=True) == stored
        text = facts.weights_text(options, stored, is_cpu=True)
        wanted = f"4 bits, as stored (awq), and {stored}" if kept else f"{stored}, decoded from awq"
        assert text == wanted
    with pytest.raises(InvalidConfiguration, match=r"gptq is not how .* quantised, which is awq"):
        check_model(str(files.directory), ServeOptions(quantization="gptq", device="cpu"))
    with pytest.raises(InvalidConfiguration, match=r"fp8 is not how .* quantised, which is none"):
        check_model(None, ServeOptions(quantization="fp8", device="cpu"))


def test_every_method_can_be_named() -> None:
    for method in METHODS:
        assert ServeOptions(quantization=method).quantization == method


def test_dtype_is_that_of_the_other_weights(tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS["awq"])
    options = ServeOptions(dtype="bfloat16", device="cpu")
    facts = model_facts(files.directory, options)
    assert facts.kept_codes(options, is_cpu=True)
    assert storage_of(options, facts.spec, is_cpu=True) == "bfloat16"


def test_dummy_weights_are_not_quantised(tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS["awq"])
    (files.directory / SINGLE).unlink()
    facts = model_facts(files.directory, ServeOptions(load_format="dummy", quantization="awq"))
    assert not facts.codes and facts.quantization is None


def test_a_mixture_of_experts_is_refused_for_that(tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS["awq"])
    configure(
        files.directory,
        architectures=["GptOssForCausalLM"],
        num_local_experts=32,
        quantization_config={"quant_method": "mxfp4"},
    )
    with pytest.raises(InvalidConfiguration, match="cannot run mixtures of experts"):
        check_model(str(files.directory), ServeOptions(device="cpu"))
