"""Clusters led by chance whose gateways are recorded, each start of one in a journal of its own."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from tandem.cluster.gateway.machine import GatewayConfig, GatewayMachine
from tandem.cluster.router.admission import RouterConfig
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import Record, decode_record
from tandem.observe.journal.replay import Comparison, ReplayedHashes, compare
from tests.cluster.node_cluster import Gate, NodeCluster
from tests.cluster.tier_cluster import TierCluster


@dataclass
class Recording:
    """Of one start of a gateway, and what a machine like it is made with."""

    config: GatewayConfig
    recorder: Recorder
    turns: list[bytes] = field(default_factory=list)

    def records(self) -> list[Record]:
        return [decode_record(turn) for turn in self.turns]

    def replay(self, **changed) -> Comparison:
        """On a fresh machine, with some of its policies changed."""
        hashes = ReplayedHashes(self.config.router.block_size)
        # Policies may remember: these serve this replay alone.
        router = deepcopy(replace(self.config.router, hashes=None))
        router = replace(router, hashes=hashes, explains=True, **changed)
        machine = GatewayMachine(replace(self.config, router=router))
        return compare(self.records(), machine, hashes)


class Recorded(NodeCluster):
    """`recordings` are of all starts of gateways."""

    def start_gateway(self, name: str) -> None:
        self.recordings: list[Recording] = getattr(self, "recordings", [])
        shared = self.policies
        # What a policy remembers of one gateway is nothing to another.
        self.policies = deepcopy(shared)
        recorder = Recorder(shared["block_size"], TenantNames(), SessionNames(b"key"))
        own = self.policies | {"hashes": recorder.hashes}
        fresh = RouterConfig(**deepcopy(shared))
        self.policies = own
        super().start_gateway(name)
        self.policies = shared
        machine = self.gates[name].machine
        recording = Recording(replace(machine.config, router=fresh), recorder)
        self.recordings.append(recording)
        decide = machine.handle_together

        def recorded(events, now_ns):
            effects = decide(events, now_ns)
            recording.turns.append(recorder.turn(now_ns, events, effects))
            return effects

        machine.handle_together = recorded

    def migrate(self, gate: Gate) -> None:
        """Only events can be recorded: who migrates here does so because somebody drains."""


class RecordedWithTiers(Recorded, TierCluster):
    """With slower tiers, and a process of the shared pool."""
