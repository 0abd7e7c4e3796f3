"""What is read of quantised checkpoints, against their formats' definitions, field by field."""

import pytest
import torch

from tandem.models.checkpoint import SafetensorsWeights
from tandem.models.configuration import read_model_spec
from tandem.models.formats.choose import read_quantization
from tandem.models.formats.weights import QuantizedWeights
from tandem.models.parameters import all_parts, decoder_parts
from tests.models.formats.written import FORMATS, Written, write

NAMES = list(FORMATS)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Written] = {}

    def get(name: str) -> Written:
        if name not in made:
            made[name] = write(tmp_path_factory.mktemp("format"), FORMATS[name])
        return made[name]

    return get


def opened(checkpoint: SafetensorsWeights) -> QuantizedWeights:
    found = read_quantization(checkpoint.directory)
    assert found is not None
    return QuantizedWeights(checkpoint, found.format)


def slices(extent: int, *cuts: int) -> list[slice]:
    return [slice(None), *(slice(at, min(at + 1 + extent // 3, extent)) for at in cuts)]


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_definition(name: str, written) -> None:
    """Each to a rounding of float32, whole and in slices that cut words, blocks and groups."""
    files = written(name)
    parts = {part.name: part for part in all_parts(decoder_parts(read_model_spec(files.directory)))}
    with SafetensorsWeights(files.directory) as checkpoint:
        source = opened(checkpoint)
        source.check(parts.values(), frozenset())
        for each, wanted_NC in files.values.items():
            outputs, inputs = wanted_NC.shape
            for rows in slices(outputs, 3, 17):
                for columns in slices(inputs, 8, 21):
                    found = source.read(parts[each], rows, columns)
                    torch.testing.assert_close(
                        found, wanted_NC[rows, columns], rtol=1e-6, atol=1e-9
                    )


@pytest.mark.parametrize("name", NAMES)
def test_codes_mean_the_same(name: str, written) -> None:
    """In groups as they are stored, and in smaller ones where a slice cuts them."""
    files, made = written(name), FORMATS[name]
    parts = {part.name: part for part in all_parts(decoder_parts(read_model_spec(files.directory)))}
    with SafetensorsWeights(files.directory) as checkpoint:
        source = opened(checkpoint)
        for each, wanted_NC in files.values.items():
            for columns in (slice(None), slice(0, 32), slice(16, 48), slice(24, 64)):
                coded = source.read_coded(parts[each], slice(5, 29), columns)
                if not made.bits:
                    assert coded is None
                    continue
                assert coded is not None and coded.bits == made.bits
                assert (coded.offset is None) is made.symmetric
                torch.testing.assert_close(
                    coded.values(), wanted_NC[5:29, columns], rtol=1e-5, atol=1e-6
                )
            if made.bits:
                # The kernels cannot pack codes in groups that cut a word.
                whole, cut = (
                    source.read_coded(parts[each], columns=each_slice)
                    for each_slice in (slice(None), slice(1, 35))
                )
                assert whole is not None and (cut is not None) is whole.whole_rows


def test_plain_tensors_are_read_as_they_are(written) -> None:
    files = written("awq")
    parts = decoder_parts(read_model_spec(files.directory))
    with SafetensorsWeights(files.directory) as checkpoint:
        source = opened(checkpoint)
        assert source.read(parts.final_norm).dtype is torch.float16
        assert source.read_coded(parts.embedding) is None
        assert source.read(parts.embedding).shape == parts.embedding.shape
