"""What accounts have used through one gateway, in totals, and the prompts that it has just sent to
workers: the state that it shares with other gateways."""

from dataclasses import dataclass

from tandem.facts.blocks import Chain

# So many prompts are shared at a time; of more, the newest.
KEPT_PROMPTS = 64


@dataclass(slots=True)
class Totals:
    """Of one account, as `messages.sharing.AccountTotals`."""

    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    tokens: int = 0
    running: int = 0


class UseTotals:
    """`of` has the totals by account, `changed` the accounts of which something is new, `prompts`
    the chains of new prompts by worker and last block. One entry an account, as in the fair
    queue."""

    def __init__(self) -> None:
        self.of: dict[str, Totals] = {}
        self.changed: dict[str, None] = {}
        self.prompts: dict[tuple[str, bytes], Chain] = {}

    @property
    def news(self) -> bool:
        """Whether there is something that was not taken yet."""
        return bool(self.changed or self.prompts)

    def served(self, account: str, input_tokens: int, output_tokens: int) -> None:
        """The account got service that counts for its share."""
        totals = self.note(account)
        totals.input_tokens += input_tokens
        totals.output_tokens += output_tokens

    def charged(self, account: str, requests: int, tokens: int) -> None:
        """So much counts for its rate limits; less than 0: is given back."""
        totals = self.note(account)
        totals.requests = max(0, totals.requests + requests)
        totals.tokens = max(0, totals.tokens + tokens)

    def runs(self, account: str, requests: int) -> None:
        """So many more limited requests wait or run."""
        self.note(account).running += requests

    def note(self, account: str) -> Totals:
        """Something about this account changes."""
        self.changed[account] = None
        totals = self.of.get(account)
        if totals is None:
            totals = self.of[account] = Totals()
        return totals

    def routed(self, worker: str, chain: Chain) -> None:
        """A prompt with these blocks was sent there."""
        if chain:
            self.prompts[worker, chain[-1]] = chain
            if len(self.prompts) > KEPT_PROMPTS:
                del self.prompts[next(iter(self.prompts))]
