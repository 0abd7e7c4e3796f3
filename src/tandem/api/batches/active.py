"""A batch that is open: which of its requests wait, run and are answered, and the two files that
its answers go to. The runner decides what happens when; here it happens."""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.api.batches.bodies import RequestCounts
from tandem.api.batches.disk import Journal
from tandem.api.batches.lines import (
    LineChecker,
    LineError,
    LineIndex,
    LineResponse,
    LineRules,
    OutputLine,
    ReadLine,
    answered_number,
    line_id,
    output_line,
    parse_line,
    read_line,
)
from tandem.api.batches.records import BatchRecord
from tandem.api.batches.store import BatchStore

# Of requests that never ran, written at a time.
_GROUP = 1024


@dataclass(slots=True)
class Answers:
    """A file of answers, and the requests that it has one of."""

    file_id: str
    journal: Journal
    numbers: set[int] = field(default_factory=set)


class ActiveBatch:
    """Its files are used by one thread at a time: the runner waits for each of these methods before
    it calls another, but for `read_request`."""

    def __init__(self, store: BatchStore, record: BatchRecord) -> None:
        """Opens nothing yet; whoever does says when it is `opened`."""
        self.batch_id, self.owner = record.batch_id, record.owner
        self.index = LineIndex()
        self.opened = False
        self.waiting: deque[int] = deque()
        self.running: dict[int, asyncio.Task[None]] = {}
        # Answered, not on the disk yet.
        self.unwritten: list[tuple[int, LineResponse]] = []
        self.work: asyncio.Task[None] | None = None
        self.paused_until_s = self.blocked_until_s = 0.0
        self._store, self._record = store, record
        self._input: int | None = None
        self._output: Answers | None = None
        self._errors: Answers | None = None

    @property
    def counts(self) -> RequestCounts:
        """Of what is on the disk."""
        return RequestCounts(
            total=len(self.index),
            completed=len(self._output.numbers) if self._output else 0,
            failed=len(self._errors.numbers) if self._errors else 0,
        )

    async def open(self, rules: LineRules) -> None:
        """Its requests are known, and which of them have answers. The index says what is wrong with
        them. Raises `OSError`, `FileNotFoundError` where they are gone; it may be tried again."""
        self.close()
        self.waiting.clear()
        path = self._store.data_path(self._record.input_file_id)
        self._input = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        checker = LineChecker(rules)
        with open(self._input, "rb", closefd=False) as lines:
            while await asyncio.to_thread(checker.read_some, lines):
                pass
        self.index = checker.index
        if self.index.problems:
            return
        await asyncio.to_thread(self._open_answers)
        for answers in (self._output, self._errors):
            if answers is not None:
                self._store.hold_size(answers.file_id, self.owner, answers.journal.size_bytes)

    def _open_answers(self) -> None:
        self._output = self._answers(self._record.output_file_id)
        self._errors = self._answers(self._record.error_file_id)
        done = self._output.numbers | self._errors.numbers
        self.waiting.extend(number for number in range(len(self.index)) if number not in done)

    def _answers(self, file_id: str) -> Answers:
        numbers: set[int] = set()
        others = self._output.numbers if self._output is not None else set()

        def accept(line: bytes) -> bool:
            number = answered_number(line)
            if number is None or number in others or number >= len(self.index):
                return False
            is_new = number not in numbers
            numbers.add(number)
            return is_new

        return Answers(file_id, Journal(self._store.data_path(file_id), accept), numbers)

    async def read_request(self, number: int) -> ReadLine:
        """As it was sent. Raises `OSError`, and `ValueError` where the file is another by now."""
        return await asyncio.to_thread(self._read, number)

    def _read(self, number: int) -> ReadLine:
        assert self._input is not None
        return read_line(self.index.read(self._input, number))

    async def write(self) -> None:
        """What is unwritten goes to the disk. Raises `OSError`, and then it still is."""
        assert self._output is not None and self._errors is not None
        group = list(self.unwritten)
        for answers, fits in ((self._output, True), (self._errors, False)):
            lines = [(number, each, None) for number, each in group if each.succeeded is fits]
            await self._append(answers, lines)
            written = answers.numbers
            self.unwritten = [each for each in self.unwritten if each[0] not in written]

    async def give_up(self, error: LineError) -> None:
        """Whatever waits is written down as never having run, as far as its owner has room. Raises
        `OSError`."""
        assert self._errors is not None
        while self.waiting and self._store.has_room_for(self.owner):
            group = [self.waiting[at] for at in range(min(_GROUP, len(self.waiting)))]
            await self._append(self._errors, [(number, None, error) for number in group])
            for _ in group:
                self.waiting.popleft()

    async def publish(self) -> tuple[bool, bool]:
        """Shows the files of answers that hold something, and says which do. Raises `OSError`."""
        assert self._output is not None and self._errors is not None
        shown = []
        for answers, what in ((self._output, "output"), (self._errors, "errors")):
            size_bytes = answers.journal.size_bytes
            shown.append(bool(size_bytes))
            if size_bytes:
                await self._store.publish(self._record, answers.file_id, size_bytes, what)
            else:
                await self._store.discard_data(answers.file_id)
        return shown[0], shown[1]

    def close(self) -> None:
        """Nothing else runs any more."""
        for answers in (self._output, self._errors):
            if answers is not None:
                answers.journal.close()
        if self._input is not None:
            os.close(self._input)
        self._output = self._errors = self._input = None

    async def _append(
        self,
        answers: Answers,
        lines: Sequence[tuple[int, LineResponse | None, LineError | None]],
    ) -> None:
        if not lines:
            return
        data = await asyncio.to_thread(self._written, answers.journal, lines)
        self._store.hold_size(answers.file_id, self.owner, data)
        answers.numbers.update(number for number, _, _ in lines)

    def _written(
        self,
        journal: Journal,
        lines: Sequence[tuple[int, LineResponse | None, LineError | None]],
    ) -> int:
        assert self._input is not None
        encoded = [
            output_line(
                OutputLine(
                    id=line_id(self.batch_id, number),
                    custom_id=parse_line(self.index.read(self._input, number)).custom_id,
                    response=response,
                    error=error,
                )
            )
            for number, response, error in lines
        ]
        journal.append(b"".join(encoded))
        return journal.size_bytes
