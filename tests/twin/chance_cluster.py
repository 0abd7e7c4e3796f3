"""Whole clusters in the twin that chance leads: who asks, what goes wrong and when, and how long
every message, step and transfer takes. A ledger holds what lies in every block, every message goes
through the codec of the wire, and machines are audited on the way."""

from dataclasses import dataclass, field, replace
from random import Random

from tandem.cluster.gateway.autoscaling import PlanningConfig
from tandem.cluster.gateway.machine import GatewayConfig
from tandem.cost.worker import StepShape
from tandem.facts.fleet import PlanningMode, Role, Tier
from tandem.facts.request import Request
from tandem.messages.cluster import Drain
from tandem.messages.gateway import (
    Fence,
    PlanDecided,
    SendToWorker,
)
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
    SendToGateway,
    StageBlocks,
)
from tandem.messages.router import (
    BlocksReported,
    ImportReported,
    KvReported,
)
from tandem.messages.worker import (
    CopiesRequested,
    EmitTokens,
    ImportDone,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsArrived,
)
from tandem.policy.chance import draw
from tandem.policy.dispatch.contract import FirstToken
from tandem.policy.planning.contract import FleetView, Flip, Move, Plan
from tandem.report.record import RunRecord
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Scenario
from tests.twin.ledger import Ledger


@dataclass(frozen=True, slots=True)
class ChancySteps:
    """Steps take any time up to `most_s`, drawn by what is computed."""

    seed: int
    most_s: float
    stages: int = 1

    def seconds(self, shape: StepShape) -> float:
        key = (len(shape.chunks), shape.decode_sequences, shape.decode_context_tokens)
        return self.most_s * draw(self.seed, *key, sum(start for start, _ in shape.chunks))

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        return self.seconds(StepShape((), sequences, context_tokens, sequences))


@dataclass
class Restless:
    """A planner that wants anything, until it is `quiet`."""

    chance: Random
    interval_s: float = 0.02
    quiet: bool = False

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        del now_ns
        chance = self.chance
        workers = [view.worker for view in fleet.workers]
        if self.quiet or not workers or not chance.randrange(3):
            return Plan()
        roles = [chance.choice(["prefill", "decode"]) for _ in workers]
        flips = [Flip(*each) for each in zip(workers, roles, strict=True)]
        move = Move(chance.choice(workers), chance.choice(workers), chance.randint(10, 120))
        return Plan(
            chance.choice([None, 0, 1, 2, 3]),
            chance.choice([None, 0, 1, 2, 3]),
            flips=tuple(flip for flip in flips if not chance.randrange(5)),
            moves=(move,) * chance.randrange(2),
        )


@dataclass(slots=True)
class Client:
    """Who asked, and what came back. A client that `left` hears nothing any more."""

    request: Request
    output: list[int] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    left: bool = False


class Clients(Recorder):
    """Writes down what each client hears; nobody hears anything after its end."""

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


class ChanceCluster(SimulatedCluster):
    """`seen` counts what has happened. Machines are audited after every third turn or so."""

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
            told = isinstance(message, BlocksReported)
            if told and self.loses_reports and not chance.randrange(5):
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
        gateway = self.gateways[name]
        machine, decide = gateway.machine, gateway.machine.handle_together

        def audited(events, now_ns):
            effects = decide(events, now_ns)
            for effect in effects:
                self._count(effect)
            if not self.chance.randrange(3):
                machine.audit()
            return effects

        machine.handle_together = audited

    def start_worker(self, name: str, role: Role) -> None:
        super().start_worker(name, role)
        worker = self.workers[name]
        if worker.contents is not None:
            worker.contents.worker = worker
        tiers = worker.machine.tiers
        if tiers is not None and Tier.DISK in tiers.hierarchy.caches.by_tier:
            self.seen["disks found"] += bool(self.stores(Tier.DISK, name)[0].blocks)
        machine, decide = worker.machine, worker.machine.handle_together

        def audited(events, now_ns):
            for event in events:
                self._count_heard(event)
            effects = decide(events, now_ns)
            for effect in effects:
                self._count_done(effect)
            if worker.alive and not self.chance.randrange(3):
                machine.audit()
            return effects

        machine.handle_together = audited

    def start_pool_node(self, name: str) -> None:
        super().start_pool_node(name)
        machine, decide = (
            self.pool_nodes[name].machine,
            self.pool_nodes[name].machine.handle_together,
        )

        def audited(events, now_ns):
            effects = decide(events, now_ns)
            if not self.chance.randrange(3):
                machine.audit()
            return effects

        machine.handle_together = audited

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

    def _count(self, effect) -> None:
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
            case ImportDone(wire_id, tokens, said) if said and "." in wire_id.partition("~")[2]:
                self.seen["migrated" if tokens else "migrated without KV"] += 1
            case KvTransfersRequested():
                self.seen["migrations"] += 1
            case ImportDone(_, tokens):
                self.seen["hand-overs" if tokens else "hand-overs without KV"] += 1
            case RequestsArrived(requests) | PrefillsArrived(requests):
                self.seen["taken up again"] += any("~" in one.request_id for one in requests)
            case Drain(then_role) if then_role:
                self.seen["flips"] += 1

    def _count_heard(self, event) -> None:
        match event:
            case BlocksKept(_, tier, kept, _):
                self.seen[f"kept on {tier}"] += len(kept)
            case BlocksStaged(_, staged) if not staged:
                self.seen["no room to stage"] += 1
            case BlocksFetched():
                corrupt, missing = bool(event.corrupt), bool(event.missing)
                outcome = "corrupt" if corrupt else "missing" if missing else ""
                self.seen[f"fetches {outcome or ('broken' if event.problem else 'whole')}"] += 1

    def _count_done(self, effect) -> None:
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
            case SendToGateway(_, KvReported(_, computed)):
                self.seen["held"] += any(computed.held)
                self.seen["lost to preemption"] += 0 in computed.tokens
            case Leave(reason=reason):
                self.seen["turned away" if reason else "leaves"] += 1
