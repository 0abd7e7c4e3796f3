"""Configuration of the KV transfer engine: its limits, the memory it serves, what it answers."""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv import KvExport, KvShard
from tandem.kernels.transfer import Transfer
from tandem.kv.layout import RegionLayout, pool_layout
from tandem.kv.region import Region
from tandem.kv.threads import EngineCalls
from tandem.messages.node import BlocksExported, MoveFinished

TransferEvent = MoveFinished | BlocksExported
TransferCalls = EngineCalls[TransferEvent]


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """`checksums` False trusts the bytes that came; versions are compared all the same.
    `wire_dtype`: read encoded copies of that precision from workers that keep them; what they do
    not keep any more comes as it is stored.

    Block export pauses after `export_bytes` for whatever else is to be done.

    A transfer reads in chunks of about `chunk_bytes`, `chunks_in_flight` of them at once for each
    connector, and needs as much scratch memory (`scratch_bytes` for each connector). A transfer
    that takes longer than `timeout_s`, and those beyond `max_transfers` at once, end with a
    problem. A peer that could not be reached is not tried again for `retry_s`. Reads that do not
    end within `cancel_s` after they should are cut off with their peer."""

    checksums: bool = True
    wire_dtype: str | None = None
    timeout_s: float = 60.0
    export_bytes: int = 4 << 20
    chunk_bytes: int = 16 << 20
    chunks_in_flight: int = 4
    max_transfers: int = 256
    retry_s: float = 1.0
    cancel_s: float = 2.0
    poll_s: float = 0.002

    @property
    def scratch_bytes(self) -> int:
        return self.chunk_bytes * self.chunks_in_flight


@dataclass(frozen=True, slots=True)
class TransferMemory:
    """The memory of one rank: `region` is on the CPU, `layout.exported_bytes` long, and begins
    with `[metadata table][pool]`; `transfer` works on it. `export` describes the whole worker, all
    its ranks' shards; their endpoints may still be missing."""

    region: Region
    export: KvExport
    rank: int
    transfer: Transfer

    @property
    def shard(self) -> KvShard:
        return next(shard for shard in self.export.shards if shard.rank == self.rank)

    @property
    def layout(self) -> RegionLayout:
        return pool_layout(self.export, self.shard)

    @property
    def view(self) -> NDArray[np.uint8]:
        """All bytes of the region; does not keep them mapped."""
        array = (ctypes.c_uint8 * self.region.bytes).from_address(self.region.address)
        return np.ctypeslib.as_array(array)
