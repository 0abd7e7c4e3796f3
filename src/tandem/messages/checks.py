"""What the types of decoded messages do not say: parallel tuples are equally long, ranges do not
end before they begin, and only slower tiers are counted and fetched from.

What depends on the sender, or on earlier messages, is for the machines.
"""

from collections.abc import Callable
from typing import Any

from tandem.facts.errors import TandemError
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveKv
from tandem.messages.cluster import FetchKv, TiersReported
from tandem.messages.router import (
    BlocksReported,
    ImportReported,
    KvReported,
    LoadReported,
    TokensReported,
)
from tandem.messages.sharing import (
    MOST_ACCOUNTS,
    MOST_BLOCKS,
    MOST_CLASSES,
    MOST_PROMPTS,
    ShareUse,
    UseShared,
)
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsArrived


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
        len(emission.prompt_logprobs) or rows,
        len(emission.waited_ns) or rows,
    }
    _need(len(lengths) == 1, "has rows of unequal length")


def _load_reported(message: LoadReported) -> None:
    if message.steps:
        sizes = {(each.chunked, each.magnitude) for each in message.steps}
        _need(len(sizes) == len(message.steps), "counts steps of a size twice")


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
    for row, versions in enumerate(computed.versions):
        _need(len(versions) == len(computed.blocks[row]), "has blocks without a version")


def _move_kv(move: MoveKv) -> None:
    _need(len(move.source_versions) == len(move.source_blocks), "has blocks without version")
    _need(move.first_token <= move.end_token, "moves no range of tokens")


def _import_reported(message: ImportReported) -> None:
    _need(message.wanted.first_token <= message.wanted.end_token, "wants no range of tokens")


def _blocks_reported(message: BlocksReported) -> None:
    changes = message.changes
    _need(len(changes.stored) == len(changes.stored_parents), "has blocks without a parent")


def _requests_arrived(message: RequestsArrived) -> None:
    _need(len(message.requests) == len(message.imports), "has rows of unequal length")


def _arrived(message: PrefillsArrived | ImportsArrived) -> None:
    _need(len(message.requests) == len(message.import_tokens), "has rows of unequal length")


def _tiers_reported(message: TiersReported) -> None:
    tiers = [each.tier for each in message.tiers]
    _need(len(set(tiers)) == len(tiers), "names a tier twice")
    _need(Tier.DEVICE not in tiers, "counts the device among the slower tiers")
    for each in message.tiers:
        tenants = [tenant for tenant, _ in each.tenant_blocks]
        _need(len(set(tenants)) == len(tenants), "names a tenant twice")


def _fetch_kv(fetch: FetchKv) -> None:
    _need(fetch.tier is not Tier.DEVICE, "fetches from a device")
    _need(fetch.first_token <= fetch.end_token, "fetches no range of tokens")


def _use(message: ShareUse | UseShared) -> None:
    use = message.use
    _need(len(use.accounts) <= MOST_ACCOUNTS, "has too many accounts")
    _need(all(len(each.waiting) <= MOST_CLASSES for each in use.accounts), "has too many classes")
    _need(len(use.prompts) <= MOST_PROMPTS, "has too many prompts")
    blocks = sum(len(each.digests) for each in use.prompts)
    _need(blocks <= MOST_BLOCKS, "has too many blocks")


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise BadMessage(problem)


_RULES: dict[type, Callable[[Any], None]] = {
    TokensReported: _tokens_reported,
    LoadReported: _load_reported,
    KvReported: _kv_reported,
    MoveKv: _move_kv,
    ImportReported: _import_reported,
    BlocksReported: _blocks_reported,
    RequestsArrived: _requests_arrived,
    PrefillsArrived: _arrived,
    ImportsArrived: _arrived,
    TiersReported: _tiers_reported,
    FetchKv: _fetch_kv,
    ShareUse: _use,
    UseShared: _use,
}
