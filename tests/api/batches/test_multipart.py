"""Forms come in any pieces, and mean the same; what is none is said to be none."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.api.batches.multipart import (
    HEAD_BYTES,
    FormReader,
    NotMultipart,
    PartBegan,
    PartData,
    PartEnded,
)

TYPE = "multipart/form-data; boundary=b-1"


def read(data: bytes, cuts: list[int] = (), content_type: str = TYPE):
    """The parts, with all of their data; and whether the form is whole."""
    reader, parts, current = FormReader(content_type), [], None
    edges = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    for begin, end in pairwise(edges):
        for event in reader.feed(data[begin:end]):
            if isinstance(event, PartBegan):
                current = [event.name, event.filename, b""]
            elif isinstance(event, PartData):
                current[2] += event.data
            else:
                assert isinstance(event, PartEnded)
                parts.append(tuple(current))
    return parts, reader.is_whole


def part(name: str, data: bytes, more: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return b"--b-1\r\n" + head.encode() + data + b"\r\n"


PIECES = st.sampled_from([b"\r\n", b"--b-1", b"\r\n--b-", b"-", b"\n", b"\r", b"x", b"\x00\xff"])
DATA = st.lists(PIECES, max_size=12).map(b"".join).filter(lambda data: b"\r\n--b-1" not in data)


@given(st.lists(DATA, max_size=4), st.lists(st.integers(0, 4000), max_size=30))
def test_pieces_mean_what_the_whole_means(bodies, cuts):
    form = b"".join(part(f"n{at}", data) for at, data in enumerate(bodies))
    form = b"preamble\r\n" + form + b"--b-1--\r\nepilogue"
    parts, is_whole = read(form, cuts)
    assert parts == [(f"n{at}", None, data) for at, data in enumerate(bodies)]
    assert is_whole


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_nothing_else_is_raised_for_anything(data, cuts):
    for sent in (data, b"--b-1\r\n" + data, part("a", data) + data):
        with suppress(NotMultipart):
            read(sent, cuts)


@pytest.mark.parametrize(
    ("more", "filename"),
    [
        ('; filename="in.jsonl"', "in.jsonl"),
        ("; filename=in.jsonl", "in.jsonl"),
        (r'; filename="a\"b\\c"', r"a\"b\c".replace(r"\"", '"')),
        ('; filename="日本.jsonl"', "日本.jsonl"),
        ("; filename*=utf-8''%E6%97%A5.jsonl", "日.jsonl"),
        ('; filename=""', ""),
        ("", None),
    ],
)
def test_file_names(more, filename):
    parts, _ = read(part("file", b"x", more) + b"--b-1--")
    assert parts == [("file", filename, b"x")]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (b"--b-1x\r\n", "behind a boundary"),
        (b"--b-1\r\nContent-Type: text/plain\r\n\r\n", "no Content-Disposition"),
        (b"--b-1\r\nContent-Disposition: form-data\r\n\r\n", "no name"),
        (b'--b-1\r\nContent-Disposition: attachment; name="a"\r\n\r\n', "no form-data"),
        (b"--b-1\r\nContent-Disposition: \xff\r\n\r\n", "UTF-8"),
        (b"--b-1\r\n" + b"x" * (HEAD_BYTES + 1), "more than"),
        (part("a", b"") * 17, "16 parts"),
    ],
)
def test_what_is_no_form(form, problem):
    with pytest.raises(NotMultipart, match=problem):
        read(form)


@pytest.mark.parametrize("kind", ["multipart/form-data", 'multipart/form-data; boundary=""'])
def test_a_form_has_a_boundary(kind):
    with pytest.raises(NotMultipart, match="boundary"):
        FormReader(kind)


def test_a_form_that_breaks_off_is_not_whole():
    assert not read(part("a", b"x"))[1]
    assert read(part("a", b"x") + b"--b-1--", content_type='multipart/form-data; boundary="b-1"')[1]
