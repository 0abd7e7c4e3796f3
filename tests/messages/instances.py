"""Messages of every type, as hypothesis draws them: whatever the types allow and `check` takes."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Meta, Struct

from tandem.facts.adapter import DIGEST_CHARS, AdapterDigest
from tandem.facts.blocks import HASH_BYTES, BlockChanges
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveKv, TierFigures
from tandem.facts.request import FinishReason, Request, TokenLogprobs
from tandem.facts.sampling import SamplingParameters
from tandem.facts.step_totals import StepTotals
from tandem.messages.cluster import (
    FetchKv,
    ToGateway,
    ToWorker,
)
from tandem.messages.observation import ObservationMessage
from tandem.messages.operator import OperatorMessage
from tandem.messages.worker import (
    EmitTokens,
    ImportBlocks,
    ImportsArrived,
    KvComputed,
    PrefillsArrived,
    RequestsArrived,
)

names = st.text(max_size=12)
counts = st.integers(0, 1 << 40)
tokens = st.integers(0, (1 << 32) - 1)
hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)
digests = st.text("0123456789abcdef", min_size=DIGEST_CHARS, max_size=DIGEST_CHARS)
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
        typical_p=draw(st.floats(0.01, 1)),
        xtc_probability=draw(st.floats(0, 1)),
        dry_multiplier=draw(st.floats(0, 100)),
        dry_penalty_last_n=draw(st.integers(-1, (1 << 31) - 1)),
        dry_sequence_breakers=draw(many(tokens)),
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
    scored = st.builds(TokenLogprobs, finite, counts, many(st.tuples(tokens, finite)))
    prompts = st.none() | many(scored)
    return EmitTokens(
        draw(many(names, rows)),
        draw(many(tokens, rows)),
        draw(many(st.none() | st.sampled_from(FinishReason), rows)),
        draw(many(st.booleans(), rows)),
        draw(many(counts, rows)),
        draw(st.sampled_from([(), draw(many(logprobs, rows))])),
        draw(st.sampled_from([(), draw(many(prompts, rows))])),
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
def arrivals(draw: st.DrawFn, kind: type) -> RequestsArrived | PrefillsArrived | ImportsArrived:
    wanted_requests = draw(many(requests))
    if kind is RequestsArrived and draw(st.booleans()):
        return RequestsArrived(wanted_requests)
    return kind(wanted_requests, draw(many(counts, len(wanted_requests))))


@st.composite
def fetches(draw: st.DrawFn) -> FetchKv:
    first, end = sorted((draw(counts), draw(counts)))
    return FetchKv(draw(counts), draw(names), draw(slower_tiers), first, end)


def figures(tier: Tier) -> st.SearchStrategy[TierFigures]:
    drawn = {name: _field(TierFigures, name) for name in TierFigures.__struct_fields__}
    tenants = st.lists(st.tuples(names, counts), unique_by=lambda each: each[0])
    drawn |= {"tier": st.just(tier), "tenant_blocks": tenants.map(tuple)}
    return st.builds(TierFigures, **drawn)


slower_tiers = st.sampled_from([tier for tier in Tier if tier is not Tier.DEVICE])
unlike_tiers = st.lists(slower_tiers, unique=True).flatmap(
    lambda tiers: st.tuples(*(figures(tier) for tier in tiers))
)


def step_totals(size: tuple[bool, int]) -> st.SearchStrategy[StepTotals]:
    drawn = {name: _field(StepTotals, name) for name in StepTotals.__struct_fields__}
    return st.builds(
        StepTotals, **(drawn | {"chunked": st.just(size[0]), "magnitude": st.just(size[1])})
    )


unlike_sizes = st.lists(
    st.tuples(st.booleans(), st.integers(0, 64)), unique=True, max_size=4
).flatmap(lambda sizes: st.tuples(*(step_totals(size) for size in sizes)))
SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    Request: requests,
    SamplingParameters: sampling(),
    EmitTokens: emissions(),
    KvComputed: computed(),
    BlockChanges: changes(),
    MoveKv: moves(),
    ImportBlocks: wanted(),
    RequestsArrived: arrivals(RequestsArrived),
    PrefillsArrived: arrivals(PrefillsArrived),
    ImportsArrived: arrivals(ImportsArrived),
    FetchKv: fetches(),
    AdapterDigest: digests,
    tuple[TierFigures, ...]: unlike_tiers,
    tuple[StepTotals, ...]: unlike_sizes,
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
    if isinstance(kind, type) and issubclass(kind, Struct):
        return st.builds(kind, **{name: _field(kind, name) for name in kind.__struct_fields__})
    if is_dataclass(kind):
        return st.builds(kind, **{each.name: _field(kind, each.name) for each in fields(kind)})
    if get_origin(kind) is Annotated:
        return _bounded(*get_args(kind))
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        if arguments[1:] == (Ellipsis,):
            return many(of_type(arguments[0]))
        return st.tuples(*(of_type(each) for each in arguments))
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(of_type, arguments), max_size=4)
    if arguments:
        return st.one_of([of_type(each) for each in arguments])
    return st.sampled_from(kind)


def _field(kind: type, name: str) -> st.SearchStrategy[Any]:
    return of_type(get_type_hints(kind, include_extras=True)[name])


def _bounded(kind: type, bounds: Meta) -> st.SearchStrategy[Any]:
    """As the type of a field says."""
    if kind is float:
        return st.floats(bounds.ge, bounds.lt, exclude_max=True)
    if kind is int:
        least = bounds.ge if bounds.gt is None else bounds.gt + 1
        return st.integers(least, bounds.le if bounds.lt is None else bounds.lt - 1)
    draw = st.text if kind is str else st.binary
    return draw(min_size=bounds.min_length or 0, max_size=bounds.max_length or 8)


TYPES = {
    "to_gateway": get_args(ToGateway),
    "to_worker": get_args(ToWorker),
    "operator": get_args(OperatorMessage),
    "observation": get_args(ObservationMessage),
}
