"""Things whose end has a name of its own, as context managers."""

import contextlib
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
ENDS = (
    "stop_transfers",
    "close_connector",
    "release_region",
    "close_stream",
    "close_store",
    "stop_tiers",
    "close",
)


class closing(contextlib.AbstractContextManager[Thing], Generic[Thing]):
    """As `contextlib.closing`, whatever the end is called."""

    def __init__(self, thing: Thing) -> None:
        self.thing = thing

    def __enter__(self) -> Thing:
        return self.thing

    def __exit__(self, *_: object) -> None:
        next(getattr(self.thing, name) for name in ENDS if hasattr(self.thing, name))()
