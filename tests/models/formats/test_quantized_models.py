"""Models whose checkpoints are quantised compute what the same values in float32 do: as codes, as
values, cut over ranks, and with adapters."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.coded import coded_of
from tandem.kernels.faces import reference_kernels
from tandem.kernels.packed import PackedLinear
from tandem.models.checkpoint import SafetensorsWeights
from tandem.models.configuration import read_headless_spec, read_model_spec
from tandem.models.content import Weights, content_of
from tandem.models.footprint import checkpoint_sizes, weight_bytes
from tandem.models.formats.choose import read_quantization
from tandem.models.formats.weights import QuantizedWeights
from tandem.models.load import LoadPlan, load_adapter, load_decoder
from tandem.models.merging import merge_adapter
from tandem.models.parallel import WHOLE, Place, places
from tandem.models.weights import DecoderWeights, WeightForm, assemble_weights
from tests.models.adapter_files import write_adapter
from tests.models.formats.written import FORMATS, configure, write
from tests.models.paging import Chunk, batch_of, poisoned_store, run
from tests.models.test_adapters import adapted, logits_of

CPU = torch.device("cpu")
FLOATS = WeightForm("float32", torch.float32, CPU)
CODES = replace(FLOATS, as_stored=True)
CHUNK = Chunk([7 * each % 199 for each in range(19)], [3, 1, 4, 0, 2], 0, 19)
# Beside the size of logits. On the native face offsets and scales are kept in 16 bits.
ROUNDING = {"reference": 2e-5, "native": 8e-3}


def logits(directory: Path, form: WeightForm, kernels) -> torch.Tensor:
    decoder = load_decoder(read_model_spec(directory), LoadPlan(directory, form), kernels)
    return run(decoder, poisoned_store(decoder, 5), CHUNK)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_decoded_model(name: str, kernels, tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS[name])
    wanted = logits(files.decoded, FLOATS, kernels)
    decoder = load_decoder(
        read_model_spec(files.directory), LoadPlan(files.directory, CODES), kernels
    )
    layer = decoder.weights.layers[1]
    for packed in (layer.qkv, layer.attention_output, layer.gate_up, layer.down):
        assert packed.storage == {0: "float32", 4: "int4", 8: "int8"}[FORMATS[name].bits]
    assert decoder.weights.head is not None and decoder.weights.head.storage == "float32"
    found = run(decoder, poisoned_store(decoder, 5), CHUNK)
    size = wanted.std()
    torch.testing.assert_close(found, wanted, rtol=0, atol=float(size) * ROUNDING[kernels.name])
    values = logits(files.directory, FLOATS, kernels)
    torch.testing.assert_close(values, wanted, rtol=0, atol=float(size) * ROUNDING["reference"])


@pytest.mark.parametrize("name", ["gptq", "awq", "packed with zero points", "fp8 in blocks"])
@pytest.mark.parametrize("variant", ["qwen2", "llama_biased"])
def test_with_biases_and_tied_heads(name: str, variant: str, tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS[name], variant)
    kernels = reference_kernels()
    wanted = logits(files.decoded, FLOATS, kernels)
    found = logits(files.directory, CODES, kernels)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gptq", "packed", "fp8 in blocks"])
def test_what_was_left_unquantised_is_read_so(name: str, tmp_path: Path) -> None:
    """By itself, or among matrices that are fused with it."""
    files = write(tmp_path, FORMATS[name], skipped=("v_proj", "0.mlp.down_proj"))
    kernels = reference_kernels()
    found = logits(files.directory, CODES, kernels)
    wanted = logits(files.decoded, FLOATS, kernels)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def weight_of(packed: PackedLinear) -> torch.Tensor:
    """Of the reference face."""
    return packed.weight if packed.groups is None else coded_of(packed).values()


def assembled(directory: Path, place: Place, form: WeightForm = CODES) -> DecoderWeights:
    found = read_quantization(directory)
    assert found is not None
    with SafetensorsWeights(directory) as checkpoint:
        source = QuantizedWeights(checkpoint, found.format)
        spec = read_model_spec(directory)
        return assemble_weights(spec, source, form, reference_kernels(), place=place)


@pytest.mark.parametrize("name", ["gptq", "gptq in another order", "awq", "int8", "fp8 in blocks"])
def test_ranks_have_their_shares(name: str, tmp_path: Path) -> None:
    """Cuts fall within groups and blocks, of 32 inputs and of 24 by 40."""
    files = write(tmp_path, FORMATS[name])
    whole = assembled(files.directory, WHOLE).layers[1]
    coded = bool(FORMATS[name].bits)
    for ranks in (2, 4):
        made = [assembled(files.directory, place) for place in places(ranks, 2)[ranks:]]
        assert [len(weights.layers) for weights in made] == [1] * ranks
        layers = [weights.layers[0] for weights in made]
        for packed, by_rank in (
            (whole.down, [each.down for each in layers]),
            (whole.attention_output, [each.attention_output for each in layers]),
        ):
            assert all((each.groups is not None) is coded for each in by_rank)
            joined = torch.cat([weight_of(each) for each in by_rank], 1)
            torch.testing.assert_close(joined, weight_of(packed), rtol=1e-6, atol=1e-7)
        gates = torch.cat([weight_of(each.gate_up).chunk(2)[0] for each in layers])
        torch.testing.assert_close(
            gates, weight_of(whole.gate_up).chunk(2)[0], rtol=1e-6, atol=1e-7
        )


def test_shares_that_cannot_be_packed_are_held_as_values(tmp_path: Path) -> None:
    """Cuts that would cut words of codes, and shares that are filled up with zeros."""
    files = write(tmp_path, FORMATS["gptq"])
    whole = assembled(files.directory, WHOLE).layers[0]
    down = assembled(files.directory, Place(1, 8)).layers[0].down
    assert down.groups is None
    torch.testing.assert_close(down.weight, weight_of(whole.down)[:, 12:24], rtol=1e-5, atol=1e-6)
    output = assembled(files.directory, Place(7, 8)).layers[0].attention_output
    assert output.groups is None and output.weight.shape == (64, 16) and not output.weight.any()


@pytest.mark.parametrize("kernels", ["native"], indirect=True)
@pytest.mark.parametrize("name", ["gptq", "awq", "int8", "mxfp4", "gptq in another order"])
def test_the_figure_is_what_loading_takes(name: str, tmp_path: Path, kernels) -> None:
    """To the byte, of the matrices as the native kernels keep them."""
    files = write(tmp_path, FORMATS[name], "qwen2")
    spec = read_model_spec(files.directory)
    sizes = checkpoint_sizes(files.directory, spec)
    assert bool(sizes.codes) is bool(FORMATS[name].bits)
    found = read_quantization(files.directory)
    assert found is not None
    for place in (WHOLE, *places(2, 2)):
        with SafetensorsWeights(files.directory) as checkpoint:
            source = QuantizedWeights(checkpoint, found.format)
            held = assemble_weights(
                spec, source, replace(CODES, storage="float16"), kernels, place=place
            )
        figure = weight_bytes(
            spec, sizes.shapes, [place], storage="float16", compute_bytes=4, codes=sizes.codes
        )
        layers = len(held.layers)
        vectors = 4 * (layers * (2 * 64 + 64 + 2 * 32) + 64)
        columns = 4 * layers * (64 + 2 * 32 + 2 * 64 + 2 * 96)
        assert held.bytes <= figure.held <= held.bytes + vectors + columns
        assert figure.held < figure.peak


def test_unlike_forms_are_unlike_models(tmp_path: Path) -> None:
    """Whatever says what the bytes mean, and how they are held."""
    files = write(tmp_path, FORMATS["gptq"])
    spec, weights = read_model_spec(files.directory), Weights("same bytes")
    names = {content_of(spec, "float16", weights)}
    for version in ("gptq", "gptq_v2"):
        configure(
            files.directory,
            quantization_config={**FORMATS["gptq"].config, "checkpoint_format": version},
        )
        found = read_quantization(files.directory)
        for as_stored in (True, False):
            names.add(content_of(spec, "float16", weights, found, as_stored=as_stored))
    assert len(names) == 5


@pytest.mark.parametrize("name", ["gptq", "fp8 in blocks"])
def test_adapters_stand_beside_quantised_weights(name: str, kernels, tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS[name])
    spec = read_model_spec(files.directory)
    adapter = write_adapter(tmp_path / "adapter", spec, rank=5)
    batch = batch_of([CHUNK])
    found = []
    for directory, form in ((files.directory, CODES), (files.decoded, FLOATS)):
        decoder = load_decoder(spec, LoadPlan(directory, form), kernels)
        weights = load_adapter(spec, adapter, kernels, CPU)
        found.append(logits_of(decoder, adapted(decoder, batch, [weights], [0] * 19)))
    size = float(found[1].std())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=size * ROUNDING[kernels.name])
    with pytest.raises(InvalidConfiguration, match=r"weights are quantised .*tandem merge needs"):
        merge_adapter(files.directory, tmp_path / "adapter", tmp_path / "merged")


def test_an_encoder_made_of_one_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path, FORMATS["awq"])
    with pytest.raises(InvalidConfiguration, match=r"quantised .*awq.*; an encoder needs"):
        read_headless_spec(files.directory)
