"""What a worker machine is told (events, past tense) and what it asks for (effects, imperative)."""

from dataclasses import dataclass

from tandem.facts.blocks import BlockChanges
from tandem.facts.errors import TandemError
from tandem.facts.request import FinishReason, Request, TokenLogprobs
from tandem.facts.steps import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class RequestsArrived:
    """These requests want to run; ids are unique among the unfinished."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class RequestsAborted:
    """Nobody waits for these any more. Unknown ids are ignored: they may just have finished."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepDone:
    """The plan of that id has run."""

    result: StepResult


WorkerEvent = RequestsArrived | RequestsAborted | StepDone


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run this plan after all plans before it, then say `StepDone`."""

    plan: StepPlan


@dataclass(frozen=True, slots=True)
class EmitTokens:
    """One token for each of these sequences; parallel tuples.

    `finish_reasons[i]` is None while the sequence goes on. `logprobs` is empty when nobody asked.
    """

    request_ids: tuple[str, ...]
    tokens: tuple[int, ...]
    finish_reasons: tuple[FinishReason | None, ...]
    stopped_by_token: tuple[bool, ...]
    cached_tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """This request never ran and never will."""

    request_id: str
    error: TandemError


@dataclass(frozen=True, slots=True)
class ReportBlocks:
    """Tell whoever routes by cache content."""

    changes: BlockChanges


WorkerEffect = RunStep | EmitTokens | Refuse | ReportBlocks
