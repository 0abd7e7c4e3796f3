"""What is to be kept after an answer, because its client will come back soon."""

from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.request_state import Passage
from tandem.facts.blocks import grown_chain
from tandem.messages.cluster import PinBlocks
from tandem.messages.router import TokensReported


def ending_with_pins(event: TokensReported, router: RouterMachine) -> list[Passage]:
    """The requests that end with this report and whose KV is to be kept."""
    emission = event.emission
    found = [
        router.passage_of(wire_id)
        for wire_id, reason in zip(emission.request_ids, emission.finish_reasons, strict=True)
        if reason is not None
    ]
    return [each for each in found if each is not None and each.submission.pin_ns > 0]


def pin_of(passage: Passage, router: RouterMachine) -> PinBlocks:
    """What is to be kept of a request that ends. The router must know all its tokens but the last,
    which has no KV."""
    config, submission = router.config, passage.submission
    root = router.entrance.root.hash(submission.request.salt)
    passage.chain = grown_chain(passage.chain, root, passage.tokens(), config.block_size)
    return PinBlocks(tuple(passage.chain), submission.pin_ns, passage.view.priority)
