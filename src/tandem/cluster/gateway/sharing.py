"""State shared by several gateways of one cluster: each sends what it has given out to the others
once a report interval.

Gateways have no channel to each other, so workers relay: each message goes through two of them, in
turn. The receiver counts it as use of its own clients: for fair shares and rate limits, for places
at the workers, and prompts are expected where they were sent. A gateway that is silent counts for
nothing, except that its part of the rate limits is kept for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tandem.cluster.gateway.members import Members
from tandem.cluster.gateway.rate_limits import CallLimits
from tandem.cluster.gateway.routing import Routing
from tandem.cluster.router.use_totals import Totals
from tandem.messages.cluster import Registered
from tandem.messages.gateway import GatewayEffect, SendToWorker
from tandem.messages.sharing import (
    MOST_ACCOUNTS,
    MOST_BLOCKS,
    MOST_CLASSES,
    MOST_PROMPT_BLOCKS,
    AccountTotals,
    GatewayUse,
    RoutedPrompt,
    ShareUse,
)

# One relay that is cut off or dies costs nothing.
RELAYS = 2
# As many as can be configured.
MOST_GATEWAYS = 64
# A gateway whose first message received has so low a number was started moments ago: all use that
# it reports is new.
NEW_SERIALS = 64


@dataclass(slots=True)
class OtherGateway:
    """The last message of another gateway, received at `received_ns`, and the newest totals of each
    account. If its messages were received `from_start`, an account's first totals are all new
    use."""

    use: GatewayUse
    received_ns: int
    from_start: bool
    accounts: dict[str, AccountTotals] = field(default_factory=dict)


class Sharing:
    """One for a gateway. `others` are the gateways that are not silent, by name."""

    def __init__(
        self,
        terms: Registered,
        routing: Routing,
        members: Members,
        limits: CallLimits,
        *,
        now_ns: int,
    ) -> None:
        self.others: dict[str, OtherGateway] = {}
        self._gateway, self._started_ns = terms.gateway, now_ns
        self._routing, self._members, self._limits = routing, members, limits
        self._admission = routing.router.admission
        self._use = self._admission.use
        self._interval_ns, self._silence_ns = terms.report_interval_ns, terms.silence_ns
        # How often a message goes out while nothing changes: a heartbeat.
        self._quiet_ns = max(self._interval_ns, self._silence_ns // 4)
        self._serial = 0
        # Whether somebody may not know of this gateway yet.
        self._unknown = True
        self._shared_ns = now_ns
        # Where among all accounts the next message goes on, beside those with changes.
        self._cursor = 0

    def next_wakeup(self) -> int:
        """When `pass_time` is due, if nothing happens before."""
        silent_ns = (other.received_ns + self._silence_ns for other in self.others.values())
        return min(self._due_ns, *silent_ns) if self.others else self._due_ns

    @property
    def _due_ns(self) -> int:
        """When the next message is due."""
        news = self._use.news or self._unknown
        return self._shared_ns + (self._interval_ns if news else self._quiet_ns)

    def received(self, use: GatewayUse, now_ns: int) -> list[GatewayEffect]:
        """What another gateway has given out: all that is new is counted here."""
        other = self._sender(use, now_ns)
        if other is None:
            return []
        other.use, other.received_ns = use, now_ns
        for totals in use.accounts:
            self._take(other, totals, now_ns)
        for prompt in use.prompts:
            if prompt.worker in self._admission.fleet.workers:
                self._admission.index.expect(prompt.worker, prompt.digests, now_ns)
        return self._share_places(now_ns)

    def pass_time(self, now_ns: int) -> list[GatewayEffect]:
        """Send what the others are to know if it is due, and forget gateways that are silent."""
        effects: list[GatewayEffect] = []
        for name, other in list(self.others.items()):
            if now_ns - other.received_ns >= self._silence_ns:
                self._forget(name, now_ns)
                effects += self._share_places(now_ns)
        if now_ns < self._due_ns:
            return effects
        self._shared_ns = now_ns
        if not (relays := self._relays()):
            # What accounts have used is sent later; where prompts went is of no interest then.
            self._use.prompts.clear()
            return effects
        message = ShareUse(self._message())
        self._serial += 1
        self._unknown = False
        return effects + [SendToWorker(peer, message) for peer in relays]

    def _sender(self, use: GatewayUse, now_ns: int) -> OtherGateway | None:
        """The gateway that sent it; None if that is this one, or the message is an old one."""
        name, other = use.gateway, self.others.get(use.gateway)
        if other is not None and use.started_ns > other.use.started_ns:
            self._forget(name, now_ns)
            other = None
        if other is not None:
            before = other.use
            newer = use.started_ns == before.started_ns and use.serial > before.serial
            return other if newer else None
        if name == self._gateway or len(self.others) >= MOST_GATEWAYS:
            return None
        other = self.others[name] = OtherGateway(use, now_ns, use.serial < NEW_SERIALS)
        self._unknown = True
        self._limits.others_connected(len(self.others), now_ns)
        return other

    def _relays(self) -> list[str]:
        peers = [member.peer for member in self._members]
        first = self._serial * RELAYS
        count = min(RELAYS, len(peers))
        return [peers[(first + index) % len(peers)] for index in range(count)]

    def _message(self) -> GatewayUse:
        """The next one; what it carries is not new any more."""
        queue, of = self._admission.queue, self._use.of
        waiting = queue.waiting_classes() if len(queue) else {}
        return GatewayUse(
            self._gateway,
            self._started_ns,
            self._serial,
            queue.wanted_places,
            len(queue),
            tuple(
                _account_totals(account, of[account], waiting.get(account, ()))
                for account in self._take_accounts()
            ),
            tuple(self._take_prompts()),
        )

    def _take_accounts(self) -> list[str]:
        """Those with changes first; the others heal what a lost message has left out."""
        accounts = dict.fromkeys(islice(self._use.changed, MOST_ACCOUNTS))
        for account in accounts:
            del self._use.changed[account]
        room = MOST_ACCOUNTS - len(accounts)
        again = list(islice(self._use.of, self._cursor, self._cursor + room))
        self._cursor += len(again)
        if self._cursor >= len(self._use.of):
            self._cursor = 0
        return list(dict.fromkeys([*accounts, *again]))

    def _take_prompts(self) -> Iterator[RoutedPrompt]:
        """The newest, as many as go into a message."""
        prompts, left = self._use.prompts, MOST_BLOCKS
        while prompts and left:
            (worker, _), chain = prompts.popitem()
            digests = tuple(chain[: min(MOST_PROMPT_BLOCKS, left)])
            left -= len(digests)
            yield RoutedPrompt(worker, digests)
        prompts.clear()

    def _take(self, other: OtherGateway, totals: AccountTotals, now_ns: int) -> None:
        account, before = totals.account, other.accounts.get(totals.account)
        other.accounts[account] = totals
        if before is None:
            # What was used before the first message received is past: it neither makes anybody
            # wait nor gives anybody credit.
            before = AccountTotals(account, 0, 0, 0, 0, 0) if other.from_start else totals
        service = (
            max(0, totals.input_tokens - before.input_tokens),
            max(0, totals.output_tokens - before.output_tokens),
        )
        if any(service):
            self._admission.queue.served_elsewhere(account, *service)
        self._limits.used_elsewhere(
            account, totals.requests - before.requests, totals.tokens - before.tokens, now_ns
        )
        self._count_running(account, now_ns)

    def _forget(self, name: str, now_ns: int) -> None:
        """It is silent, or was started anew: what ran through it does not count any more."""
        gone = self.others.pop(name)
        for account, totals in gone.accounts.items():
            if totals.running:
                self._count_running(account, now_ns)
        self._limits.others_connected(len(self.others), now_ns)

    def _count_running(self, account: str, now_ns: int) -> None:
        found = (other.accounts.get(account) for other in self.others.values())
        running = sum(totals.running for totals in found if totals is not None)
        self._limits.run_elsewhere(account, running, now_ns)

    def _share_places(self, now_ns: int) -> list[GatewayEffect]:
        """What the others have at workers, and who waits there, has changed."""
        waiting: dict[str, dict[str, None]] = {}
        for other in self.others.values():
            if other.use.waiting:
                for totals in other.accounts.values():
                    for name in totals.waiting:
                        waiting.setdefault(name, {})[totals.account] = None
        queue = self._admission.queue
        uses = (other.use for other in self.others.values())
        queue.set_elsewhere([use.wanted for use in uses], waiting)
        return self._routing.fill(now_ns) if len(queue) else []


def _account_totals(account: str, totals: Totals, waiting: Sequence[str]) -> AccountTotals:
    return AccountTotals(
        account,
        totals.input_tokens,
        totals.output_tokens,
        totals.requests,
        totals.tokens,
        totals.running,
        tuple(waiting[:MOST_CLASSES]),
    )
