"""Rate limits of accounts: requests and tokens a minute, requests at once; and what is left of
them. An account is a tenant, or an API key that belongs to none. Raises `InvalidConfiguration` for
limits that let nobody in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.facts.errors import InvalidConfiguration

# Behind an account: what nobody waits for is an account of its own, so that it takes nothing from
# what its owner waits for.
_BACKGROUND = " (background)"

# A bucket that takes longer to fill than a day bounds no rate.
MOST_BURST_S = 86_400.0


def _limit(meaning: str) -> int | None:
    """A limit that is also a key of a cluster file."""
    return field(default=None, metadata={"meaning": meaning})


def background_account(owner: str) -> str:
    """The account of what an owner has run in the background."""
    return owner + _BACKGROUND


def owner_of_account(account: str) -> str:
    """Whose account it is, in the background or not."""
    return account.removesuffix(_BACKGROUND)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What a tenant, or an API key of none, may use; no limit where one is left out."""

    requests_per_minute: int | None = _limit("Each of the `n` answers of a call is one.")
    tokens_per_minute: int | None = _limit(
        "Of prompts, counted when they arrive, and of answers, counted as they come."
    )
    concurrent_requests: int | None = _limit("Requests that wait or run at the same time.")
    burst_s: float = field(
        default=60.0,
        metadata={"meaning": "Whoever was idle may use at once what the limits bring in so long."},
    )

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "concurrent_requests"):
            if getattr(self, name) == 0:
                raise InvalidConfiguration(
                    f"{name} must be at least 1, got 0; leave it out for no limit"
                )
        if not 0 <= self.burst_s <= MOST_BURST_S:
            raise InvalidConfiguration(
                f"burst must be from 0s to {MOST_BURST_S:.0f}s, got {self.burst_s:g}s"
            )

    @property
    def empty(self) -> bool:
        return (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.concurrent_requests is None
        )

    def __str__(self) -> str:
        limits = (
            (self.requests_per_minute, "requests a minute"),
            (self.tokens_per_minute, "tokens a minute"),
            (self.concurrent_requests, "requests at once"),
        )
        return ", ".join(f"{limit:,} {what}" for limit, what in limits if limit is not None)


UNLIMITED = RateLimits()


@dataclass(frozen=True, slots=True)
class LimitTerms:
    """Who has which limits: tenants by name, and each of the `others` by account (an API key that
    belongs to no tenant; callers without a key are one). One of several `gateways` lets through its
    part of them."""

    tenants: Mapping[str, RateLimits] = field(default_factory=dict)
    others: RateLimits = UNLIMITED
    gateways: int = 1

    def of(self, account: str) -> RateLimits:
        """What this account may use: in the background as much again."""
        return self.tenants.get(owner_of_account(account), self.others)

    @property
    def empty(self) -> bool:
        """Whether nobody has a limit."""
        return self.others.empty and all(each.empty for each in self.tenants.values())

    @property
    def count_tokens(self) -> bool:
        """Whether who comes in depends on the tokens that were drawn."""
        every = (self.others, *self.tenants.values())
        return any(each.tokens_per_minute is not None for each in every)


@dataclass(frozen=True, slots=True)
class CallSize:
    """A call with several answers, to one prompt or more: its id, how many `requests` are made of
    it, and the tokens of all its prompts, each counted once. It comes in as a whole."""

    call_id: str
    requests: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of a limit: of so many a minute the `remaining` may be used now, and after
    `full_s` without use as many as ever."""

    per_minute: int
    remaining: int
    full_s: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an account may still use now; None where it has no such limit."""

    requests: Budget | None = None
    tokens: Budget | None = None
