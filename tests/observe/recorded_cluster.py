"""Clusters led by chance whose gateways are recorded, each start of one in a journal of its own."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import Reconfigured, Record, decode_record
from tandem.observe.journal.replay import Comparison, ReplayedHashes, compare
from tandem.twin.message_bus import GATEWAY
from tests.twin.chance_cluster import ChanceCluster


@dataclass
class Recording:
    """Of one start of a gateway, and what a machine like it is made with."""

    config: GatewayConfig
    recorder: Recorder
    turns: list[bytes] = field(default_factory=list)
    # Configurations that were applied, by number.
    applied: dict[int, GatewayConfig] = field(default_factory=dict)

    def records(self) -> list[Record]:
        return [decode_record(turn) for turn in self.turns]

    def replay(self, **changed) -> Comparison:
        """On a fresh machine, with some of its policies changed."""
        hashes = ReplayedHashes(self.config.router.block_size)

        def configure(record: Reconfigured) -> GatewayConfig:
            """What is another object than before remembers nothing yet."""
            applied = with_own_policies(self.applied[record.number])
            return replace(applied, router=replace(applied.router, hashes=hashes, explains=True))

        config = with_own_policies(self.config)
        router = replace(config.router, hashes=hashes, explains=True, **changed)
        machine = GatewayMachine(replace(config, router=router))
        return compare(self.records(), machine, hashes, configure)


def with_own_policies(config: GatewayConfig) -> GatewayConfig:
    """The configuration with copies of the policies, which may remember, and of nothing else: its
    `capacity_of` leads to the whole simulated cluster."""
    router = deepcopy(replace(config.router, hashes=None))
    return replace(config, router=router, planning=deepcopy(config.planning))


class Recorded(ChanceCluster):
    """`recordings` are of all starts of gateways."""

    # Who migrates here does so because somebody drains: only events can be recorded.
    migrates = False
    # Classes and weights of tenants are by their names.
    plain_names = False

    def __init__(self, *arguments) -> None:
        self.recordings: list[Recording] = []
        super().__init__(*arguments)

    def gateway_config(self, name: str) -> GatewayConfig:
        config = super().gateway_config(name)
        # What a policy remembers of one gateway is nothing to another.
        fresh, own = deepcopy(config.router), deepcopy(config.router)
        recorder = Recorder(
            config.router.block_size, TenantNames(plain=self.plain_names), SessionNames(b"key")
        )
        self.recordings.append(Recording(replace(config, router=fresh), recorder))
        return replace(config, router=replace(own, hashes=recorder.hashes))

    def start_gateway(self, name: str = GATEWAY) -> None:
        super().start_gateway(name)
        machine, recording = self.gateways[name].machine, self.recordings[-1]
        decide = machine.handle_together

        def recorded(events, now_ns):
            for event in events:
                if isinstance(event, ConfigurationChanged):
                    applied = with_own_policies(event.config)
                    recording.applied[applied.configuration] = applied
            effects = decide(events, now_ns)
            recording.turns.append(recording.recorder.turn(now_ns, events, effects))
            return effects

        machine.handle_together = recorded

    def replay_all(self) -> int:
        """Every journal decides the same on a fresh machine. Gives how many decisions."""
        decisions = 0
        for recording in self.recordings:
            done = recording.replay()
            assert done.difference is None, (self.scenario.seed, done.difference)
            assert done.turns == len(recording.turns)
            decisions += done.decisions
        return decisions
