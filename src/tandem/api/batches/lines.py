"""Lines of a batch: the requests in its input file, and their answers in its output file."""

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw, Struct

from tandem.api.batches.bodies import BatchProblem

# What is told of a file that is no batch: the rest is probably alike.
MOST_PROBLEMS = 20
CUSTOM_ID_CHARS = 512
_LINE_DIGITS = 8
_SHOWN_CHARS = 64
_LINE_ENDS = [(end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029"]
# So much is looked at in one go: a few milliseconds of a thread, which others wait for.
_GO_BYTES = 64 << 10


class InputLine(Struct, kw_only=True):
    """A request. What else stands there means nothing."""

    custom_id: str
    method: str
    url: str
    body: Raw


class BodyHead(Struct, kw_only=True):
    """What must be known of a request before it runs."""

    model: Any = None
    stream: Any = None


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A request, and what must be known of it."""

    sent: InputLine
    head: BodyHead


class LineResponse(Struct, kw_only=True):
    """What an endpoint answered."""

    status_code: int
    request_id: str
    body: Raw

    @property
    def succeeded(self) -> bool:
        return self.status_code < 400


class LineError(Struct, kw_only=True):
    """Why a request never ran."""

    code: str
    message: str


class OutputLine(Struct, kw_only=True):
    """The answer to a request; `response` or `error` is there."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineError | None = None


class _LineName(Struct):
    id: str


@dataclass(slots=True)
class LineIndex:
    """Where the requests of a file lie, by their numbers from 0; blank lines are none. All of them
    ask for one `model`, None where they name none."""

    starts: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    problems: list[BatchProblem] = field(default_factory=list)
    model: str | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, descriptor: int, number: int) -> bytes:
        """A request, of the file that this is the index of; from any thread."""
        return os.pread(descriptor, self.lengths[number], self.starts[number])


@dataclass(frozen=True, slots=True)
class LineRules:
    """What the requests of a batch must be. `model_problem` says what is wrong with a model that a
    request names (None: nothing)."""

    endpoint: str
    most_lines: int
    most_bytes: int
    model_problem: Callable[[str], str | None]


class LineChecker:
    """Checks the requests of one file, one after the other, and finds where they lie."""

    def __init__(self, rules: LineRules) -> None:
        self.index = LineIndex()
        self._rules = rules
        self._start = self._place = 0
        # Digests: names may be long.
        self._names: set[bytes] = set()
        self._has_model = False

    def read_some(self, file: BinaryIO) -> bool:
        """The next lines of the file, into the index. Gives whether there may be more."""
        end = self._start + _GO_BYTES
        while self._start < end:
            line = file.readline(self._rules.most_bytes + 1)
            if not line or not self._take(line):
                return self._whole()
        return len(self.index.problems) < MOST_PROBLEMS

    def _whole(self) -> bool:
        index = self.index
        if not index.starts and not index.problems:
            index.problems.append(_problem("empty_file", "the file has no requests"))
        return False

    def _take(self, line: bytes) -> bool:
        """Gives whether the rest of the file is worth a look."""
        index, rules = self.index, self._rules
        self._place += 1
        if len(line) > rules.most_bytes:
            problem = f"the line has more than {rules.most_bytes} bytes"
            index.problems.append(_problem("line_too_large", problem, self._place))
            return False
        if line.strip():
            if len(index) == rules.most_lines:
                problem = f"a batch has at most {rules.most_lines} requests"
                index.problems.append(_problem("too_many_tasks", problem, self._place))
                return False
            index.starts.append(self._start)
            index.lengths.append(len(line))
            if (wrong := self._problem_of(line, self._place)) is not None:
                index.problems.append(wrong)
        self._start += len(line)
        return True

    def _problem_of(self, line: bytes, place: int) -> BatchProblem | None:
        try:
            read = read_line(line)
        except ValueError as error:
            return _problem("invalid_json_line", f"the line is no request: {error}", place)
        sent = read.sent
        if not 0 < len(sent.custom_id) <= CUSTOM_ID_CHARS:
            problem = f"must have 1 to {CUSTOM_ID_CHARS} characters"
            return _problem("invalid_custom_id", f"custom_id {problem}", place, "custom_id")
        name = blake2b(sent.custom_id.encode(), digest_size=16).digest()
        if name in self._names:
            problem = f"custom_id {sent.custom_id[:_SHOWN_CHARS]!r} is there twice"
            return _problem("duplicate_custom_id", problem, place, "custom_id")
        self._names.add(name)
        if sent.method != "POST":
            return _problem("invalid_method", "method must be POST", place, "method")
        if sent.url != self._rules.endpoint:
            problem = f"url must be {self._rules.endpoint}, the endpoint of the batch"
            return _problem("mismatched_endpoint", problem, place, "url")
        return self._problem_of_model(read.head.model, place)

    def _problem_of_model(self, model: object, place: int) -> BatchProblem | None:
        if model is not None and not isinstance(model, str):
            return _problem("invalid_value", "model must be a text", place, "body.model")
        if self._has_model and model != self.index.model:
            problem = "all requests of a batch must have the same model"
            return _problem("mismatched_model", problem, place, "body.model")
        if self._has_model or model is None:
            self._has_model = True
            return None
        self._has_model, self.index.model = True, model
        problem_of_model = self._rules.model_problem(model)
        if problem_of_model is None:
            return None
        return _problem("model_not_found", problem_of_model, place, "body.model")


def parse_line(line: bytes) -> InputLine:
    """Raises `ValueError`."""
    try:
        return msgspec.json.decode(line, type=InputLine)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)[:200]) from error


def read_line(line: bytes) -> ReadLine:
    """Raises `ValueError`."""
    sent = parse_line(line)
    try:
        return ReadLine(sent, msgspec.json.decode(sent.body, type=BodyHead))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)[:200]) from error


def output_line(line: OutputLine) -> bytes:
    """One line of a file of answers, with its end. What some readers take for the end of a line
    can only stand within texts and between values, where it means the same as this."""
    data = msgspec.json.encode(line).replace(b"\n", b" ")
    for end, escaped in _LINE_ENDS:
        data = data.replace(end, escaped)
    return data + b"\n"


def line_id(batch_id: str, number: int) -> str:
    """The name of the answer to a request: always the same, so that it is found again."""
    return f"batch_req_{batch_id.removeprefix('batch_')}{number:0{_LINE_DIGITS}x}"


def answered_number(line: bytes) -> int | None:
    """The number of the request that a line of an output file answers; None where it is none."""
    try:
        return int(msgspec.json.decode(line, type=_LineName).id[-_LINE_DIGITS:], 16)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
        return None


def _problem(
    code: str, text: str, place: int | None = None, param: str | None = None
) -> BatchProblem:
    return BatchProblem(code=code, message=text, line=place, param=param)
