"""A low-rank adapter (LoRA) as a request names it: by its content, and with what it takes to load
it anywhere."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tandem.facts.bounds import Count

DIGEST_CHARS = 32
AdapterDigest = Annotated[
    str, Meta(min_length=DIGEST_CHARS, max_length=DIGEST_CHARS, pattern="^[0-9a-f]*$")
]


@dataclass(frozen=True, slots=True)
class Adapter:
    """`digest` is that of all that decides what the adapter computes, so that whoever loads it from
    the folder `path` knows whether it is this one; its matrices have `weight_bytes`."""

    digest: AdapterDigest
    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    weight_bytes: Count


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter under the `name` by which clients ask for it."""

    name: str
    adapter: Adapter
    created_s: int = 0
