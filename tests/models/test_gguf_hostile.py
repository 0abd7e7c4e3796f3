"""Whatever is done to a GGUF file, it is read or refused in one line."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.models.configuration import read_model_spec
from tandem.models.footprint import header_shapes
from tandem.models.gguf.weights import GgufWeights
from tandem.models.load import EMBEDDING_AS_HEAD
from tandem.models.parameters import all_parts, decoder_parts
from tandem.text.model import TextModel
from tests.models.gguf_files import Type, write_gguf
from tests.text.tiny_checkpoint import TEMPLATE

TRIES = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# Of the header, where nearly every byte matters.
HEADER_BYTES = 3000


def add_tokenizer(writer):
    tokens = [chr(33 + letter) for letter in range(90)] + ["ab", "<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 91 + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(91)
    writer.add_chat_template(TEMPLATE)


def add_pieces(writer):
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "a", "b", "ab", "<0x0A>"])
    writer.add_token_scores([0.0, 0.0, -1.0, -2.0, -0.5, 0.0])
    writer.add_token_types([2, 3, 1, 1, 1, 6])
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)


@pytest.fixture(scope="module")
def files(checkpoints, tmp_path_factory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("whole")
    llama, qwen2 = (checkpoints(name).directory for name in ("llama3", "qwen2"))
    return [
        write_gguf(folder / "a.gguf", llama, Type.Q8_0, more=add_pieces).read_bytes(),
        write_gguf(folder / "b.gguf", qwen2, more=add_tokenizer).read_bytes(),
    ]


def use(path: Path) -> int:
    """Does with a file what a server does, as far as the file allows; gives how many steps went
    well."""
    done = 0
    for step in (read_model_spec, header_shapes, read_all, TextModel.load):
        try:
            step(path)
            done += 1
        except InvalidConfiguration as error:
            assert "\n" not in str(error)
    return done


def read_all(path: Path) -> None:
    parts = all_parts(decoder_parts(read_model_spec(path)))
    with GgufWeights(path) as weights:
        weights.check(parts, EMBEDDING_AS_HEAD)
        for part in parts:
            weights.read(part)


def test_whole_files_are_read(files, tmp_path):
    for content in files:
        (tmp_path / "some.gguf").write_bytes(content)
        assert use(tmp_path / "some.gguf") == 4


@TRIES
@given(which=st.integers(0, 1), share=st.floats(0, 1, exclude_max=True))
def test_files_cut_short(which, share, files, tmp_path):
    path = tmp_path / "some.gguf"
    path.write_bytes(files[which][: int(share * len(files[which]))])
    assert use(path) == 0


@TRIES
@given(
    which=st.integers(0, 1),
    changes=st.lists(
        st.tuples(st.integers(4, HEADER_BYTES), st.integers(0, 255)), min_size=1, max_size=4
    ),
)
def test_files_with_other_bytes(which, changes, files, tmp_path):
    content = bytearray(files[which])
    for at, byte in changes:
        content[at] = byte
    path = tmp_path / "some.gguf"
    path.write_bytes(content)
    use(path)


@TRIES
@given(
    which=st.integers(0, 1),
    at=st.integers(4, HEADER_BYTES),
    number=st.sampled_from([0, 1, 2, 255, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]),
)
def test_files_with_other_counts(which, at, number, files, tmp_path):
    content = bytearray(files[which])
    content[at : at + 8] = number.to_bytes(8, "little")
    path = tmp_path / "some.gguf"
    path.write_bytes(content)
    use(path)
