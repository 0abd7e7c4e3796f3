"""The port of dispatch policies: how prefill and decode of a request are placed on workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tandem.policy.routing.contract import Route
from tandem.policy.views import RequestView, WorkerView


class Placement(StrEnum):
    """LOCAL: the decode worker prefills too. DIRECT: this prefill worker, now. QUEUED: into the
    global prefill queue, whose head goes to the next prefill worker with room."""

    LOCAL = "local"
    DIRECT = "direct"
    QUEUED = "queued"


class Transfer(StrEnum):
    """PUSH: blocks leave as chunks are computed. PULL: the decode worker reads them at the end."""

    PUSH = "push"
    PULL = "pull"


class FirstToken(StrEnum):
    """Who draws the first token of a request whose prompt one worker computes for another. SENT:
    whoever computed the prompt, at once. RECOMPUTED: whoever decodes, from the KV that has come;
    the other's draw is thrown away, unless the answer ends with it."""

    SENT = "sent"
    RECOMPUTED = "recomputed"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The decision with its reason in words. `prefill` is empty when QUEUED."""

    placement: Placement
    transfer: Transfer
    prefill: str
    decode: str
    reason: str


class Dispatching(Protocol):
    """Pure. A LOCAL answer sets `prefill` to the decode worker's id."""

    def decide(
        self, request: RequestView, route: Route, workers: Sequence[WorkerView], now_ns: int
    ) -> Dispatch: ...
