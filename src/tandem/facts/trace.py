"""One request of a recorded workload, as lengths and shared prefix blocks rather than text."""

from dataclasses import dataclass

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request. Rows that start with the same `block_ids` share that much of their prompt.

    Rows with the same non-empty `session` follow each other: each is sent `think_s` after the one
    before it ended (a person reading, an agent's tool at work), and not before `arrival_s` of the
    session's first row. `tenant` and `service_class` name who asks and on what terms. `answers`
    above 1 is a gang: so many parallel answers to the one prompt (best of n). With `pause_s` the
    request announces that the session's next one comes so long after its answer.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    session: str = ""
    think_s: float = 0.0
    tenant: str = ""
    service_class: str = ""
    answers: int = 1
    pause_s: float | None = None
