"""The messages by which gateways share state, relayed by workers: what accounts have used, which
prompts have just been sent where, and what one gateway asks another (`messages.observation`).

What is shared without being asked for are totals, not changes: a message that is lost is made up
for by the next, and one that arrives twice changes nothing.
"""

from msgspec import Struct

from tandem.facts.blocks import BlockHash
from tandem.facts.bounds import Count, Name, Nanoseconds

# What one message has at most: some hundred kilobytes.
MOST_ACCOUNTS = 128
MOST_PROMPTS = 64
MOST_PROMPT_BLOCKS = 512
MOST_BLOCKS = 8192
MOST_CLASSES = 64


class AccountTotals(Struct, frozen=True, array_like=True):
    """What an account has used through one gateway since that was started: `input_tokens` and
    `output_tokens` by which tenants share, `requests` and `tokens` that count for rate limits
    (without what was given back). `running` of its limited requests wait or run now, and it has
    requests in the queues of these classes (`waiting`)."""

    account: str
    input_tokens: Count
    output_tokens: Count
    requests: Count
    tokens: Count
    running: Count
    waiting: tuple[str, ...] = ()


class RoutedPrompt(Struct, frozen=True, array_like=True):
    """A prompt that was just sent to `worker`, as the hashes of its first blocks."""

    worker: Name
    digests: tuple[BlockHash, ...]


class GatewayUse(Struct, frozen=True, array_like=True):
    """What one gateway has given out. A start of a gateway is known by `started_ns`, the instant on
    its own clock, and numbers its messages by `serial`. It has `wanted` places at the workers (used
    or waited for, without those of classes with pools of their own), and `waiting` requests in its
    queue. Not every message has all `accounts`; those with changes come first."""

    gateway: Name
    started_ns: Nanoseconds
    serial: Count
    wanted: Count
    waiting: Count
    accounts: tuple[AccountTotals, ...] = ()
    prompts: tuple[RoutedPrompt, ...] = ()


class ShareUse(Struct, frozen=True):
    """Relay this to all other gateways that the worker is connected to, as `UseShared`."""

    use: GatewayUse


class UseShared(Struct, frozen=True):
    """What another gateway has given out, relayed by a worker."""

    worker: str
    use: GatewayUse


class RelayToGateway(Struct, frozen=True):
    """Relay this to the gateway `to`, if the worker is connected to it, as `RelayedFromGateway`.
    The `content` is for gateways alone to read."""

    to: Name
    content: bytes


class RelayedFromGateway(Struct, frozen=True):
    """What the gateway `sender` has sent to this one, relayed by a worker."""

    worker: str
    sender: str
    content: bytes
