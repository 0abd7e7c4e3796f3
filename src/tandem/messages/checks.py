"""Semantic checks of decoded messages: parallel tuples are equally long, counts not negative,
hashes of the right length.

What depends on the sender, or on earlier messages, is for the machines.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tandem.facts.blocks import HASH_BYTES, BlockChanges
from tandem.facts.errors import TandemError
from tandem.facts.fleet import Tier
from tandem.facts.kv import KvExport, MoveKv
from tandem.messages.cluster import (
    FetchKv,
    MoveEnded,
    PinBlocks,
    PoolNodeJoined,
    Register,
    Registered,
    RegisterPoolNode,
    TiersReported,
)
from tandem.messages.router import (
    BlocksListed,
    BlocksReported,
    ImportReported,
    KvReported,
    LoadReported,
    TokensReported,
)
from tandem.messages.worker import ImportDone, ImportsArrived, PrefillsArrived

TOKEN_LIMIT = 1 << 32
COUNT_LIMIT = 1 << 48
IDENTITY_LIMIT = 64
REPEATS_LIMIT = 1 << 20
SECONDS_LIMIT = 1e9


class BadMessage(TandemError):
    """These bytes are no valid message. The text is why, without their content."""


class OtherProtocol(BadMessage):
    """The sender speaks another version of the protocol, whose number is `protocol`."""

    def __init__(self, protocol: int, ours: int) -> None:
        super().__init__(f"speaks protocol {protocol}, and this process speaks {ours}")
        self.protocol = protocol


def check(message: object) -> None:
    """Raises `BadMessage`."""
    if rule := _RULES.get(type(message)):
        rule(message)


def _tokens_reported(message: TokensReported) -> None:
    emission = message.emission
    rows = len(emission.request_ids)
    lengths = {
        rows,
        len(emission.tokens),
        len(emission.finish_reasons),
        len(emission.stopped_by_token),
        len(emission.cached_tokens),
        len(emission.logprobs) or rows,
    }
    _need(len(lengths) == 1, "has rows of unequal length")
    _tokens(emission.tokens)
    _counts(emission.cached_tokens)
    _need(1 <= message.repeats <= REPEATS_LIMIT, "repeats its tokens too often")


def _kv_reported(message: KvReported) -> None:
    computed = message.computed
    rows = {
        len(computed.request_ids),
        len(computed.tokens),
        len(computed.blocks),
        len(computed.held),
        len(computed.versions) or len(computed.request_ids),
    }
    _need(len(rows) == 1, "has rows of unequal length")
    _counts(computed.tokens)
    for blocks in computed.blocks:
        _counts(blocks)
    for row, versions in enumerate(computed.versions):
        _need(len(versions) == len(computed.blocks[row]), "has blocks without a version")
        _counts(versions)


def _move_kv(move: MoveKv) -> None:
    _need(len(move.source_versions) == len(move.source_blocks), "has blocks without version")
    for counts in (move.source_blocks, move.source_versions, move.target_blocks):
        _counts(counts)
    _need(0 <= move.first_token <= move.end_token < COUNT_LIMIT, "moves no range of tokens")


def _import_reported(message: ImportReported) -> None:
    wanted = message.wanted
    _counts(wanted.blocks)
    _need(0 <= wanted.first_token <= wanted.end_token < COUNT_LIMIT, "wants no range of tokens")


def _blocks_reported(message: BlocksReported) -> None:
    changes: BlockChanges = message.changes
    _need(len(changes.stored) == len(changes.stored_parents), "has blocks without a parent")
    _counts((changes.sequence_number,))
    for hashes in (changes.removed, changes.stored, changes.stored_parents):
        _hashes(hashes)


def _blocks_listed(message: BlocksListed) -> None:
    _hashes(message.hashes)
    _counts((message.next_sequence_number,))


def _arrived(message: PrefillsArrived | ImportsArrived) -> None:
    _need(len(message.requests) == len(message.import_tokens), "has rows of unequal length")
    _counts(message.import_tokens)


def _import_done(message: ImportDone) -> None:
    _counts((message.tokens,))
    _tokens(message.output_tokens)


def _load(load: LoadReported) -> None:
    _counts(
        (
            load.running_sequences,
            load.waiting_requests,
            load.queued_prefill_tokens,
            load.context_tokens,
            load.free_blocks,
            load.received_events or 0,
        )
    )


def _register(register: Register) -> None:
    export: KvExport = register.export
    geometry = export.geometry
    sizes = (geometry.layers, geometry.kv_heads, geometry.head_dim, geometry.block_size)
    _counts((*sizes, export.block_count, register.max_sequences, register.context_tokens))
    _need(min(*sizes, export.block_count, register.max_sequences) > 0, "has a size of 0")
    _need(bool(register.worker and register.incarnation), "has no name")
    _need(len(export.identity) <= IDENTITY_LIMIT, "has an identity that is none")
    for shard in export.shards:
        _counts((shard.rank, shard.first_layer, shard.layers, shard.first_head, shard.heads))


def _registered(terms: Registered) -> None:
    intervals = (terms.report_interval_ns, terms.silence_ns, terms.lease_ns)
    _need(min(intervals) > 0 and max(intervals) < COUNT_LIMIT << 10, "has impossible intervals")


def _register_pool_node(register: RegisterPoolNode) -> None:
    _need(bool(register.worker and register.incarnation and register.address), "has no name")
    _hashes((register.format.root,))
    _counts((register.format.block_bytes, register.capacity_blocks))
    _need(register.format.block_bytes > 0, "has a size of 0")


def _pool_node_joined(joined: PoolNodeJoined) -> None:
    _need(bool(joined.node and joined.incarnation and joined.address), "has no name")


def _tiers_reported(message: TiersReported) -> None:
    tiers = [each.tier for each in message.tiers]
    _need(len(set(tiers)) == len(tiers), "names a tier twice")
    for each in message.tiers:
        _need(each.tier is not Tier.DEVICE, "counts the device among the slower tiers")
        _counts(
            (
                each.blocks,
                each.capacity_blocks,
                each.stored_blocks,
                each.fetched_blocks,
                each.missed_blocks,
                each.corrupt_blocks,
                each.failures,
            )
        )
        _durations((each.fetch_s_per_token, each.compute_s_per_token))


def _fetch_kv(fetch: FetchKv) -> None:
    _need(fetch.tier is not Tier.DEVICE, "fetches from a device")
    _need(0 <= fetch.first_token <= fetch.end_token < COUNT_LIMIT, "fetches no range of tokens")


def _pin_blocks(pin: PinBlocks) -> None:
    _hashes(pin.digests)
    _need(0 <= pin.ttl_ns < COUNT_LIMIT << 10, "pins for an impossible time")


def _move_ended(message: MoveEnded) -> None:
    report = message.report
    _counts((report.moved_bytes, report.spans, report.tokens))
    _durations((report.seconds,))


def _durations(seconds: Sequence[float]) -> None:
    _need(all(0 <= each < SECONDS_LIMIT for each in seconds), "has impossible durations")


def _hashes(hashes: Sequence[bytes]) -> None:
    _need(all(len(each) == HASH_BYTES for each in hashes), "has a hash of the wrong length")


def _tokens(tokens: Sequence[int]) -> None:
    _need(not tokens or (min(tokens) >= 0 and max(tokens) < TOKEN_LIMIT), "has impossible tokens")


def _counts(counts: Sequence[int]) -> None:
    _need(not counts or (min(counts) >= 0 and max(counts) < COUNT_LIMIT), "has impossible counts")


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise BadMessage(problem)


_RULES: dict[type, Callable[[Any], None]] = {
    TokensReported: _tokens_reported,
    KvReported: _kv_reported,
    MoveKv: _move_kv,
    ImportReported: _import_reported,
    BlocksReported: _blocks_reported,
    BlocksListed: _blocks_listed,
    PrefillsArrived: _arrived,
    ImportsArrived: _arrived,
    ImportDone: _import_done,
    LoadReported: _load,
    Register: _register,
    Registered: _registered,
    RegisterPoolNode: _register_pool_node,
    PoolNodeJoined: _pool_node_joined,
    TiersReported: _tiers_reported,
    FetchKv: _fetch_kv,
    PinBlocks: _pin_blocks,
    MoveEnded: _move_ended,
}
