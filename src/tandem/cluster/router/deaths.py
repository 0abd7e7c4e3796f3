"""Poison requests: which request kills its workers, found with few deaths, and when it is given up.

A worker that dies takes down every request in it, and nothing shows which one was to blame, if any:
somebody may just have killed the process. What is known is who was there. This is how the one is
found with few deaths, and how the others get through:

1. Whoever was at a worker that died (its prompt or answer was computed there, or its KV handed
   over; not who waited in the gateway's queue) is held to have been there once more. The first time
   that has no consequence: all go on elsewhere at once.
2. Whoever gets `CLEARING_TOKENS` further than it was is cleared. An answer is a function of prompt,
   parameters and position, so a request that kills a worker at a position kills the next one there
   too; what a worker had drawn and could not report any more is fewer tokens than that.
3. Whoever was there twice in a row, without having been cleared in between, is a suspect. No two
   suspects are at one worker: they start one by one where no other is, and wait for that in the
   gateway. Others share workers with suspects as with anybody.
4. A death is a request's own if it was the only suspect there, or the only request at all. After
   two of its own in a row a request ends, with an error.
5. Whoever was there besides at the first of these is a suspect from then on: it may have been the
   one as well, and the only suspect an innocent one. So the two never go on together, and no
   neighbour lends a suspect its second death.
6. Where a request comes to a worker because another died, and this one dies within
   `COINCIDENCE_NS` without a report since: then both may have died together, by one hand or with
   their machine, before the request came. That is no evidence about the request. A worker that
   takes such a request up therefore reports at once.

So a request that kills its workers ends after two deaths if it is alone, and after four at most
among others. Of these the first two made no difference between it and its neighbours; they are
suspects now, run apart from it for a few tokens each, and are cleared. A neighbour is never given
up for one such request: it would have to be the only suspect at a death twice, and from the second
death on the guilty one is a suspect, too. With several of them about, two that are no suspects yet
would have to meet it one after the other. Whoever kills workers by hand has to hit the same request
four times (three, if the first was beside a suspect; two, if it is alone) within a few tokens to
end it; `MOST_DEATHS`, counting all, bounds what a request can do that dies at ever later positions,
or before its worker can report anything.

Each gateway judges its own requests: with several of them a death may be explained in each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

CLEARING_TOKENS = 8
SUSPECT_DEATHS = 2
OWN_DEATHS = 2
MOST_DEATHS = 16
COINCIDENCE_NS = 2_000_000_000


@dataclass(slots=True)
class Deaths:
    """Of workers that one request was at: in all, in a row since it last got ahead, and how many of
    those were its own; whether it was `beside` another at the first of that one's own. It is ahead
    again once `clear_at` tokens of it are known. The last one was at `last_ns`; `reported` are the
    workers that have reported since it was sent to them after that."""

    total: int = 0
    in_a_row: int = 0
    own: int = 0
    beside: bool = False
    clear_at: int = 0
    last_ns: int = 0
    reported: set[str] = field(default_factory=set)

    @property
    def suspect(self) -> bool:
        return self.beside or self.in_a_row >= SUSPECT_DEATHS

    @property
    def enough(self) -> bool:
        return self.own >= OWN_DEATHS or self.total >= MOST_DEATHS

    def is_evidence(self, worker: str, now_ns: int) -> bool:
        """Whether the death of this worker is evidence about the request."""
        if not self.total or worker in self.reported:
            return True
        return now_ns - self.last_ns >= COINCIDENCE_NS

    def add(self, worker: str, known_tokens: int, now_ns: int, *, beside: bool = False) -> None:
        """One more, when so many tokens of the request were known."""
        is_evidence = self.is_evidence(worker, now_ns)
        self.in_a_row += is_evidence
        self.beside = self.beside or (beside and is_evidence)
        self.total += 1
        self.clear_at = max(self.clear_at, known_tokens + CLEARING_TOKENS)
        self.last_ns = now_ns
        self.reported.clear()

    def clears(self, known_tokens: int) -> bool:
        """Forget what was held against the request if it got ahead. Whether it was a suspect until
        now."""
        if not self.in_a_row or known_tokens < self.clear_at:
            return False
        was_suspect = self.suspect
        self.in_a_row = self.own = 0
        self.beside = False
        return was_suspect


class HasDeaths(Protocol):
    """A request as it matters here."""

    deaths: Deaths

    @property
    def known_tokens(self) -> int: ...


def blame(present: Sequence[HasDeaths], worker: str, now_ns: int) -> None:
    """A worker died with these in it."""
    suspects = [each for each in present if each.deaths.suspect]
    candidates = suspects or present
    accused = candidates[0] if len(candidates) == 1 else None
    undecided = False
    if accused is not None and accused.deaths.is_evidence(worker, now_ns):
        accused.deaths.own += 1
        undecided = not accused.deaths.enough
    for each in present:
        beside = undecided and each is not accused
        each.deaths.add(worker, each.known_tokens, now_ns, beside=beside)


def reason_of(deaths: Deaths) -> str:
    """The error for its client, once it is enough."""
    return (
        f"{deaths.total} workers died one after the other while they ran this request, so it is "
        "not tried again"
    )
