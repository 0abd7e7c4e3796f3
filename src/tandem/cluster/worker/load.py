"""What a worker carries now, as the few numbers that others decide by."""

from tandem.cluster.worker.machine import WorkerMachine
from tandem.cluster.worker.sequence import Phase
from tandem.cluster.worker.waiting import prefill_tokens_of
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
