"""The parser of server-sent events gives the same payloads however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bench.responses import EventParser

STREAM = (
    ': a comment\r\ndata: {"a": "é"}\r\n\r\nevent: x\ndata:no space\n\ndata: two\ndata: lines\n\n'
    "id: 3\rdata: by return\r\rdata\n\n\n\ndata: \n\ndata: [DONE]\n\n"
).encode()
PAYLOADS = ['{"a": "é"}'.encode(), b"no space", b"two\nlines", b"by return", b"", b"[DONE]"]


def parse(pieces: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [payload for piece in pieces for payload in parser.feed(piece)]


def test_one_piece() -> None:
    assert parse([STREAM]) == PAYLOADS


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_cut_anywhere_in_two(cut: int) -> None:
    assert parse([STREAM[:cut], STREAM[cut:]]) == PAYLOADS


def test_byte_by_byte_with_empty_pieces_between() -> None:
    pieces = [piece for byte in STREAM for piece in (bytes([byte]), b"")]
    assert parse(pieces) == PAYLOADS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cut_in_many(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert parse(pieces) == PAYLOADS


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20), max_size=10
    )
)
def test_any_payloads_return(texts: list[str]) -> None:
    stream = "".join(f"data: {text}\n\n" for text in texts).encode()
    assert parse([stream[i : i + 7] for i in range(0, len(stream), 7)]) == [
        text.encode() for text in texts
    ]


def test_an_unfinished_event_is_not_given() -> None:
    assert parse([b"data: half"]) == []
    assert parse([b"data: half\n"]) == []
