"""What a worker carries now, as the few numbers that others decide by."""

from tandem.facts.fleet_messages import LoadReported
from tandem.machines.worker import WorkerMachine


def load_of(worker: str, machine: WorkerMachine) -> LoadReported:
    """A look at one worker; sequences whose KV comes from elsewhere are counted by whoever sent
    them."""
    running_sequences = context_tokens = queued_prefill_tokens = 0
    for sequence in machine.residents.running:
        pending_tokens = sequence.pending_tokens
        if pending_tokens > 1:
            queued_prefill_tokens += pending_tokens
        else:
            running_sequences += 1
            context_tokens += len(sequence.tokens)
    waiting_requests = 0
    for sequence in machine.planner.waiting:
        known_tokens = max(sequence.likely_cached_tokens, sequence.import_tokens)
        if sequence.import_tokens < len(sequence.request.prompt_tokens):
            waiting_requests += 1
            queued_prefill_tokens += max(1, len(sequence.tokens) - known_tokens)
    return LoadReported(
        worker=worker,
        running_sequences=running_sequences,
        waiting_requests=waiting_requests,
        queued_prefill_tokens=queued_prefill_tokens,
        context_tokens=context_tokens,
        free_blocks=machine.residents.pool.free_blocks,
    )
