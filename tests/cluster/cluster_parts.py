"""Small pieces of a cluster, for tests of one rule at a time."""

from dataclasses import replace

from tandem.cluster.gateway.autoscaling import PlanningConfig
from tandem.cluster.gateway.machine import GatewayConfig, GatewayMachine
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import BlockFormat, KvExport, KvGeometry
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepResult
from tandem.messages.cluster import PROTOCOL, LeasesRenewed, Register, Registered
from tandem.messages.gateway import MessageFromWorker, SendToWorker, TimePassed
from tandem.messages.node import GatewayConnected, MessageFromGateway, SendToGateway
from tandem.messages.router import LoadReported, RequestSubmitted, TokensReported
from tandem.messages.worker import EmitTokens, RunStep
from tandem.policy.admission.policies import AdmitAll
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import AlwaysRemote
from tandem.policy.routing.policies import ROUTINGS

COST = WorkerCost(
    FittedStepTime(fixed_s=0.01, token_s=1e-3),
    kv_bytes_per_token=1.0,
    chunk_tokens=16,
    tiers={Tier.HOST: LinkCost(1e4), Tier.REMOTE: LinkCost(1e4)},
    network=LinkCost(1e4),
)
MS = 1_000_000
WELCOME = Registered("g", report_interval_ns=100 * MS, silence_ns=1000 * MS, lease_ns=3000 * MS)
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


class GatewayUnderTest:
    """A gateway whose workers are played by hand; peers are called `worker/incarnation`."""

    def __init__(
        self,
        *workers: Register,
        block_format: BlockFormat | None = None,
        planning: PlanningConfig | None = None,
        terms: Registered = WELCOME,
        **router,
    ) -> None:
        config = GatewayConfig(
            gateway="g",
            router=RouterConfig(
                **{
                    "block_size": 4,
                    "root": ROOT,
                    "capacities": {},
                    "routing": ROUTINGS["round-robin"](0),
                    "admission": AdmitAll(),
                    "dispatching": AlwaysRemote(transfer=Transfer.PUSH),
                    **router,
                }
            ),
            capacity_of=lambda register: Capacity(
                COST, register.export.geometry.block_size, register.export.block_count, 4
            ),
            terms=terms,
            model="model",
            revision="revision",
            block_format=block_format,
            planning=planning,
        )
        self.machine = GatewayMachine(config)
        self.now_ns = 0
        for one in workers:
            self.says(one)

    def handle(self, *events) -> list:
        self.now_ns += 1
        effects = self.machine.handle_together(events, self.now_ns)
        self.machine.audit()
        return effects

    def says(self, *messages, incarnation: str = "1") -> list:
        """A worker says these at once."""
        peer = f"{messages[0].worker}/{getattr(messages[0], 'incarnation', incarnation)}"
        return self.handle(*(MessageFromWorker(peer, message) for message in messages))

    def submit(self, request_id: str, prompt_tokens: int = 9) -> list:
        request = Request(request_id, tuple(range(prompt_tokens)))
        return self.handle(RequestSubmitted(request, 10.0))

    def pass_time(self, duration_ns: int) -> list:
        """Nobody says anything for so long."""
        end_ns, effects = self.now_ns + duration_ns, []
        while (wakeup_ns := self.machine.next_wakeup()) is not None and wakeup_ns <= end_ns:
            self.now_ns = wakeup_ns
            effects += self.machine.handle(TimePassed(), wakeup_ns)
            self.machine.audit()
        self.now_ns = end_ns
        return effects


def told(effects: list, worker: str) -> list:
    """What this worker was told."""
    return [
        effect.message
        for effect in effects
        if isinstance(effect, SendToWorker) and effect.peer.split("/")[0] == worker
    ]


def drew(worker: str, *request_ids: str, reason: FinishReason | None = None) -> TokensReported:
    count = len(request_ids)
    emission = EmitTokens(
        request_ids, tuple(range(count)), (reason,) * count, (False,) * count, (0,) * count
    )
    return TokensReported(worker, emission)


def idle_load(worker: str) -> LoadReported:
    return LoadReported(worker, 0, 0, 0, 0, 100)


class NodeUnderTest:
    """A worker whose gateways are played by hand, and whose engine always draws token 1."""

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
            self.hears(gateway, WELCOME)

    def handle(self, *events) -> list:
        self.now_ns += 1
        effects = self.machine.handle_together(events, self.now_ns)
        self.plans += [effect.plan for effect in effects if isinstance(effect, RunStep)]
        self.machine.audit()
        return effects

    def hears(self, gateway: str, *messages) -> list:
        return self.handle(*(MessageFromGateway(gateway, message) for message in messages))

    def result(self) -> StepResult:
        plan = self.plans.pop(0)
        return StepResult(plan.step_id, (1,) * int(plan.samples.sum()))

    def pass_time(self, duration_ns: int, *living: str) -> list:
        """Nothing happens for so long, but that the `living` gateways say something."""
        end_ns, effects = self.now_ns + duration_ns, []
        while (wakeup_ns := self.machine.next_wakeup()) is not None and wakeup_ns <= end_ns:
            self.now_ns = wakeup_ns
            words = [MessageFromGateway(gateway, LeasesRenewed(())) for gateway in living]
            effects += self.machine.handle_together([*words, TimePassed()], wakeup_ns)
            self.machine.audit()
        self.now_ns = end_ns
        return effects


def request(request_id: str, prompt_tokens: int = 9, max_tokens: int = 3) -> Request:
    sampling = SamplingParameters(max_tokens=max_tokens)
    return Request(request_id, tuple(range(prompt_tokens)), sampling)


def said(effects: list, gateway: str) -> list:
    """What was said to this gateway."""
    return [
        effect.message
        for effect in effects
        if isinstance(effect, SendToGateway) and effect.gateway == gateway
    ]


def of_kind(found: list, kind: type) -> list:
    return [each for each in found if isinstance(each, kind)]
