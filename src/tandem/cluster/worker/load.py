"""What gateways are told of a worker's load and of its adapters, and how a report is brought up to
date without looking at the worker again."""

from collections.abc import Iterable

from tandem.cluster.worker.machine import WorkerMachine
from tandem.cluster.worker.sequence import Phase, Sequence
from tandem.cluster.worker.waiting import prefill_tokens_of
from tandem.facts.adapter import MOST_NAMED, AdapterFigures, AdapterMemory
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.router import LoadReported


def load_of(worker: str, machine: WorkerMachine) -> LoadReported:
    """A look at one worker. Sequences whose whole prompt comes from another worker are counted by
    whoever sent them; where a part of it comes from a slower tier, the rest is prefill of this
    worker, also while it still waits for that part."""
    sequences = machine.sequences
    running_sequences = context_tokens = queued_prefill_tokens = 0
    for sequence in sequences.running:
        pending_tokens = sequence.pending_tokens
        if pending_tokens > 1:
            queued_prefill_tokens += pending_tokens
        else:
            running_sequences += 1
            context_tokens += sequence.known_tokens
    waiting = machine.planner.waiting
    waiting_requests = waiting.requests
    queued_prefill_tokens += waiting.prefill_tokens
    for sequence in sequences.importing.values():
        tokens = prefill_tokens_of(sequence)
        if tokens and sequence.phase is not Phase.ENDED:
            waiting_requests += 1
            queued_prefill_tokens += tokens
    return LoadReported(
        worker=worker,
        running_sequences=running_sequences,
        waiting_requests=waiting_requests,
        queued_prefill_tokens=queued_prefill_tokens,
        context_tokens=context_tokens,
        free_blocks=sequences.pool.free_blocks,
    )


def addressed(
    load: LoadReported,
    events: int,
    steps: tuple[StepTotals, ...],
    drafts: DraftTotals | None = None,
    adapters: AdapterFigures | None = None,
) -> LoadReported:
    """The same load of a worker that had received so many events, with what its steps took, what
    came of its drafts, and its adapters."""
    return LoadReported(
        load.worker,
        load.running_sequences,
        load.waiting_requests,
        load.queued_prefill_tokens,
        load.context_tokens,
        load.free_blocks,
        events,
        steps,
        drafts,
        adapters,
    )


def drawn_since(load: LoadReported, tokens: int) -> LoadReported:
    """The load once its running sequences have drawn so many tokens more, in all."""
    return LoadReported(
        load.worker,
        load.running_sequences,
        load.waiting_requests,
        load.queued_prefill_tokens,
        load.context_tokens + tokens,
        load.free_blocks,
        load.received_events,
    )


def adapter_figures(machine: WorkerMachine, memory: AdapterMemory) -> AdapterFigures:
    """The adapters of a worker, whose `memory` holds them. An adapter whose requests run and wait
    is among both."""
    sequences = machine.sequences
    return AdapterFigures(
        _digests((*sequences.running, *sequences.importing.values())),
        _digests(machine.planner.waiting),
        machine.config.max_adapters,
        memory,
    )


def _digests(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    adapters = (each.request.adapter for each in sequences)
    return tuple(sorted({each.digest for each in adapters if each is not None})[:MOST_NAMED])
