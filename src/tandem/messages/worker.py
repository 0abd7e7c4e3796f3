"""Events (past tense) and effects (imperative) of the worker machine.

All messages, events and effects are a `Struct`: made in a tenth of the time that a frozen dataclass
takes, and the same to whoever reads it.
"""

from msgspec import Struct

from tandem.facts.blocks import BlockChanges, BlockHash
from tandem.facts.bounds import Count, Nanoseconds, Token
from tandem.facts.errors import TandemError
from tandem.facts.kv import BlockName
from tandem.facts.request import FinishReason, Request, SessionKey, TokenLogprobs
from tandem.facts.steps import StepPlan, StepResult


class RequestsArrived(Struct, frozen=True):
    """These requests want to run; ids are unique among the unfinished. The KV of the first
    `import_tokens[i]` known tokens of each (empty: of none) can be had from slower tiers, as far as
    the device lacks it when the request starts."""

    requests: tuple[Request, ...]
    import_tokens: tuple[Count, ...] = ()

    @property
    def imports(self) -> tuple[int, ...]:
        """For each of the requests."""
        return self.import_tokens or (0,) * len(self.requests)


class PrefillsArrived(Struct, frozen=True):
    """Another worker will continue these: compute what is known, draw one token, and keep the
    blocks until `TransferPinsReleased`. A request that ends with that token holds nothing. Slower
    tiers have `import_tokens` as of `RequestsArrived`."""

    requests: tuple[Request, ...]
    import_tokens: tuple[Count, ...]


class ImportsArrived(Struct, frozen=True):
    """These want to run, and another worker sends the KV of the first `import_tokens[i]` of their
    known tokens: it waits to be asked for that, however little is wanted."""

    requests: tuple[Request, ...]
    import_tokens: tuple[Count, ...]


class ImportDone(Struct, frozen=True):
    """What `ImportBlocks` asked for has come or will not come; nobody writes to the blocks any
    more. KV of the first `tokens` tokens is there; the rest, if any, is computed. `output_tokens`
    were drawn elsewhere in the meantime and continue what was known."""

    request_id: str
    tokens: Count
    output_tokens: tuple[Token, ...] = ()


class CopiesRequested(Struct, frozen=True):
    """Another worker may soon go on with these running requests: report how far their KV can be
    read by now (`KvComputed`), and go on. 0 tokens are reported of one with nothing to read, and of
    one that must give its blocks away later; `TransferPinsReleased` ends the interest. Unknown ids
    are ignored."""

    request_ids: tuple[str, ...]


class KvTransfersRequested(Struct, frozen=True):
    """Another worker will go on with these running requests: draw what is under way, then hold the
    blocks. 0 tokens are reported (`KvComputed`) of one that does not run; unknown ids are
    ignored."""

    request_ids: tuple[str, ...]


class TransferPinsReleased(Struct, frozen=True):
    """The pinned or copied blocks of these are read no more. Unknown ids are ignored."""

    request_ids: tuple[str, ...]


class RequestsAborted(Struct, frozen=True):
    """These are cancelled. Unknown ids are ignored: they may just have finished."""

    request_ids: tuple[str, ...]


class SessionPaused(Struct, frozen=True):
    """A session waits for a tool and is expected back in so long: what only it uses on the device
    makes room for others until then."""

    session: SessionKey
    return_in_ns: Nanoseconds


class SessionReturning(Struct, frozen=True):
    """A paused session is expected back in so long, with a prompt that begins with the blocks
    `digests` under the root `root`: they should be on the device by then."""

    session: SessionKey
    tenant: str
    root: BlockHash
    digests: tuple[BlockHash, ...]
    return_in_ns: Nanoseconds


class BlocksPrefetched(Struct, frozen=True):
    """A `PrefetchBlocks` is over: the first `arrived_blocks` of its blocks have come."""

    prefetch_id: int
    arrived_blocks: int


class PrefixCacheReset(Struct, frozen=True):
    """An operator wants what was cached forgotten: on the device, and with `external` in slower
    tiers as well, where this process has some. Requests under way keep their KV."""

    external: bool = False


class StepDone(Struct, frozen=True):
    """The plan of that id has run."""

    result: StepResult


WorkerEvent = (
    RequestsArrived
    | PrefillsArrived
    | ImportsArrived
    | ImportDone
    | CopiesRequested
    | KvTransfersRequested
    | TransferPinsReleased
    | RequestsAborted
    | SessionPaused
    | SessionReturning
    | BlocksPrefetched
    | PrefixCacheReset
    | StepDone
)


class RunStep(Struct, frozen=True):
    """Run this plan after all plans before it. Ends with `StepDone`."""

    plan: StepPlan


class EmitTokens(Struct, frozen=True):
    """One token for each of these sequences; parallel tuples. A sequence that got several has as
    many rows, one behind the other.

    `finish_reasons[i]` is None while the sequence goes on. `logprobs` is empty when nobody asked.
    `prompt_logprobs` are of all prompt tokens but the first, with the first token of a request that
    asked; empty where no row has any. `waited_ns` tells with the first token that a request gets
    here how long it had waited for its first step (0 with others); empty where no row tells it.
    """

    request_ids: tuple[str, ...]
    tokens: tuple[Token, ...]
    finish_reasons: tuple[FinishReason | None, ...]
    stopped_by_token: tuple[bool, ...]
    cached_tokens: tuple[Count, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] = ()
    waited_ns: tuple[Nanoseconds, ...] = ()


class Refuse(Struct, frozen=True):
    """This request never ran and never will."""

    request_id: str
    error: TandemError


class FailRequest(Struct, frozen=True):
    """This request was accepted and cannot be answered; `reason` is one clear line for its
    client. All others go on."""

    request_id: str
    reason: str


class ReportBlocks(Struct, frozen=True):
    """The blocks that the prefix cache has stored and removed, for routers."""

    changes: BlockChanges


class BlocksCommitted(Struct, frozen=True):
    """These blocks are full and confirmed. Each keeps its content for as long as the pool has it
    under this version. Parallel tuples."""

    blocks: tuple[int, ...]
    versions: tuple[int, ...]
    names: tuple[BlockName, ...]


class ImportBlocks(Struct, frozen=True):
    """Bring the KV of tokens `first_token .. end_token` of this request into `blocks`, in order.
    Ends with `ImportDone`. The request's earlier tokens were in the cache."""

    request_id: str
    first_token: Count
    end_token: Count
    blocks: tuple[Count, ...]


class CancelImport(Struct, frozen=True):
    """This import is not wanted any more; it still ends with `ImportDone` once the blocks are
    quiet."""

    request_id: str


class PrefetchBlocks(Struct, frozen=True):
    """Bring `names[i]` from slower tiers into `blocks[i]`, for no request yet. Ends with
    `BlocksPrefetched`."""

    prefetch_id: int
    names: tuple[BlockName, ...]
    blocks: tuple[int, ...]


class KvComputed(Struct, frozen=True):
    """KV of the first `tokens[i]` tokens of these requests, whose blocks another worker will read,
    lies in `blocks[i]` (all of the request's blocks so far). `held[i]`: this is all, the request
    has done its part here. 0 tokens: what was there is lost and must be computed anew. `versions`
    runs parallel to `blocks`: a block is handed out anew under another one."""

    request_ids: tuple[str, ...]
    tokens: tuple[Count, ...]
    blocks: tuple[tuple[Count, ...], ...]
    held: tuple[bool, ...]
    versions: tuple[tuple[Count, ...], ...] = ()


WorkerEffect = (
    RunStep
    | EmitTokens
    | Refuse
    | FailRequest
    | BlocksCommitted
    | ReportBlocks
    | ImportBlocks
    | CancelImport
    | PrefetchBlocks
    | KvComputed
)
