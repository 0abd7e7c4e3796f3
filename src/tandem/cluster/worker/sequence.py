"""One sequence of a worker: its tokens, its KV residency, and how far both are."""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from enum import Enum
from typing import overload

from msgspec import Struct

from tandem.cluster.worker.draft_history import DraftRecord
from tandem.facts.blocks import Chain, grown_chain
from tandem.facts.kv import BlockName
from tandem.facts.request import FinishReason, Request, TokenLogprobs
from tandem.facts.token_tree import NO_GUESSES
from tandem.policy.batching import NEVER_NS, Rank


class KnownTokens(Ordered[int]):
    """Grows at its end. The prompt never changes and is not copied: 64 choices of one long prompt
    are one prompt. Slices are arrays of their own. `later` is what follows the prompt."""

    __slots__ = ("_prompt", "_prompt_tokens", "later")

    def __init__(self, prompt: Ordered[int], later: Iterable[int] = ()) -> None:
        self._prompt = prompt
        self._prompt_tokens = len(prompt)
        self.later = array("I", later)

    def __len__(self) -> int:
        return self._prompt_tokens + len(self.later)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> "array[int]": ...

    def __getitem__(self, place: int | slice) -> "int | array[int]":
        prompt_tokens = self._prompt_tokens
        if not isinstance(place, slice):
            place = range(len(self))[place]
            known = place < prompt_tokens
            return self._prompt[place] if known else self.later[place - prompt_tokens]
        first, end, step = place.indices(len(self))
        assert step == 1
        known_prompt = self._prompt[first:end]
        if isinstance(known_prompt, array) and known_prompt.typecode == "I":
            found = known_prompt
        else:
            found = array("I", known_prompt)
        if end > prompt_tokens:
            found += self.later[max(0, first - prompt_tokens) : end - prompt_tokens]
        return found

    def extend(self, tokens: Iterable[int]) -> None:
        self.later.extend(tokens)


class Phase(Enum):
    """Where a sequence stands. Every accepted sequence reaches ENDED exactly once.

    IMPORTING: has a slot and blocks, whose KV is on its way from elsewhere. PINNED: has drawn its
    one token and keeps its blocks until the worker that goes on with it has read them.
    """

    WAITING = "waiting"
    IMPORTING = "importing"
    RUNNING = "running"
    PINNED = "pinned"
    ENDED = "ended"


# Asked of every sequence in every step; Python 3.11 looks a member of an enum up ten times as long.
IMPORTING = Phase.IMPORTING


class KvResidency(Struct):
    """What a sequence has while it is resident, and loses as a whole when it leaves.

    KV is planned for the first `scheduled` tokens and confirmed for the first `confirmed`; the
    first `committed` of `blocks` are in the prefix cache. `placed`: a plan has put the sequence
    into the slot; `copied`: another worker reads the blocks meanwhile.
    """

    slot: int = -1
    blocks: list[int] = []
    scheduled: int = 0
    confirmed: int = 0
    committed: int = 0
    placed: bool = False
    copied: bool = False


class PrefixHit(Struct):
    """`cached_tokens` of the prompt were found in the cache; -1 before the first look. KV of the
    first `reached_tokens` was here, or on its way, in an earlier stay: finding that is no hit.
    `likely_cached_tokens` are what a look on arrival found. While another fills blocks that both
    need, the last of those is `awaited`."""

    cached_tokens: int = -1
    reached_tokens: int = 0
    likely_cached_tokens: int = 0
    awaited: bytes | None = None


class Sequence:
    """A request on its way.

    `tokens` are known (prompt and drawn), `known_tokens` of them; `unseen` counts tokens drawn by
    steps still in flight. `residency` is what it has here now, `chain` holds the hashes of its full
    known blocks.
    Steps are planned until `target_tokens` tokens are drawn or known; the answer ends at
    `limit_tokens`, which lies further only when another worker goes on (`transfers_after`). What
    its client waits for next is due at `due_ns`. The engine's guess at what follows is its
    `proposal`; what came of earlier ones is in `drafts`. While it waited for room for its adapter
    it was `overtaken` by so many. It came at `arrived_ns` (-1 once a step has it), and waited for
    its first step for `waited_ns`, until its first token tells that (0 from then on).
    `prompt_scores` are those of its prompt tokens but the first, as far as they are computed, until
    they leave with the first token; None where none are wanted.
    """

    __slots__ = (
        "arrived_ns",
        "chain",
        "drafts",
        "due_ns",
        "has_sender",
        "import_tokens",
        "known_tokens",
        "limit_tokens",
        "overtaken",
        "phase",
        "prefix_hit",
        "prompt_scores",
        "proposal",
        "rank",
        "request",
        "residency",
        "root",
        "steps_in_flight",
        "target_tokens",
        "tokens",
        "transfers_after",
        "unseen",
        "waited_ns",
    )

    def __init__(
        self,
        request: Request,
        rank: Rank,
        root: bytes,
        context_tokens: int,
        due_ns: int = NEVER_NS,
    ) -> None:
        self.request = request
        self.overtaken = 0
        self.arrived_ns = -1
        self.waited_ns = 0
        self.rank = rank
        self.due_ns = due_ns
        self.root = root
        self.tokens = KnownTokens(request.prompt_tokens, request.output_tokens)
        # Asked for several times a step, where `len` of a class written in Python costs a twentieth
        # of the step.
        self.known_tokens = len(self.tokens)
        wanted_tokens = len(request.prompt_tokens) + request.sampling.max_tokens
        self.limit_tokens = self.target_tokens = min(wanted_tokens, context_tokens)
        self.transfers_after = False
        self.import_tokens = 0
        # Another worker waits to be asked for its KV.
        self.has_sender = False
        self.chain: Chain = ()
        self.phase = Phase.WAITING
        self.residency = KvResidency()
        self.unseen = 0
        self.steps_in_flight = 0
        self.prefix_hit = PrefixHit()
        self.proposal = NO_GUESSES
        self.drafts = DraftRecord()
        # Who goes on with an answer was told the scores of its prompt with the first token.
        wants_scores = request.sampling.prompt_logprobs is not None and not request.output_tokens
        self.prompt_scores: list[TokenLogprobs] | None = [] if wants_scores else None

    @property
    def account(self) -> str:
        return self.request.account

    @property
    def pending_tokens(self) -> int:
        """Tokens whose KV no step has been asked for yet; 0 once the last token is drawn."""
        coming_tokens = self.known_tokens + self.unseen
        if coming_tokens >= self.target_tokens or self.phase is IMPORTING:
            return 0
        return coming_tokens - self.residency.scheduled

    @property
    def untouched(self) -> bool:
        """Whether nothing was computed, moved or drawn for it yet: refusing it wastes nothing."""
        never_ran = self.prefix_hit.cached_tokens < 0 and not self.import_tokens
        return never_ran and self.known_tokens == len(self.request.prompt_tokens)

    @property
    def draftable_tokens(self) -> int:
        """Tokens that may be drafted behind those that are known and being drawn."""
        return max(0, self.target_tokens - self.known_tokens - self.unseen - 1)

    @property
    def draws_next(self) -> bool:
        """Whether the tokens scheduled so far end where the next token is to be drawn."""
        return self.residency.scheduled == self.known_tokens + self.unseen

    def reusable_chain(self, block_size: int) -> Chain:
        """Hashes of the blocks that may come from the cache.

        The last known token is always recomputed: its logits draw the next one. KV that others have
        computed gives no logits, so a prompt that is scored is computed here from its first token
        that has no score.
        """
        self.grow_chain(block_size)
        return self.chain[: self._reusable_tokens // block_size]

    def reusable_tail(self, full_blocks: int, block_size: int) -> "array[int]":
        """The tokens behind these blocks whose KV may come from one that is partly filled."""
        first = full_blocks * block_size
        return self.tokens[first : min(first + block_size, self._reusable_tokens)]

    @property
    def _reusable_tokens(self) -> int:
        reusable_tokens = self.known_tokens - 1
        if self.prompt_scores is None:
            return reusable_tokens
        return min(reusable_tokens, len(self.prompt_scores))

    def scored_tokens(self, first: int, end: int) -> int:
        """Of the tokens `first .. end`, behind how many a prompt token is to be scored; they are
        the first of them."""
        if self.prompt_scores is None:
            return 0
        return max(0, min(end, len(self.request.prompt_tokens) - 1) - first)

    def take_prompt_scores(self) -> tuple[TokenLogprobs, ...] | None:
        """All of them, once."""
        if self.prompt_scores is None:
            return None
        assert len(self.prompt_scores) == len(self.request.prompt_tokens) - 1
        scores, self.prompt_scores = tuple(self.prompt_scores), None
        return scores

    def grow_chain(self, block_size: int) -> None:
        """Have `chain` hold all full blocks of what is known."""
        self.chain = grown_chain(self.chain, self.root, self.tokens, block_size)

    def parent_hash(self, block_index: int) -> bytes:
        return self.chain[block_index - 1] if block_index else self.root

    def block_name(self, block_index: int) -> BlockName:
        """How the full block is called off the device."""
        chain = self.chain
        parent = self.parent_hash(block_index)
        return BlockName(chain[block_index], parent, chain[0], self.request.tenant)

    def stop_for_transfer(self) -> None:
        """Draw one token more or, when some are being drawn, only those; then wait for the worker
        that goes on."""
        self.transfers_after = True
        self.target_tokens = min(self.limit_tokens, self.known_tokens + max(1, self.unseen))

    def step_launched(self, now_ns: int) -> None:
        """A step that has the sequence begins, after it has entered its slot."""
        if self.arrived_ns >= 0:
            self.arrived_ns, self.waited_ns = -1, now_ns - self.arrived_ns

    def take_slot(self, slot: int, blocks: list[int], committed: int, cached_tokens: int) -> None:
        """Take a slot, with the KV of so many tokens already there, in these blocks; the first
        `committed` are full and shared."""
        assert self.phase is Phase.WAITING
        assert not self.steps_in_flight
        self.phase = Phase.RUNNING
        self.residency = KvResidency(slot, blocks, cached_tokens, cached_tokens, committed)
        if self.prompt_scores is not None:
            # What is computed again is scored again.
            del self.prompt_scores[cached_tokens:]
        hit, prompt_tokens = self.prefix_hit, len(self.request.prompt_tokens)
        new_tokens = min(cached_tokens, prompt_tokens) - hit.reached_tokens
        hit.cached_tokens = max(0, hit.cached_tokens) + max(0, new_tokens)

    def give_up_slot(self, phase: Phase) -> None:
        """Give up slot, blocks and computed KV; the known tokens stay."""
        self.phase = phase
        self.prefix_hit.reached_tokens = max(
            self.prefix_hit.reached_tokens, self.residency.scheduled
        )
        self.residency = KvResidency()
        self.proposal = NO_GUESSES

    def append(self, token: int) -> tuple[FinishReason | None, bool]:
        """Take a drawn token. Says whether the sequence ends, and whether this token stops it."""
        drawn = self.tokens.later
        drawn.append(token)
        self.known_tokens += 1
        sampling = self.request.sampling
        if token in sampling.stop_token_ids and len(drawn) > sampling.min_tokens:
            return FinishReason.STOP, True
        if self.known_tokens >= self.limit_tokens:
            return FinishReason.LENGTH, False
        return None, False

    def extend(self, tokens: Iterable[int]) -> None:
        """Take tokens that were drawn elsewhere."""
        self.proposal = NO_GUESSES
        self.tokens.extend(tokens)
        self.known_tokens = len(self.tokens)
