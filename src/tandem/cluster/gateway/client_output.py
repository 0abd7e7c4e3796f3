"""Output for clients: drawn tokens under the clients' request ids, without those of stale
attempts."""

from msgspec import Struct, structs

from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.request_state import Stage
from tandem.cluster.worker.output import rows_of
from tandem.messages.router import TokensReported
from tandem.messages.worker import EmitTokens


class Drawn(Struct, frozen=True):
    """`emission` is what clients get, if anything; `prompts` were done with this report, and an
    answer `ends` with it. `recomputed_tokens` of requests that had begun elsewhere were not to be
    had again."""

    emission: EmitTokens | None
    tokens: int
    prompts: int
    ends: bool
    recomputed_tokens: int = 0


def for_clients(event: TokensReported, router: RouterMachine) -> Drawn:
    """Leave out tokens of attempts that were given up, and first tokens that the next worker draws
    again. The router must have handled all that came before, and not yet this."""
    emission = event.emission
    reasons, state_of = emission.finish_reasons, router.state_of
    rows: list[int] = []
    request_ids: list[str] = []
    prompts = recomputed_tokens = 0
    ends = False
    cached_tokens: list[int] | None = None
    for row, wire_id in enumerate(emission.request_ids):
        state = state_of(wire_id)
        if state is None:
            continue
        reason, there_tokens = reasons[row], emission.cached_tokens[row]
        if state.pulled_tokens:
            # The worker counts what its own device had.
            there_tokens = max(state.pulled_tokens, there_tokens)
            prompt_tokens = len(state.submission.request.prompt_tokens)
            cached_tokens = cached_tokens or list(emission.cached_tokens)
            cached_tokens[row] = min(there_tokens, prompt_tokens)
        if state.stage is Stage.PREFILLING:
            prompts += 1
            if state.names.attempt:
                recomputed_tokens += state.known_tokens - there_tokens
            if not state.takes_token(reason, router.config.first_token):
                continue
        if reason is not None:
            ends = True
        rows.append(row)
        request_ids.append(state.names.request_id)
    if not rows:
        return Drawn(None, 0, prompts, ends, recomputed_tokens)
    if cached_tokens and (cached := tuple(cached_tokens)) != emission.cached_tokens:
        emission = structs.replace(emission, cached_tokens=cached)
    if len(rows) < len(emission.request_ids):
        emission = rows_of(emission, rows)
    names = tuple(request_ids)
    if names != emission.request_ids:
        emission = structs.replace(emission, request_ids=names)
    return Drawn(emission, len(rows), prompts, ends, recomputed_tokens)
