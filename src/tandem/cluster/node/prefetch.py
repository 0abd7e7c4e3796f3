"""Prefetch: blocks of queued requests are brought from slow tiers into host memory before their
turn."""

from dataclasses import dataclass

from tandem.cluster.node.role_state import RoleState
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.cluster.tiers.shared import SharedContent
from tandem.cluster.tiers.tier_caches import Effects
from tandem.cluster.worker.machine import WorkerMachine
from tandem.cluster.worker.sequence import Phase
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv_tiers import BlockName
from tandem.messages.worker import ImportsArrived, PrefillsArrived

# So many requests are looked after at once; others have their blocks read when they start.
WAITING_REQUESTS = 64


@dataclass(slots=True)
class Asked:
    """The first `blocks` of a request can be had off the device, also from the pool if `shared`;
    those before `position` have been seen to."""

    blocks: int
    shared: bool
    position: int


class Prefetch:
    """Each block is asked for once; what does not come then is computed, or read when it is its
    turn."""

    def __init__(
        self,
        hierarchy: TierHierarchy,
        shared: SharedContent,
        machine: WorkerMachine,
        role_state: RoleState,
    ) -> None:
        self._hierarchy = hierarchy
        self._shared = shared
        self._machine = machine
        self._duty = role_state
        self._waiting: dict[str, Asked] = {}

    def requests_queued(self, event: ImportsArrived | PrefillsArrived) -> Effects:
        """Those of these that did not start at once want their blocks soon."""
        if Tier.HOST not in self._hierarchy.caches.by_tier:
            return []
        # What a worker that only decodes imports comes from another worker's device.
        pulls = isinstance(event, PrefillsArrived) or self._duty.role is Role.BOTH
        block_size = self._machine.config.block_size
        for request, tokens in zip(event.requests, event.import_tokens, strict=True):
            sequence = self._machine.unfinished.get(request.request_id)
            waits = sequence is not None and sequence.phase is Phase.WAITING
            blocks = tokens // block_size
            if sequence is None or not waits or len(self._waiting) >= WAITING_REQUESTS:
                continue
            cached = sequence.prefix_hit.likely_cached_tokens // block_size
            if blocks > cached:
                self._waiting[request.request_id] = Asked(blocks, pulls, cached)
        return self.go_on()

    def go_on(self) -> Effects:
        """Ask for as much as may be on its way at once, for those first that came first."""
        effects = Effects()
        for request_id in list(self._waiting):
            if not self._hierarchy.rising_room:
                break
            asked = self._waiting[request_id]
            effects += self._ask(request_id, asked)
            if asked.position >= asked.blocks:
                del self._waiting[request_id]
        return effects

    def _ask(self, request_id: str, asked: Asked) -> Effects:
        sequence = self._machine.unfinished.get(request_id)
        if sequence is None or sequence.phase is not Phase.WAITING:
            asked.position = asked.blocks
            return []
        room = self._hierarchy.rising_room
        names: dict[Tier, list[BlockName]] = {Tier.DISK: [], Tier.REMOTE: []}
        end = asked.blocks = min(asked.blocks, len(sequence.chain))
        while asked.position < end and room:
            name = sequence.block_name(asked.position)
            asked.position += 1
            tier = self._hierarchy.caches.tier_of(name.digest)
            if tier is None and asked.shared and self._shared.there:
                tier = Tier.REMOTE
            if tier in names:
                names[tier].append(name)
                room -= 1
        effects = Effects()
        for tier, wanted in names.items():
            effects += self._hierarchy.promote(tier, wanted)
        return effects
