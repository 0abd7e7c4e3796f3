"""The Redis tier: blocks on a Redis or Valkey server, found again after a restart.

A block is one value: its header, then its bytes. The server may drop what it likes; that is then
missing. Whoever else can write to it is not trusted: headers, and the checks of the bytes in them,
can only be made with the secret of the cluster, and name the block.
"""

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import numpy as np

from tandem.facts.kv import BlockFormat, BlockName
from tandem.kernels.transfer import Transfer
from tandem.kv.tiers.block_records import HEADER_BYTES, BlockHeader, BlockTags, HeaderCodec
from tandem.kv.tiers.contract import Found, Kept, Row
from tandem.kv.tiers.redis_client import SCAN_KEYS, RedisConfig, RedisLink
from tandem.kv.tiers.rows import RowCopies

_MOST_OWED: Final = 100_000
_PATTERN_SIGNS: Final = re.compile(rb"([*?\[\]\\^-])")


class RedisStore:
    """Trouble with the server is an answer at once, or after the time-outs of its config."""

    def __init__(
        self,
        config: RedisConfig,
        format: BlockFormat,
        transfer: Transfer,
        now_ns: Callable[[], int],
        *,
        secret: bytes,
    ) -> None:
        """What was stored with another `secret` is not there. `now_ns` is a monotonic clock. Does
        not look whether the server is there. Raises `InvalidConfiguration` without the client
        library, or for a URL that is none."""
        self._link = RedisLink(config, now_ns)
        self._config = config
        self._tags = BlockTags(secret, format, transfer)
        self._codec = HeaderCodec(format, self._tags.derived(b"headers"))
        self._copies = RowCopies(transfer, format.block_bytes)
        self._value_bytes = HEADER_BYTES + format.block_bytes
        self._trip_blocks = max(1, config.trip_bytes // self._value_bytes)
        owner = f"{config.owner}:" if config.owner else ""
        # Other secrets, and other ways of tagging, have other roots.
        tagged = self._tags.stored.root.hex()
        self._prefix = f"tandem:2:{tagged}-{format.block_bytes}:{owner}".encode()
        self._sequence = 0
        # Not held any more, or perhaps never, while the server did not answer; in order.
        self._owed: dict[bytes, None] = {}

    @property
    def problem(self) -> str:
        """Why the server did not answer when it was asked last; empty if it did."""
        return self._link.problem

    def put_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Kept:
        kept: list[bytes] = []
        problem = ""
        deadline_ns = self._link.deadline_ns(self._config.call_s)
        self._pay()
        for begin in range(0, len(names), self._trip_blocks):
            if problem := problem or self._link.objection(deadline_ns):
                break
            some = names[begin : begin + self._trip_blocks]
            unfit = [self._codec.problem(name) for name in some]
            good = [index for index, refused in enumerate(unfit) if not refused]
            problem = next(filter(None, unfit), "")
            refused = self._set([some[i] for i in good], [rows[begin + i] for i in good])
            kept += (some[i].digest for i, no in zip(good, refused, strict=True) if not no)
            problem = problem or next(filter(None, refused), "")
        return Kept(tuple(kept), problem)

    def get_blocks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> Found:
        deadline_ns = self._link.deadline_ns(self._config.call_s)
        for begin in range(0, len(names), self._trip_blocks):
            end = min(begin + self._trip_blocks, len(names))
            if problem := self._link.objection(deadline_ns):
                return Found(begin, problem=problem)
            values = self._link.values([self._key(name.digest) for name in names[begin:end]])
            if values is None:
                return Found(begin, problem=self._link.problem)
            found = self._take_values(names[begin:end], values, rows[begin:end])
            if found.blocks < end - begin:
                return Found(begin + found.blocks, found.corrupt, found.missing)
        return Found(len(names))

    def forget_blocks(self, digests: Sequence[bytes]) -> None:
        """Where the server does not answer now it gets this later."""
        self._owe(digests)
        self._pay()

    def stored_blocks(self) -> tuple[BlockName, ...]:
        stored = sorted(self._headers().values(), key=lambda header: header.sequence)
        self._sequence = max(self._sequence, stored[-1].sequence if stored else 0)
        begin = max(0, len(stored) - self._config.capacity_blocks)
        self.forget_blocks([header.name.digest for header in stored[:begin]])
        return tuple(header.name for header in stored[begin:])

    def close_store(self) -> None:
        self._link.close_redis()

    def _headers(self) -> dict[bytes, BlockHeader]:
        """Of the blocks that can be found in time, by digest."""
        deadline_ns = self._link.deadline_ns(self._config.listing_s)
        pattern = _PATTERN_SIGNS.sub(rb"\\\1", self._prefix) + b"*"
        found: dict[bytes, BlockHeader] = {}
        cursor: int | None = None
        while cursor != 0 and not self._link.objection(deadline_ns):
            step = self._link.scan(cursor or 0, pattern)
            if step is None:
                break
            cursor, keys = step
            # Without an owner of its own the pattern matches what others own as well.
            own = [key for key in keys if b":" not in key[len(self._prefix) :]]
            for raw in (self._link.beginnings(own, HEADER_BYTES) if own else None) or ():
                header = self._codec.unpacked(raw) if raw else None
                if header is not None:
                    found[header.name.digest] = header
        return found

    def _owe(self, digests: Sequence[bytes]) -> None:
        self._owed.update(dict.fromkeys(digests[: _MOST_OWED - len(self._owed)]))

    def _pay(self) -> None:
        """Have the server forget what is owed."""
        deadline_ns = self._link.deadline_ns(self._config.call_s)
        while self._owed and not self._link.objection(deadline_ns):
            some = list(islice(self._owed, SCAN_KEYS))
            if self._link.unlink([self._key(digest) for digest in some]) is None:
                return
            for digest in some:
                del self._owed[digest]

    def _set(self, names: Sequence[BlockName], rows: Sequence[Row]) -> list[str]:
        """Store some blocks in one round trip: why not, for each of them."""
        values = []
        for name, row, checksum in zip(names, rows, self._checks(names, rows), strict=True):
            self._sequence += 1
            header = self._codec.packed(BlockHeader(name, checksum, self._sequence))
            values.append((self._key(name.digest), b"".join((header, row.data))))
            self._owed.pop(name.digest, None)
        refused = self._link.store(values)
        if refused is None:
            # The server may have them all the same, and nobody would ever ask for them.
            self._owe([name.digest for name in names])
            return [self._link.problem] * len(names)
        return refused

    def _take_values(
        self, names: Sequence[BlockName], values: Sequence[bytes | None], rows: Sequence[Row]
    ) -> Found:
        """Take values apart, up to the first that is not whole."""
        sources, expected = [], []
        missing: tuple[bytes, ...] = ()
        corrupt: tuple[bytes, ...] = ()
        for name, value in zip(names, values, strict=True):
            if value is None:
                missing = (name.digest,)
                break
            header = self._codec.unpacked(value[:HEADER_BYTES])
            if not header or header.name.digest != name.digest or len(value) != self._value_bytes:
                corrupt = (name.digest,)
                break
            sources.append(np.frombuffer(value, dtype=np.uint8)[HEADER_BYTES:])
            expected.append(header.checksum)
        came = rows[: len(sources)]
        self._copies.copy(sources, came)
        checks = zip(self._checks(names[: len(came)], came), expected, strict=True)
        unlike = [index for index, (check, wanted) in enumerate(checks) if check != wanted]
        if unlike:
            missing, corrupt = (), tuple(dict.fromkeys(names[index].digest for index in unlike))
        self.forget_blocks(corrupt)
        return Found(unlike[0] if unlike else len(sources), corrupt, missing)

    def _checks(self, names: Sequence[BlockName], rows: Sequence[Row]) -> list[int]:
        """In place of checksums, which anybody could make: the beginnings of tags."""
        return [int.from_bytes(tag[:8], "little") for tag in self._tags.of(names, rows)]

    def _key(self, digest: bytes) -> bytes:
        return self._prefix + digest.hex().encode()
