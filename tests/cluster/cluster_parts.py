"""Small pieces of a cluster, for tests of one rule at a time."""

import dataclasses
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import BlockFormat, KvExport, KvGeometry
from tandem.facts.rate_limits import LimitTerms
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepResult
from tandem.messages.cluster import PROTOCOL, LeasesRenewed, Register, Registered
from tandem.messages.gateway import MessageFromWorker, SendToWorker, TimePassed
from tandem.messages.node import (
    BlocksExported,
    ExportBlocks,
    GatewayConnected,
    MessageFromGateway,
    SendToGateway,
)
from tandem.messages.router import LoadReported, RequestSubmitted, TokensReported
from tandem.messages.worker import EmitTokens, RunStep, StepDone
from tandem.policy.admission.policies import AdmitAll
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import AlwaysRemote
from tandem.policy.routing.policies import make_routing

COST = WorkerCost(
    FittedStepTime(fixed_s=0.01, token_s=1e-3),
    kv_bytes_per_token=1.0,
    chunk_tokens=16,
    tiers={Tier.HOST: LinkCost(1e4), Tier.REMOTE: LinkCost(1e4)},
    network=LinkCost(1e4),
)
MS = 1_000_000
TERMS = Registered("g", report_interval_ns=100 * MS, silence_ns=1000 * MS, lease_ns=3000 * MS)
ROOT = CacheRoot("model", "revision", b"layout")


def register(name: str, role: Role = Role.BOTH, *, block_size: int = 4, **changes) -> Register:
    """A worker of 100 blocks."""
    geometry = KvGeometry(2, 2, 8, block_size, "float32")
    presented = Register(
        protocol=PROTOCOL,
        version="1",
        worker=name,
        incarnation="1",
        pool="pool",
        role=role,
        accepting=True,
        root=ROOT,
        export=KvExport("model", "revision", geometry, 100, (), identity=ROOT.identity),
        max_sequences=4,
        context_tokens=64,
    )
    return replace(presented, **changes)


def capacity(register: Register) -> Capacity:
    """Of a worker of the cluster's model."""
    geometry, blocks = register.export.geometry, register.export.block_count
    return Capacity(COST, geometry.block_size, blocks, 4, register.pool)


class MachineUnderTest:
    """A machine with a clock of its own, audited after every turn."""

    machine: GatewayMachine | NodeMachine
    now_ns: int

    def handle(self, *events) -> list:
        self.now_ns += 1
        return self._turn(events)

    def pass_time(self, duration_ns: int, *meanwhile) -> list:
        """Nothing happens for so long, but `meanwhile` whenever the machine wakes up."""
        end_ns, effects = self.now_ns + duration_ns, []
        while (wakeup_ns := self.machine.next_wakeup()) is not None and wakeup_ns <= end_ns:
            self.now_ns = wakeup_ns
            effects += self._turn((*meanwhile, TimePassed()))
        self.now_ns = end_ns
        return effects

    def _turn(self, events: Sequence) -> list:
        effects = self.machine.handle_together(events, self.now_ns)
        self.machine.audit()
        return effects


class GatewayUnderTest(MachineUnderTest):
    """A gateway without workers but what the test sends; peers are `worker/incarnation`."""

    def __init__(
        self,
        *workers: Register,
        block_format: BlockFormat | None = None,
        planning: PlanningConfig | None = None,
        terms: Registered = TERMS,
        limits: LimitTerms | None = None,
        pool_models: Mapping[str, str] | None = None,
        **router,
    ) -> None:
        config = GatewayConfig(
            gateway="g",
            router=RouterConfig(
                **{
                    "block_size": 4,
                    "root": ROOT,
                    "capacities": {},
                    "routing": make_routing("round-robin", 0),
                    "admission": AdmitAll(),
                    "dispatching": AlwaysRemote(transfer=Transfer.PUSH),
                    **router,
                }
            ),
            capacity_of=capacity,
            terms=terms,
            model="model",
            revision="revision",
            block_format=block_format,
            planning=planning,
            limits=limits or LimitTerms(),
            pool_models=pool_models or {},
        )
        self.machine = GatewayMachine(config)
        self.now_ns = 0
        for one in workers:
            self.receive(one)

    def receive(self, *messages, incarnation: str = "1") -> list:
        """Messages of one worker, which come together."""
        peer = f"{messages[0].worker}/{getattr(messages[0], 'incarnation', incarnation)}"
        return self.handle(*(MessageFromWorker(peer, message) for message in messages))

    def apply(self, *, router: dict | None = None, **changes) -> list:
        """An operator's configuration that differs so from the present one."""
        config = self.machine.config
        changed = dataclasses.replace(
            config,
            router=dataclasses.replace(config.router, **router or {}),
            configuration=config.configuration + 1,
            **changes,
        )
        return self.handle(ConfigurationChanged(changed))

    def submit(self, request_id: str, prompt_tokens: int = 9) -> list:
        request = Request(request_id, tuple(range(prompt_tokens)))
        return self.handle(RequestSubmitted(request, 10.0))

    def submit_due(
        self, request_id: str, first_ms: int | None, all_ms: int | None = None, **terms
    ) -> list:
        """Its first token and its whole answer are due in so long."""
        asked = Request(request_id, tuple(range(9)), SamplingParameters(max_tokens=20))
        first_ns = None if first_ms is None else self.now_ns + first_ms * MS
        all_ns = None if all_ms is None else self.now_ns + all_ms * MS
        return self.handle(
            RequestSubmitted(asked, 10.0, deadline_ns=first_ns, answer_due_ns=all_ns, **terms)
        )

    def live_on(self, ms: int) -> list:
        """The worker "w" is alive meanwhile, and computes nothing."""
        effects: list = []
        for _ in range(ms // 100):
            self.receive(idle_load("w"))
            effects += self.pass_time(100 * MS)
        return effects


def drew(worker: str, *request_ids: str, reason: FinishReason | None = None) -> TokensReported:
    count = len(request_ids)
    emission = EmitTokens(
        request_ids, tuple(range(count)), (reason,) * count, (False,) * count, (0,) * count
    )
    return TokensReported(worker, emission)


def idle_load(worker: str) -> LoadReported:
    return LoadReported(worker, 0, 0, 0, 0, 100)


class NodeUnderTest(MachineUnderTest):
    """A worker without gateways but what the test sends, whose engine always draws token 1."""

    def __init__(self, *gateways: str, reports_when_asked: bool = False, **config) -> None:
        worker = WorkerConfig(
            **{
                "block_size": 4,
                "block_count": 30,
                "context_tokens": 64,
                "vocabulary_tokens": 100,
                "max_sequences": 4,
                "batching": TokenBudgetBatching(8, 0),
                "root": ROOT,
                "steps_in_flight": 0,
                **config,
            }
        )
        node = NodeConfig(register("w"), reports_when_asked=reports_when_asked)
        self.machine = NodeMachine(node, WorkerMachine(worker))
        self.plans: list = []
        self.now_ns = 0
        for gateway in gateways:
            self.handle(GatewayConnected(gateway))
            self.receive(gateway, TERMS)

    def handle(self, *events) -> list:
        effects = super().handle(*events)
        self.plans += [effect.plan for effect in of_kind(effects, RunStep)]
        return effects

    def receive(self, gateway: str, *messages) -> list:
        return self.handle(*(MessageFromGateway(gateway, message) for message in messages))

    def land(self) -> list:
        """The next step is done."""
        plan = self.plans.pop(0)
        return self.handle(StepDone(StepResult(plan.step_id, (1,) * int(plan.samples.sum()))))

    def land_all(self) -> list:
        """Everything that is planned, and what is planned then."""
        effects: list = []
        while self.plans:
            effects += self.land()
        return effects

    def export(self, effects: list) -> list:
        """The one export that these effects ask for is done."""
        (wanted,) = of_kind(effects, ExportBlocks)
        return self.handle(BlocksExported(wanted.export_id))

    def keep_alive(self, duration_ns: int, *gateways: str) -> list:
        """Nothing happens for so long, but that these gateways send heartbeats."""
        heartbeats = (MessageFromGateway(gateway, LeasesRenewed(())) for gateway in gateways)
        return self.pass_time(duration_ns, *heartbeats)


def request(request_id: str, prompt_tokens: int = 9, max_tokens: int = 3) -> Request:
    sampling = SamplingParameters(max_tokens=max_tokens)
    return Request(request_id, tuple(range(prompt_tokens)), sampling)


def sent_to(effects: list, name: str, kind: type = object) -> list:
    """The messages of this kind to this worker or gateway."""
    found = []
    for effect in effects:
        match effect:
            case SendToWorker(peer, message) if peer.split("/")[0] == name:
                found.append(message)
            case SendToGateway(gateway, message) if gateway == name:
                found.append(message)
    return of_kind(found, kind)


def of_kind(found: list, kind: type) -> list:
    return [each for each in found if isinstance(each, kind)]
