"""The rate limiter: token buckets of requests and tokens, and requests at once, by account.

A bucket holds what its limit brings in `burst_s`, and is full at first. A request comes in where
its bucket has what it costs. One that costs more than a bucket holds comes in when that is full,
and the next ones wait until what it took beyond is made up for: no request is too large for ever,
and over a long time no more comes through than the limit says.

Pure: instants come in, decisions go out, in whole numbers, so that a call that is repeated exactly
after the wait of its refusal comes in. Bounded: an account is forgotten once it owes nothing.
"""

from dataclasses import dataclass, field

from tandem.facts.errors import Rejection
from tandem.facts.rate_limits import Allowance, Budget, LimitTerms, RateLimits

NS_PER_S = 1_000_000_000
NS_PER_MINUTE = 60 * NS_PER_S
# The newest request counts so much against all before it, in how long one takes.
NEWEST = 0.1
SHORTEST_WAIT_NS, LONGEST_WAIT_NS = NS_PER_S, NS_PER_MINUTE
# Accounts that owe nothing are looked for once there are so many, and again at twice as many.
FORGET_AT = 64


class TokenBucket:
    """A limit a minute. What was taken and has not come back is kept as a whole number: one of what
    it counts is a minute of nanoseconds, times the gateways that share the limit; of that the limit
    brings back itself each nanosecond."""

    __slots__ = ("_capacity", "_limit", "_taken", "_unit", "_updated_ns")

    def __init__(self, limit: int, limits: RateLimits, gateways: int, now_ns: int) -> None:
        self._limit = limit
        self._unit = NS_PER_MINUTE * gateways
        self._capacity = _capacity(limit, limits)
        self._taken = 0
        self._updated_ns = now_ns

    @property
    def limit(self) -> int:
        return self._limit

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """How long until it has so much, if nothing is taken meanwhile; 0: it has."""
        needed = min(amount * self._unit, self._capacity)
        lacking = self._taken_at(now_ns) + needed - self._capacity
        return max(0, -(-lacking // self._limit))

    def take(self, amount: int, now_ns: int) -> None:
        """Take so much, even where it is not there."""
        self._taken = self._taken_at(now_ns) + amount * self._unit
        self._updated_ns = now_ns

    def give_back(self, amount: int, now_ns: int) -> None:
        """What was taken in vain."""
        self._taken = max(0, self._taken_at(now_ns) - amount * self._unit)
        self._updated_ns = now_ns

    def limits_changed(self, limit: int, limits: RateLimits, gateways: int, now_ns: int) -> None:
        """Another limit from now on; what was taken stays taken."""
        unit = NS_PER_MINUTE * gateways
        self._taken = self._taken_at(now_ns) * unit // self._unit
        self._limit, self._unit, self._updated_ns = limit, unit, now_ns
        self._capacity = _capacity(limit, limits)

    def is_full(self, now_ns: int) -> bool:
        return not self._taken_at(now_ns)

    def budget(self, now_ns: int) -> Budget:
        """What is left."""
        taken = self._taken_at(now_ns)
        # Where a bucket holds less than one, one comes in when it is full.
        remaining = max(0, self._capacity - taken) // self._unit or int(not self.wait_ns(1, now_ns))
        return Budget(self._limit, remaining, taken / self._limit / NS_PER_S)

    def _taken_at(self, now_ns: int) -> int:
        return max(0, self._taken - self._limit * max(0, now_ns - self._updated_ns))


def _capacity(limit: int, limits: RateLimits) -> int:
    return limit * round(limits.burst_s * NS_PER_S)


@dataclass(frozen=True, slots=True)
class LimitReached:
    """Why a call does not come in, and when it would (0: never)."""

    by: Rejection
    reason: str
    wait_ns: int


@dataclass(slots=True)
class AccountUse:
    """What one account uses. `running` requests wait or run, `running_elsewhere` so many at other
    gateways; one takes `mean_ns` from its arrival to its end."""

    limits: RateLimits
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    running: int = 0
    running_elsewhere: int = 0
    mean_ns: float = field(default=float(SHORTEST_WAIT_NS))

    def limits_changed(self, limits: RateLimits, gateways: int, now_ns: int) -> None:
        """Other limits from now on, or its first ones."""

        def changed(bucket: TokenBucket | None, limit: int | None) -> TokenBucket | None:
            if limit is None or bucket is None:
                return None if limit is None else TokenBucket(limit, limits, gateways, now_ns)
            bucket.limits_changed(limit, limits, gateways, now_ns)
            return bucket

        self.limits = limits
        self.requests = changed(self.requests, limits.requests_per_minute)
        self.tokens = changed(self.tokens, limits.tokens_per_minute)

    def owes_nothing(self, now_ns: int) -> bool:
        """Whether a fresh one would be the same."""
        buckets = (each for each in (self.requests, self.tokens) if each is not None)
        idle = not self.running and not self.running_elsewhere
        return idle and all(bucket.is_full(now_ns) for bucket in buckets)


class RateLimiter:
    """Which calls come in, by account. `judge` a call, `charge` it if it comes in, `charge_tokens`
    as its answers come; its requests count as running from `started` to `ended`. Only accounts
    that have limits are remembered."""

    def __init__(self, terms: LimitTerms) -> None:
        self.terms = terms
        self._accounts: dict[str, AccountUse] = {}
        self._forget_at = FORGET_AT

    def __len__(self) -> int:
        return len(self._accounts)

    def judge(self, account: str, requests: int, tokens: int, now_ns: int) -> LimitReached | None:
        """What keeps a call of so many requests with so many prompt tokens out; None: nothing. Of
        several limits the one that does so for longest. Changes nothing that counts."""
        use = self._of(account, now_ns)
        if use is None:
            return None
        found = [
            _reached(Rejection.REQUESTS, use.requests, requests, now_ns),
            _reached(Rejection.TOKENS, use.tokens, tokens, now_ns),
            self._too_many(use, requests),
        ]
        reached = [each for each in found if each is not None]
        # What never comes in is no question of time.
        return max(reached, key=lambda each: (not each.wait_ns, each.wait_ns), default=None)

    def charge(self, account: str, requests: int, tokens: int, now_ns: int) -> None:
        """A call of this account came in, here or at another gateway."""
        use = self._of(account, now_ns)
        if use is None:
            return
        if use.requests is not None and requests:
            use.requests.take(requests, now_ns)
        if use.tokens is not None and tokens:
            use.tokens.take(tokens, now_ns)

    def charge_tokens(self, account: str, tokens: int, now_ns: int) -> None:
        """So many tokens of answers came."""
        use = self._accounts.get(account)
        if use is not None and use.tokens is not None:
            use.tokens.take(tokens, now_ns)

    def give_back(self, account: str, requests: int, tokens: int, now_ns: int) -> None:
        """A call that had come in was refused later, for another reason than its limits."""
        use = self._accounts.get(account)
        if use is None:
            return
        if use.requests is not None:
            use.requests.give_back(requests, now_ns)
        if use.tokens is not None:
            use.tokens.give_back(tokens, now_ns)

    def started(self, account: str, now_ns: int) -> bool:
        """One more request waits or runs; whether it counts until it has `ended`."""
        use = self._of(account, now_ns)
        if use is not None:
            use.running += 1
        return use is not None

    def ended(self, account: str, took_ns: int) -> None:
        """A request that `started` waits and runs no more."""
        use = self._accounts[account]
        use.running -= 1
        use.mean_ns += NEWEST * (took_ns - use.mean_ns)

    def set_running_elsewhere(self, account: str, requests: int, now_ns: int) -> None:
        """So many requests of this account wait or run at other gateways now."""
        if use := self._of(account, now_ns):
            use.running_elsewhere = requests

    def limits_changed(self, terms: LimitTerms, now_ns: int) -> None:
        """Other limits from now on. What was used stays used, and who runs goes on."""
        self.terms = terms
        for account, use in self._accounts.items():
            use.limits_changed(terms.of(account), terms.gateways, now_ns)

    def allowance(self, account: str, now_ns: int) -> Allowance | None:
        """What is left; None for an account without limits. Changes nothing."""
        limits, use = self.terms.of(account), self._accounts.get(account)
        if limits.empty:
            return None
        if use is None:
            use = AccountUse(limits)
            use.limits_changed(limits, self.terms.gateways, now_ns)
        return Allowance(
            None if use.requests is None else use.requests.budget(now_ns),
            None if use.tokens is None else use.tokens.budget(now_ns),
        )

    def running(self) -> dict[str, int]:
        """How many requests of each account wait or run here."""
        return {account: use.running for account, use in self._accounts.items() if use.running}

    def _of(self, account: str, now_ns: int) -> AccountUse | None:
        use = self._accounts.get(account)
        if use is not None:
            return use
        limits = self.terms.of(account)
        if limits.empty:
            return None
        if len(self._accounts) >= self._forget_at:
            kept = {n: each for n, each in self._accounts.items() if not each.owes_nothing(now_ns)}
            self._accounts, self._forget_at = kept, max(FORGET_AT, 2 * len(kept))
        use = self._accounts[account] = AccountUse(limits)
        use.limits_changed(limits, self.terms.gateways, now_ns)
        return use

    def _too_many(self, use: AccountUse, requests: int) -> LimitReached | None:
        """By requests at once. When the next one ends is not known: those that run are taken to be
        evenly spread over the time that one takes."""
        if use.limits.concurrent_requests is None:
            return None
        most = max(1, use.limits.concurrent_requests // self.terms.gateways)
        running = use.running + use.running_elsewhere
        if requests > most:
            reason = f"n asks for {requests} answers, and {most} at once are the limit"
            return LimitReached(Rejection.CONCURRENT, reason, 0)
        too_many = running + requests - most
        if too_many <= 0:
            return None
        wait_ns = round(use.mean_ns * too_many / running)
        return LimitReached(
            Rejection.CONCURRENT,
            f"{most} requests at once are the limit, and {running} are under way",
            min(max(SHORTEST_WAIT_NS, wait_ns), LONGEST_WAIT_NS),
        )


def _reached(
    by: Rejection, bucket: TokenBucket | None, amount: int, now_ns: int
) -> LimitReached | None:
    if bucket is None or not (wait_ns := bucket.wait_ns(amount, now_ns)):
        return None
    what = "requests" if by is Rejection.REQUESTS else "tokens"
    left = bucket.budget(now_ns).remaining
    needed = f"{left} of them are left, and this call takes {amount}"
    return LimitReached(by, f"the limit of {bucket.limit} {what} a minute: {needed}", wait_ns)
