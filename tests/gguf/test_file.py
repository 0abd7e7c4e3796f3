"""The container: what well-made files hold is read, and of all others one line tells."""

import struct

import numpy as np
import pytest

import gguf
from gguf import GGMLQuantizationType as Type
from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.file import open_gguf
from tandem.gguf.names import first_shard, is_gguf, model_stem, shard_paths
from tandem.gguf.tensor_types import TENSOR_TYPES, UNREADABLE_TYPES

U32, STRING, ARRAY = 4, 8, 9


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name, shape=(32,), kind=0, at=0):
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + axes + struct.pack("<IQ", kind, at)


def header(*pieces, tensors=0, pairs=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, pairs) + b"".join(pieces)


@pytest.fixture
def opened(tmp_path):
    """Opens a file of these bytes."""

    def put(content):
        path = tmp_path / "some.gguf"
        path.write_bytes(content)
        return open_gguf(path)

    return put


@pytest.fixture
def refusal(opened, tmp_path):
    """What is said of a file of these bytes."""

    def refused(content):
        with pytest.raises(InvalidConfiguration) as caught:
            opened(content)
        told = str(caught.value)
        assert "\n" not in told
        assert told.startswith(str(tmp_path / "some.gguf"))
        return told

    return refused


def test_values_arrays_and_tensors(tmp_path):
    path = tmp_path / "some.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for width in (8, 16, 32, 64):
        getattr(writer, f"add_uint{width}")(f"u{width}", 2**width - 1)
        getattr(writer, f"add_int{width}")(f"i{width}", -(2 ** (width - 1)))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("name", "é日")
    writer.add_array("texts", ["a", "", "日本"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, 0.25])
    values_RC = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("some", values_RC)
    writer.add_tensor("other", np.ones(5, np.float16), raw_dtype=Type.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = open_gguf(path)
    assert [file.whole(f"u{width}") for width in (8, 16, 32, 64)] == [
        2**width - 1 for width in (8, 16, 32, 64)
    ]
    assert [file.values[f"i{width}"] for width in (8, 64)] == [-128, -(2**63)]
    assert (file.number("f32"), file.number("f64"), file.flag("yes", False)) == (0.5, 0.1, True)
    assert file.text("name") == "é日"
    assert file.texts("texts") == ["a", "", "日本"]
    assert file.numbers("numbers") == [1, -2, 3]
    assert file.numbers("floats") == [0.5, 0.25]
    assert file.texts("missing") == file.numbers("missing") == []
    place = file.tensors["some"]
    assert place.shape == (3, 4)
    assert bytes(file.data[place.start : place.start + place.bytes]) == values_RC.tobytes()
    assert file.tensors["other"].type.name == "F16"


@pytest.mark.parametrize("version", [2, 3])
def test_versions_that_are_written_today(version, opened):
    assert opened(header(version=version)).tensors == {}


def test_block_sizes_are_those_of_the_reference():
    for number, stored in TENSOR_TYPES.items():
        sizes = gguf.GGML_QUANT_SIZES[Type(number)]
        assert (stored.block_weights, stored.block_bytes) == sizes
        assert Type(number).name == stored.name
    known = {kind.value: kind.name for kind in Type if kind.value not in TENSOR_TYPES}
    assert known == UNREADABLE_TYPES


HUGE = 2**63
REFUSED = {
    "nothing": (b"", "cannot be read as GGUF"),
    "another format": (b"PK\x03\x04" + bytes(40), "is no GGUF file; it does not begin with"),
    "half a number": (b"GGUF\x03\x00", "ends before its header"),
    "the first version": (header(version=1), "is a GGUF file of version 1; expected 2 or 3"),
    "big endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "is a big-endian GGUF file; take the little-endian one",
    ),
    "many tensors": (header(tensors=HUGE), "ends before its tensors (9,223,372,036,854,775,808"),
    "many pairs": (header(pairs=HUGE), "ends before its metadata"),
    "a long key": (
        header(struct.pack("<Q", HUGE) + bytes(30), pairs=1),
        "ends before its a name",
    ),
    "a key over lines": (
        header(pair("a\nb", U32, bytes(4)), pairs=1),
        "has a name that is none, of 11 bytes",
    ),
    "a key that is no text": (
        header(struct.pack("<Q", 1) + b"\xff" + bytes(8), pairs=1),
        "has bytes in a name that are no UTF-8",
    ),
    "a long text": (
        header(pair("key", STRING, struct.pack("<Q", HUGE)), pairs=1),
        "ends before its key",
    ),
    "a value of no type": (
        header(pair("key", 13, bytes(8)), pairs=1),
        "holds key as the unknown type 13",
    ),
    "a key twice": (
        header(*[pair("key", U32, bytes(4))] * 2, pairs=2),
        "holds key twice",
    ),
    "a long array": (
        header(pair("key", ARRAY, struct.pack("<IQ", U32, HUGE)), pairs=1),
        "ends before its key (9,223,372,036,854,775,808 promised)",
    ),
    "a long array of texts": (
        header(pair("key", ARRAY, struct.pack("<IQ", STRING, HUGE)), pairs=1),
        "ends before its key",
    ),
    "an array with a long text": (
        header(pair("key", ARRAY, struct.pack("<IQQ", STRING, 2, HUGE) + bytes(8)), pairs=1),
        "ends within key",
    ),
    "an array of arrays": (
        header(pair("key", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(20)), pairs=1),
        "holds key as an array of the unknown type 9",
    ),
    "an odd alignment": (
        header(pair("general.alignment", U32, struct.pack("<I", 24)), pairs=1),
        "general.alignment is 24; expected a power of two",
    ),
    "a tensor without axes": (header(tensor("w", ()), bytes(32), tensors=1), "of 0 axes"),
    "a tensor without rows": (header(tensor("w", (0,)), tensors=1), "of shape [0]"),
    "half a block": (
        header(tensor("w", (40, 2), kind=2), bytes(99), tensors=1),
        "has a tensor w of shape [2, 40]; expected a positive multiple of 32 in rows of Q4_0",
    ),
    "a tensor beyond the end": (
        header(tensor("w"), bytes(100), tensors=1),
        "ends before its tensor w does",
    ),
    "a tensor far beyond the end": (
        header(tensor("w", (HUGE, HUGE)), bytes(200), tensors=1),
        "ends before its tensor w does",
    ),
    "a tensor that is not aligned": (
        header(tensor("w", at=4), bytes(300), tensors=1),
        "has the tensor w at an offset that is not aligned",
    ),
    "a tensor twice": (
        header(*[tensor("w")] * 2, bytes(300), tensors=2),
        "holds the tensor w twice",
    ),
    "a type that is not read": (
        header(tensor("w", kind=17), bytes(300), tensors=1),
        "stores w as IQ2_XS, which Tandem cannot read; take the same model as F32, F16, BF16, Q8_0",
    ),
    "a type of tomorrow": (
        header(tensor("w", kind=99), bytes(300), tensors=1),
        "stores w as type 99, which Tandem cannot read",
    ),
}


@pytest.mark.parametrize(("content", "words"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_refused(content, words, refusal):
    assert words in refusal(content)


def test_a_value_of_another_kind_names_its_key(opened):
    file = opened(
        header(
            pair("number", U32, struct.pack("<I", 7)),
            pair("text", STRING, text("x")),
            pair("array", ARRAY, struct.pack("<IQ", U32, 0)),
            pairs=3,
        )
    )
    for read, words in (
        (lambda: file.whole("text"), "text is 'x'; expected a whole number"),
        (lambda: file.number("text"), "text is 'x'; expected a positive number"),
        (lambda: file.text("number"), "number is 7; expected a text"),
        (lambda: file.flag("number", True), "number is 7; expected true or false"),
        (lambda: file.whole("array"), "array is an array; expected a single value"),
        (lambda: file.texts("array"), "array is an array; expected an array of texts"),
        (lambda: file.whole("absent"), "absent is missing"),
    ):
        with pytest.raises(InvalidConfiguration) as caught:
            read()
        assert words in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidConfiguration, match="No such file"):
        open_gguf(tmp_path / "none.gguf")


def test_names_of_files(tmp_path):
    path = tmp_path / "a-b-00002-of-00003.gguf"
    assert first_shard(path).name == "a-b-00001-of-00003.gguf"
    assert model_stem(path) == "a-b"
    assert model_stem(tmp_path / "Qwen2.5-0.5B.Q4_K_M.gguf") == "Qwen2.5-0.5B.Q4_K_M"
    assert shard_paths(tmp_path / "a.gguf") == (tmp_path / "a.gguf",)
    assert is_gguf(tmp_path / "A.GGUF") and not is_gguf(tmp_path / "a.bin")
    with pytest.raises(InvalidConfiguration, match="is one of 99999 files"):
        shard_paths(tmp_path / "a-00001-of-99999.gguf")
