"""Messages between the leading rank of a worker and its other ranks, over a socket.

Plans travel with their arrays as bytes; everything else is facts as they are.
"""

from array import array
from typing import get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tandem.facts.adapter import Adapter
from tandem.facts.kv import Endpoint
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import Placement, StepPlan, StepResult
from tandem.messages.codec import Codec, Encoding
from tandem.messages.node import (
    BlocksExported,
    ConnectPeer,
    EndMove,
    ExportBlocks,
    ForgetPeer,
    MoveFinished,
    StartMove,
)

# Leader and followers are started from one installation: all have one version.
RANK_PROTOCOL = 3


class RankBegins(Struct, frozen=True):
    """The first message to a follower: its setup, as the commands wrote it."""

    setup: bytes


class TokensLanded(Struct, frozen=True):
    """Step `step_id` drew these tokens, on other ranks; so many in each row (empty: one)."""

    step_id: int
    tokens: tuple[int, ...]
    counts: tuple[int, ...] = ()


class Ping(Struct, frozen=True):
    """Answered by `Pong`."""


class RankReady(Struct, frozen=True):
    """The rank can run plans, and its KV be read by these ways."""

    endpoints: tuple[Endpoint, ...]


class RankFailed(Struct, frozen=True):
    """The rank ends, and with it the whole worker."""

    problem: str


class Pong(Struct, frozen=True):
    """The rank lives."""


ToFollower = (
    RankBegins
    | StepPlan
    | TokensLanded
    | ConnectPeer
    | ForgetPeer
    | StartMove
    | EndMove
    | ExportBlocks
    | Ping
)

ToLeader = RankReady | RankFailed | StepResult | MoveFinished | BlocksExported | Pong


class EncodedPlacement(Struct, array_like=True, forbid_unknown_fields=True):
    """A `Placement`; its tokens as unsigned 32-bit numbers, little-endian."""

    slot: int
    request_id: str
    tokens: bytes
    prompt_tokens: int
    sampling: SamplingParameters
    adapter: Adapter | None


class EncodedStep(Struct, array_like=True, forbid_unknown_fields=True):
    """A `StepPlan`. `numbers` are its int32 arrays in their order, little-endian."""

    step_id: int
    placements: tuple[EncodedPlacement, ...]
    samples: bytes
    numbers: tuple[bytes, ...]


def _encode_step(plan: StepPlan) -> EncodedStep:
    rows = (plan.slots, plan.starts, plan.counts)
    table = (plan.table_slots, plan.table_indices, plan.table_blocks)
    drafts = (plan.draft_counts, plan.draft_tokens, plan.draft_parents, plan.proposals)
    arrays = (*rows, *table, *drafts, plan.scored_counts)
    return EncodedStep(
        plan.step_id,
        tuple(_encode_placement(placement) for placement in plan.placements),
        plan.samples.tobytes(),
        tuple(np.asarray(values, "<i4").tobytes() for values in arrays),
    )


def _decode_step(encoded: EncodedStep) -> StepPlan:
    slots, starts, counts, table_slots, table_indices, table_blocks, *others = map(
        _int32, encoded.numbers
    )
    draft_counts, draft_tokens, draft_parents, proposals, scored_counts = others
    return StepPlan(
        encoded.step_id,
        tuple(_decode_placement(placement) for placement in encoded.placements),
        slots=slots,
        starts=starts,
        counts=counts,
        samples=np.frombuffer(encoded.samples, np.bool_).copy(),
        table_slots=table_slots,
        table_indices=table_indices,
        table_blocks=table_blocks,
        draft_counts=draft_counts,
        draft_tokens=draft_tokens,
        draft_parents=draft_parents,
        proposals=proposals,
        scored_counts=scored_counts,
    )


def _encode_placement(placement: Placement) -> EncodedPlacement:
    return EncodedPlacement(
        placement.slot,
        placement.request_id,
        np.asarray(placement.tokens, "<u4").tobytes(),
        placement.prompt_tokens,
        placement.sampling,
        placement.adapter,
    )


def _decode_placement(encoded: EncodedPlacement) -> Placement:
    return Placement(
        encoded.slot,
        encoded.request_id,
        array("I", np.frombuffer(encoded.tokens, "<u4").astype(np.uint32).tobytes()),
        encoded.prompt_tokens,
        encoded.sampling,
        encoded.adapter,
    )


def _int32(data: bytes) -> NDArray[np.int32]:
    # A copy: what lies in the message itself cannot be written to, which torch dislikes.
    return np.frombuffer(data, "<i4").astype(np.int32)


TO_FOLLOWER: Codec[ToFollower] = Codec(
    *get_args(ToFollower),
    encodings={StepPlan: Encoding(EncodedStep, _encode_step, _decode_step)},
    protocol=RANK_PROTOCOL,
)
TO_LEADER: Codec[ToLeader] = Codec(*get_args(ToLeader), protocol=RANK_PROTOCOL)
