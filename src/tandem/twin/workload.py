"""Turns the rows of a trace into requests: token ids that share what the rows share, sessions whose
turns wait for each other, gangs of parallel answers."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.facts.request import Request, session_key
from tandem.facts.sampling import SamplingParameters
from tandem.facts.trace import TraceRow

# A block of the trace is filled with one token id of its own; what no block covers, and every
# answer, has ids that no block and no other request has. The ids only ever meet in block hashes.
VOCABULARY_TOKENS = 1 << 32
OWN_PROMPTS = 1 << 30
ANSWERS = 1 << 31


@dataclass(frozen=True, slots=True)
class Turn:
    """One row of the trace with its place in it. `answers` requests are made of it at once."""

    index: int
    row: TraceRow

    def request_ids(self) -> list[str]:
        if self.row.answers == 1:
            return [f"r{self.index}"]
        return [f"r{self.index}.{answer}" for answer in range(self.row.answers)]


class Workload:
    """The rows as first turns, each with what follows it in its session."""

    def __init__(self, rows: Sequence[TraceRow]) -> None:
        self._block_serials: dict[int, int] = {}
        self._followers: dict[int, int] = {}
        self._rows = rows
        self.first_turns: list[Turn] = []
        last_of_session: dict[str, int] = {}
        for index, row in enumerate(rows):
            before = last_of_session.get(row.session) if row.session else None
            if before is None:
                self.first_turns.append(Turn(index, row))
            else:
                self._followers[before] = index
            if row.session:
                last_of_session[row.session] = index
        self.first_turns.sort(key=lambda turn: (turn.row.arrival_s, turn.index))

    @property
    def requests(self) -> int:
        return sum(row.answers for row in self._rows)

    def follower(self, turn: Turn) -> Turn | None:
        """The turn that its session sends after this one ended."""
        index = self._followers.get(turn.index)
        return None if index is None else Turn(index, self._rows[index])

    def prompt(self, turn: Turn) -> "array[int]":
        """The token ids of a row's prompt."""
        row = turn.row
        known = self._block_serials
        block_ids = row.block_ids[: -(-row.prompt_tokens // row.block_tokens)]
        serials = [known.setdefault(block_id, len(known)) for block_id in block_ids]
        counts = [row.block_tokens] * len(serials)
        # The last block may be only partly filled, or there is more than the blocks say.
        left_tokens = row.prompt_tokens - sum(counts)
        if left_tokens < 0:
            counts[-1] += left_tokens
            left_tokens = 0
        serials.append(OWN_PROMPTS + turn.index)
        counts.append(left_tokens)
        return array("I", np.repeat(np.array(serials, np.uint32), counts).tobytes())

    def requests_of(self, turn: Turn, priority: int) -> Iterator[Request]:
        """The requests of a turn, all with the same prompt."""
        prompt = self.prompt(turn)
        sampling = SamplingParameters(max_tokens=max(1, turn.row.output_tokens))
        for choice, request_id in enumerate(turn.request_ids()):
            yield Request(
                request_id=request_id,
                prompt_tokens=prompt,
                sampling=sampling,
                priority=priority,
                tenant=turn.row.tenant,
                account=turn.row.tenant,
                choice=choice,
                session=session_key(turn.row.tenant, turn.row.session),
            )


def answer_token(serial: int) -> int:
    """The one token id that the answer of request `serial` is made of."""
    return ANSWERS + serial % ANSWERS
