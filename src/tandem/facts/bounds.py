"""Bounded types of what other processes send: msgspec checks the bounds as it decodes a message."""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, lt=1 << 48)]
# A count of what there must be.
Size = Annotated[int, Meta(gt=0, lt=1 << 48)]
Token = Annotated[int, Meta(ge=0, lt=1 << 32)]
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
# Three thousand days.
Nanoseconds = Annotated[int, Meta(ge=0, lt=1 << 58)]
PositiveNanoseconds = Annotated[int, Meta(gt=0, lt=1 << 58)]
Name = Annotated[str, Meta(min_length=1)]
