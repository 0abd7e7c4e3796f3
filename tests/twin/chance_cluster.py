"""A simulated cluster whose clients, machines and KV are checked while it runs: a ledger holds what
lies in every block, every message goes through the codec of the wire, machines are audited after
some of their turns, and KV is reported and counted only where it is."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.node.fetches import is_prefetch
from tandem.facts.fleet import PlanningMode, Role, Tier
from tandem.facts.request import Request
from tandem.messages.cluster import Drain
from tandem.messages.gateway import Fence, PlanDecided, SendToWorker
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    BlocksStaged,
    ConnectPoolNode,
    CopyBlocks,
    EndFetch,
    EndMove,
    ForgetPoolNode,
    Leave,
    MessageFromGateway,
    SendToGateway,
    StageBlocks,
)
from tandem.messages.router import BlocksReported, ImportReported, KvReported, RequestsLost
from tandem.messages.worker import (
    CopiesRequested,
    EmitTokens,
    ImportDone,
    KvComputed,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsArrived,
)
from tandem.policy.dispatch.contract import FirstToken
from tandem.report.record import RunRecord
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Scenario
from tandem.twin.worker import SimulatedWorker
from tests.cluster.ledger_engine import keys_of
from tests.twin.ledger import Ledger


@dataclass(slots=True)
class Client:
    """A request and what came back. A client that `left` gets nothing any more."""

    request: Request
    output: list[int] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    left: bool = False


class Clients(Recorder):
    """Records what each client gets, which is nothing after its end."""

    def __init__(self, run: RunRecord) -> None:
        super().__init__(run)
        self.by_id: dict[str, Client] = {}

    def delivered(self, emission: EmitTokens, landed_ns) -> None:
        super().delivered(emission, landed_ns)
        for request_id, token, reason in zip(
            emission.request_ids, emission.tokens, emission.finish_reasons, strict=True
        ):
            client = self.by_id[request_id]
            if client.left:
                continue
            assert not client.endings
            client.output += [token] * len(landed_ns)
            if reason:
                client.endings.append("finished")

    def rejected(self, request_id: str, reason: str, retry_after_s: float, now_ns: int) -> None:
        client = self.by_id[request_id]
        if client.left:
            return
        assert not client.output, reason
        client.endings.append("rejected")
        super().rejected(request_id, reason, retry_after_s, now_ns)

    def cut_off(self, request_id: str, now_ns: int) -> None:
        client = self.by_id[request_id]
        if client.left:
            return
        assert client.output
        client.endings.append("cut off")
        super().cut_off(request_id, now_ns)

    def turned_away(self, request_id: str, reason: str, now_ns: int) -> None:
        client = self.by_id[request_id]
        if client.left:
            return
        client.endings.append("gateway lost" if reason == "its gateway died" else "failed")
        super().turned_away(request_id, reason, now_ns)

    def left(self, request_id: str, now_ns: int) -> None:
        client = self.by_id[request_id]
        if not client.endings:
            super().turned_away(request_id, "its client left", now_ns)
            client.endings.append("withdrawn")
            client.left = True


Watch = Callable[[object], None]


def check_exported(worker: SimulatedWorker, computed: KvComputed) -> None:
    """KV is reported to others only once they can read it."""
    if worker.contents is None:
        return
    for blocks, versions in zip(computed.blocks, computed.versions, strict=False):
        assert worker.contents.exported(blocks, versions), "KV is reported before it is exported"


def check_import(worker: SimulatedWorker, done: ImportDone) -> None:
    """The gateway counts no more KV as arrived than the worker does, and that has arrived."""
    inbound = worker.machine.work.inbound._imports.get(done.request_id)
    if worker.contents is None or inbound is None or inbound.outcome is not None:
        return
    wanted, end_token = inbound.wanted, inbound.covered_tokens
    assert done.tokens <= end_token, "the gateway counts KV that has not arrived"
    sequence = worker.worker_machine.sequences.importing[done.request_id]
    keys = keys_of(list(sequence.tokens)[:end_token], sequence.request.adapter)
    found = worker.contents.keys_in(wanted.blocks, wanted.first_token, end_token)
    assert found == keys[wanted.first_token :], "the worker counts KV that has not arrived"


class ChanceCluster(SimulatedCluster):
    """`seen` counts what has happened. Machines are audited after a third of their turns."""

    # Whether somebody has requests moved by hand.
    migrates = True

    def __init__(self, scenario: Scenario, chance: Random, ledger: Ledger) -> None:
        self.clients = Clients(RunRecord({}))
        super().__init__(scenario, self.clients.run, self.clients)
        self.chance = chance
        self.seen = ledger.seen
        self.first_token = chance.choice(list(FirstToken))
        self.modes = [PlanningMode.AUTOMATIC]
        # How far the imports reach that workers wait for, by wire id.
        self.wanted: dict[str, int] = {}
        # Some reports of what workers hold do not arrive.
        self.loses_reports = chance.randrange(4) == 0
        send = self.bus.to_gateway

        def to_gateway(sender, gateway, message, landed_ns=()) -> None:
            reported = isinstance(message, BlocksReported)
            if reported and self.loses_reports and not chance.randrange(5):
                self.seen["reports lost"] += 1
                return
            send(sender, gateway, message, landed_ns)

        self.bus.to_gateway = to_gateway

    def gateway_config(self, name: str) -> GatewayConfig:
        config = super().gateway_config(name)
        router = replace(config.router, first_token=self.first_token)
        planning = config.planning and self.planning_mode(config.planning)
        return replace(config, router=router, planning=planning)

    def planning_mode(self, planning: PlanningConfig) -> PlanningConfig:
        return replace(planning, mode=self.chance.choice(self.modes), hold_s=1.0)

    def start_gateway(self, name: str = "gateway-0") -> None:
        super().start_gateway(name)
        self._watch(self.gateways[name], on_effect=self._count_gateway_effect)

    def start_worker(self, name: str, role: Role) -> None:
        super().start_worker(name, role)
        worker = self.workers[name]
        if worker.contents is not None:
            worker.contents.worker = worker
        tiers = worker.machine.tiers
        if tiers is not None and Tier.DISK in tiers.hierarchy.caches.by_tier:
            self.seen["disks found"] += bool(self.stores(Tier.DISK, name)[0].blocks)

        def on_event(event) -> None:
            if isinstance(event, MessageFromGateway) and isinstance(event.message, ImportDone):
                check_import(worker, event.message)
            self._count_worker_event(event)

        def on_effect(effect) -> None:
            if isinstance(effect, SendToGateway) and isinstance(effect.message, KvReported):
                check_exported(worker, effect.message.computed)
            self._count_worker_effect(effect)

        self._watch(worker, on_event, on_effect)

    def start_pool_node(self, name: str) -> None:
        super().start_pool_node(name)
        self._watch(self.pool_nodes[name])

    def _watch(
        self, process, on_event: Watch = lambda _: None, on_effect: Watch = lambda _: None
    ) -> None:
        """Look at all that the machine of this process gets and does, and audit it now and then."""
        machine, decide = process.machine, process.machine.handle_together

        def watched(events, now_ns):
            for event in events:
                on_event(event)
            effects = decide(events, now_ns)
            for effect in effects:
                on_effect(effect)
            if process.alive and not self.chance.randrange(3):
                machine.audit()
            return effects

        machine.handle_together = watched

    def check_outputs(self) -> None:
        """What a router believes to have been sent is what the clients have got."""
        for gateway in self.gateways.values():
            if gateway.mail:
                continue
            for request_id, state in gateway.machine.router.requests.items():
                client = self.clients.by_id[request_id]
                assert client.left or list(state.output) == client.output

    def start_planned(self, worker: str, role: Role) -> None:
        self.seen["planned starts"] += 1
        super().start_planned(worker, role)

    def _count_gateway_effect(self, effect) -> None:
        match effect:
            case PlanDecided(decision):
                advises = decision.mode is PlanningMode.ADVISORY
                for action in decision.actions:
                    self.seen["advised" if advises else str(action.kind)] += 1
            case SendToWorker(_, message):
                self._count_message(message)
            case Fence():
                self.seen["fenced"] += 1

    def _count_message(self, message) -> None:
        if isinstance(message, ImportDone) and message.request_id in self.wanted:
            end_token = self.wanted.pop(message.request_id)
            if message.tokens:
                self.seen["in part" if message.tokens < end_token else "whole"] += 1
        match message:
            case CopiesRequested():
                self.seen["copies"] += 1
            case ImportDone(wire_id, tokens, drawn) if drawn and "." in wire_id.partition("~")[2]:
                self.seen["migrated" if tokens else "migrated without KV"] += 1
            case KvTransfersRequested():
                self.seen["migrations"] += 1
            case ImportDone(_, tokens):
                self.seen["hand-overs" if tokens else "hand-overs without KV"] += 1
            case RequestsArrived(requests) | PrefillsArrived(requests):
                self.seen["taken up again"] += any("~" in one.request_id for one in requests)
            case Drain(then_role) if then_role:
                self.seen["flips"] += 1

    def _count_worker_event(self, event) -> None:
        match event:
            case BlocksKept(_, tier, kept, _):
                self.seen[f"kept on {tier}"] += len(kept)
            case BlocksStaged(_, staged) if not staged:
                self.seen["no room to stage"] += 1
            case BlocksFetched(fetch_id) if is_prefetch(fetch_id):
                self.seen["prefetched"] += event.blocks
            case BlocksFetched():
                corrupt, missing = bool(event.corrupt), bool(event.missing)
                outcome = "corrupt" if corrupt else "missing" if missing else ""
                self.seen[f"fetches {outcome or ('broken' if event.problem else 'whole')}"] += 1

    def _count_worker_effect(self, effect) -> None:
        match effect:
            case EndMove():
                self.seen["moves stopped"] += 1
            case EndFetch():
                self.seen["fetches stopped"] += 1
            case StageBlocks():
                self.seen["staged"] += 1
            case CopyBlocks(_, source):
                self.seen[f"copied from {source}"] += 1
            case ConnectPoolNode():
                self.seen["pool joined"] += 1
            case ForgetPoolNode():
                self.seen["pool gone"] += 1
            case SendToGateway(_, ImportReported(_, wanted)):
                self.wanted[wanted.request_id] = wanted.end_token
            case SendToGateway(_, RequestsLost(_, request_ids)):
                self.seen["leases ended"] += len(request_ids)
            case SendToGateway(_, KvReported(_, computed)):
                self.seen["held"] += any(computed.held)
                self.seen["lost to preemption"] += 0 in computed.tokens
            case Leave(reason=reason):
                self.seen["turned away" if reason else "leaves"] += 1
