"""Messages of every type, as hypothesis draws them: whatever the types allow and `check` takes."""

from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct

from tandem.facts.blocks import HASH_BYTES, BlockChanges
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, KvGeometry, MoveKv, MoveReport, TierFigures
from tandem.facts.request import FinishReason, Request, TokenLogprobs
from tandem.facts.sampling import SamplingParameters
from tandem.messages.cluster import (
    FetchKv,
    PinBlocks,
    PoolNodeJoined,
    Register,
    Registered,
    RegisterPoolNode,
    TiersReported,
    ToGateway,
    ToWorker,
)
from tandem.messages.operator import OperatorMessage
from tandem.messages.router import TokensReported
from tandem.messages.worker import (
    EmitTokens,
    ImportBlocks,
    ImportDone,
    ImportsArrived,
    KvComputed,
    PrefillsArrived,
)

names = st.text(max_size=12)
counts = st.integers(0, 1 << 40)
tokens = st.integers(0, (1 << 32) - 1)
hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)
finite = st.floats(allow_nan=False, width=64)


def many(each: st.SearchStrategy[Any], size: int | None = None) -> st.SearchStrategy[Any]:
    least, most = (0, 4) if size is None else (size, size)
    return st.lists(each, min_size=least, max_size=most).map(tuple)


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParameters:
    most = draw(st.integers(1, 1 << 30))
    return SamplingParameters(
        temperature=draw(st.floats(0, 100)),
        top_p=draw(st.floats(0.01, 1)),
        logit_bias=draw(many(st.tuples(tokens, st.floats(-100, 100)))),
        seed=draw(st.integers(0, (1 << 64) - 1)),
        max_tokens=most,
        stop_token_ids=draw(many(tokens)),
        top_logprobs=draw(st.none() | st.integers(0, 20)),
    )


requests = st.builds(
    Request,
    request_id=names,
    prompt_tokens=many(tokens),
    sampling=sampling(),
    output_tokens=many(tokens),
    priority=st.integers(-(1 << 31), 1 << 31),
    cache_salt=names,
    tenant=names,
    account=names,
)


@st.composite
def emissions(draw: st.DrawFn) -> EmitTokens:
    rows = draw(st.integers(0, 4))
    logprobs = st.none() | st.builds(TokenLogprobs, finite, counts, many(st.tuples(tokens, finite)))
    return EmitTokens(
        draw(many(names, rows)),
        draw(many(tokens, rows)),
        draw(many(st.none() | st.sampled_from(FinishReason), rows)),
        draw(many(st.booleans(), rows)),
        draw(many(counts, rows)),
        draw(st.sampled_from([(), draw(many(logprobs, rows))])),
    )


@st.composite
def computed(draw: st.DrawFn) -> KvComputed:
    rows = draw(st.integers(0, 3))
    blocks = draw(many(many(counts), rows))
    versions = tuple(draw(many(counts, len(row))) for row in blocks)
    return KvComputed(
        draw(many(names, rows)),
        draw(many(counts, rows)),
        blocks,
        draw(many(st.booleans(), rows)),
        draw(st.sampled_from([(), versions])),
    )


@st.composite
def changes(draw: st.DrawFn) -> BlockChanges:
    stored = draw(many(hashes))
    parents = draw(many(hashes, len(stored)))
    return BlockChanges(draw(counts), draw(many(hashes)), stored, parents)


@st.composite
def moves(draw: st.DrawFn) -> MoveKv:
    blocks = draw(many(counts))
    first, end = sorted((draw(counts), draw(counts)))
    versions, targets = draw(many(counts, len(blocks))), draw(many(counts))
    place = (draw(names), draw(names), draw(names))
    return MoveKv(draw(counts), *place, first, end, blocks, versions, targets)


@st.composite
def wanted(draw: st.DrawFn) -> ImportBlocks:
    first, end = sorted((draw(counts), draw(counts)))
    return ImportBlocks(draw(names), first, end, draw(many(counts)))


@st.composite
def arrivals(draw: st.DrawFn, kind: type) -> PrefillsArrived | ImportsArrived:
    wanted_requests = draw(many(requests))
    return kind(wanted_requests, draw(many(counts, len(wanted_requests))))


@st.composite
def fetches(draw: st.DrawFn) -> FetchKv:
    first, end = sorted((draw(counts), draw(counts)))
    return FetchKv(draw(counts), draw(names), draw(slower_tiers), first, end)


def figures(tier: Tier) -> st.SearchStrategy[TierFigures]:
    seven = [counts] * 7
    return st.builds(
        TierFigures, st.just(tier), st.booleans(), *seven, seconds, seconds, reason=names
    )


sizes = st.integers(1, 1 << 20)
seconds = st.floats(0, 1e6)
slower_tiers = st.sampled_from([tier for tier in Tier if tier is not Tier.DEVICE])
unlike_tiers = st.lists(slower_tiers, unique=True).flatmap(
    lambda tiers: st.tuples(*(figures(tier) for tier in tiers))
)
SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    Request: requests,
    SamplingParameters: sampling(),
    EmitTokens: emissions(),
    KvComputed: computed(),
    BlockChanges: changes(),
    MoveKv: moves(),
    ImportBlocks: wanted(),
    PrefillsArrived: arrivals(PrefillsArrived),
    ImportsArrived: arrivals(ImportsArrived),
    FetchKv: fetches(),
    PinBlocks: st.builds(
        PinBlocks, many(hashes), st.integers(0, 1 << 50), st.integers(-(1 << 31), 1 << 31)
    ),
    TiersReported: st.builds(TiersReported, names, unlike_tiers),
    BlockFormat: st.builds(BlockFormat, hashes, sizes),
    MoveReport: st.builds(MoveReport, st.booleans(), names, counts, counts, seconds, names, counts),
    KvGeometry: st.builds(KvGeometry, sizes, sizes, sizes, sizes, names),
}
# Fields whose range is narrower than their type.
FIELDS: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (TokensReported, "repeats"): st.integers(1, 1000),
    (ImportDone, "output_tokens"): many(tokens),
    (Register, "worker"): st.text(min_size=1, max_size=8),
    (Register, "incarnation"): st.text(min_size=1, max_size=8),
    (Register, "max_sequences"): sizes,
    **{
        (kind, name): st.text(min_size=1, max_size=8)
        for kind, own in ((RegisterPoolNode, "worker"), (PoolNodeJoined, "node"))
        for name in (own, "incarnation", "address")
    },
    **{
        (Registered, name): st.integers(1, 1 << 40)
        for name in ("report_interval_ns", "silence_ns", "lease_ns")
    },
}
PLAIN = {int: counts, str: names, float: finite, bool: st.booleans(), bytes: st.binary(max_size=9)}


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a field's type, dataclasses and structs all the way down."""
    if kind in SPECIAL:
        return SPECIAL[kind]
    if kind in PLAIN:
        return PLAIN[kind]
    if kind is type(None):
        return st.none()
    if is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, Struct)):
        hints = get_type_hints(kind)
        return st.builds(
            kind,
            **{name: _field(kind, name, hints) for name in kind.__match_args__},
        )
    arguments = get_args(kind)
    if getattr(kind, "__origin__", None) is tuple:
        if arguments[1:] == (Ellipsis,):
            return many(of_type(arguments[0]))
        return st.tuples(*(of_type(each) for each in arguments))
    if arguments:
        return st.one_of([of_type(each) for each in arguments])
    return st.sampled_from(kind)


def _field(kind: type, name: str, hints: dict[str, Any]) -> st.SearchStrategy[Any]:
    if (kind, name) in FIELDS:
        return FIELDS[kind, name]
    if name == "block_count":
        return sizes
    # Hashes are the only tuples of bytes.
    return many(hashes) if hints[name] == tuple[bytes, ...] else of_type(hints[name])


TYPES = {
    "to_gateway": get_args(ToGateway),
    "to_worker": get_args(ToWorker),
    "operator": get_args(OperatorMessage),
}
