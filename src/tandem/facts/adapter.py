"""A low-rank adapter (LoRA) as a request names it: by its content, and with what it takes to load
it anywhere."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

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


class AdapterMemory(Struct, frozen=True):
    """What the memory of a worker holds of adapters: so many with `held_bytes`, of which at most
    `limit_bytes` as long as the running step needs no more. Since the worker's start `loads` came
    in, and `evictions` went for others."""

    held: Count
    held_bytes: Count
    limit_bytes: Count
    loads: Count = 0
    evictions: Count = 0


# So many adapters are named at most: thousands of names would be of no use to whoever reads them.
MOST_NAMED = 256


class AdapterFigures(Struct, frozen=True):
    """The adapters of one worker, by digest and in order: those with requests that `running`
    sequences compute (of `most_running` at once), and those with requests that are `waiting`; the
    first `MOST_NAMED` of each."""

    running: tuple[AdapterDigest, ...]
    waiting: tuple[AdapterDigest, ...]
    most_running: Count
    memory: AdapterMemory


def named_adapters(digests: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """What adapters are called (`names` are by digest), in order. One that was unloaded while its
    requests run has no name any more, and goes by the begin of its digest."""
    return sorted(names.get(digest, digest[:8]) for digest in digests)
