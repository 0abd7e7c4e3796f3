"""What gateways of one cluster ask each other, so that each can show all of it. Workers relay
(`RelayToGateway`).

Every question has a number of the asker's own choice, which its answer repeats. An `account` is one
whose own requests are asked for; None for those of everybody.
"""

from msgspec import Struct

from tandem.facts.bounds import Count, Nanoseconds
from tandem.facts.overview import BinCounts, Overview, RequestDetail, RequestLine


class AskOverview(Struct, frozen=True):
    """What the gateway sees, with its last `bins` of time. Answered by `OverviewReported`."""

    question: int
    account: str | None
    bins: Count


class AskRequests(Struct, frozen=True):
    """The latest requests, `most` of them. Answered by `RequestsReported`."""

    question: int
    account: str | None
    most: Count


class AskDetails(Struct, frozen=True):
    """What is known of the requests of this name. Answered by `DetailsReported`."""

    question: int
    account: str | None
    name: str


class OverviewReported(Struct, frozen=True):
    """What one gateway saw at `now_ns` of its own clock. The `overview` has no bins: they are to be
    added up first."""

    question: int
    now_ns: Nanoseconds
    overview: Overview
    bins: tuple[BinCounts, ...]


class RequestsReported(Struct, frozen=True):
    """The latest requests of one gateway."""

    question: int
    lines: tuple[RequestLine, ...]


class DetailsReported(Struct, frozen=True):
    """The requests of the name that one gateway remembers."""

    question: int
    details: tuple[RequestDetail, ...]


ObservationQuestion = AskOverview | AskRequests | AskDetails
ObservationAnswer = OverviewReported | RequestsReported | DetailsReported
# A message's place is its number on the wire: new ones come last.
ObservationMessage = (
    AskOverview | AskRequests | AskDetails | OverviewReported | RequestsReported | DetailsReported
)
