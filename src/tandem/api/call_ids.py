"""Which call the running task works for, for whoever writes a log."""

from contextvars import ContextVar
from typing import NamedTuple


class CallIds(NamedTuple):
    """What the answer's `X-Request-Id` says, and in which trace the call is (empty: in none)."""

    request_id: str
    trace_id: str


# Set by the layer that names calls; each call has a task of its own.
CALL_IDS: ContextVar[CallIds | None] = ContextVar("tandem_call_ids", default=None)
