"""Session pins: which KV blocks tiers should keep after an answer because its client will come back
soon."""

from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.request_state import RequestState
from tandem.facts.blocks import grown_chain
from tandem.messages.cluster import PinBlocks
from tandem.messages.router import TokensReported


def ending_with_pins(event: TokensReported, router: RouterMachine) -> list[RequestState]:
    """The requests that end with this report and whose KV is to be kept."""
    emission = event.emission
    found = [
        router.state_of(wire_id)
        for wire_id, reason in zip(emission.request_ids, emission.finish_reasons, strict=True)
        if reason is not None
    ]
    return [each for each in found if each is not None and each.submission.pin_ns > 0]


def pin_of(state: RequestState, router: RouterMachine) -> PinBlocks:
    """What is to be kept of a request that ends. The router must know all its tokens but the last,
    which has no KV."""
    config, submission = router.config, state.submission
    root = router.admission.root.hash(submission.request.salt)
    state.chain = grown_chain(state.chain, root, state.tokens(), config.block_size)
    return PinBlocks(tuple(state.chain), submission.pin_ns, state.view.priority)
