"""A reader of `multipart/form-data` (RFC 7578), fed piece by piece: it keeps no more than the head
of a part, so that a file of any size passes through. It knows neither sockets nor disks."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import unquote

MOST_PARTS = 16
HEAD_BYTES = 8 << 10
_PADDING_BYTES = 64
_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
# Possessive: linear time on any input.
_PARAMETER = re.compile(r';\s*+([a-z]++\*?)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^;\s"]*+))', re.I)


class NotMultipart(Exception):
    """What is sent is no form; the text says why."""


@dataclass(frozen=True, slots=True)
class PartBegan:
    """A field of the form; `filename` is None for one that is no file."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    """The next bytes of the part that began last."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnded:
    """The part that began last is whole."""


Event = PartBegan | PartData | PartEnded


class _Place(Enum):
    PREAMBLE = auto()
    BOUNDARY = auto()
    HEAD = auto()
    BODY = auto()
    EPILOGUE = auto()


class FormReader:
    """Raises `NotMultipart` for a content type without a boundary."""

    def __init__(self, content_type: str) -> None:
        found = _BOUNDARY.search(content_type)
        if found is None:
            raise NotMultipart("Content-Type names no boundary")
        try:
            boundary = (found[1] or found[2]).encode("ascii")
        except UnicodeEncodeError as error:
            raise NotMultipart("the boundary is not plain ASCII") from error
        self._delimiter = b"\r\n--" + boundary
        # As if a line had ended before the first one.
        self._held = b"\r\n"
        self._place = _Place.PREAMBLE
        self._parts = 0

    @property
    def is_whole(self) -> bool:
        return self._place is _Place.EPILOGUE

    def feed(self, data: bytes) -> Iterator[Event]:
        """What these bytes bring. Consume all of it. Raises `NotMultipart`."""
        self._held += data
        while self._place is not _Place.EPILOGUE:
            if self._place in (_Place.BODY, _Place.PREAMBLE):
                is_over = yield from self._read_body()
            elif self._place is _Place.BOUNDARY:
                is_over = self._read_boundary()
            else:
                is_over = yield from self._read_head()
            if not is_over:
                return
        # Whatever follows the last boundary means nothing.
        self._held = b""

    def _read_body(self) -> Generator[Event, None, bool]:
        """Gives whether the part is over, as each of these does of its own."""
        is_part = self._place is _Place.BODY
        end = self._held.find(self._delimiter)
        keeps = end if end >= 0 else max(0, len(self._held) - len(self._delimiter) + 1)
        if is_part and keeps:
            yield PartData(self._held[:keeps])
        self._held = self._held[keeps:]
        if end < 0:
            return False
        if is_part:
            yield PartEnded()
        self._held = self._held[len(self._delimiter) :]
        self._place = _Place.BOUNDARY
        return True

    def _read_boundary(self) -> bool:
        rest = self._held.lstrip(b" \t")
        if self._held.startswith(b"--"):
            self._place = _Place.EPILOGUE
            return True
        if rest.startswith(b"\r\n"):
            self._held, self._place = rest[2:], _Place.HEAD
            return True
        if len(rest) >= 2 or len(self._held) > _PADDING_BYTES:
            raise NotMultipart("something stands behind a boundary")
        return False

    def _read_head(self) -> Generator[Event, None, bool]:
        head, end, rest = self._held.partition(b"\r\n\r\n")
        if len(head) > HEAD_BYTES:
            raise NotMultipart(f"the head of a part has more than {HEAD_BYTES} bytes")
        if not end:
            return False
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise NotMultipart(f"it has more than {MOST_PARTS} parts")
        yield _part_of(head)
        self._held, self._place = rest, _Place.BODY
        return True


def _part_of(head: bytes) -> PartBegan:
    try:
        lines = head.decode("utf-8").split("\r\n")
    except UnicodeDecodeError as error:
        raise NotMultipart("the head of a part is no UTF-8 text") from error
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            break
    else:
        raise NotMultipart("a part has no Content-Disposition")
    kind, semicolon, rest = value.partition(";")
    if kind.strip().lower() != "form-data":
        raise NotMultipart("a part is no form-data")
    given: dict[str, str] = {}
    for key, quoted, plain in _PARAMETER.findall(semicolon + rest):
        given.setdefault(key.lower(), re.sub(r"\\(.)", r"\1", quoted) if quoted else plain)
    if "name" not in given:
        raise NotMultipart("a part has no name")
    filename = given.get("filename")
    if "filename*" in given:
        filename = unquote(given["filename*"].rpartition("'")[2])
    return PartBegan(given["name"], filename)
