"""One simulated worker process: the node machine that runs live, over a simulated engine, KV
transfer and tiers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tandem.cluster.node.driver import NodePorts, perform
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.blocks import PromptChains
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import MoveKv
from tandem.facts.step_totals import NO_DRAFTS_YET, DraftTotals
from tandem.messages.cluster import (
    FetchKv,
    LeasesRenewed,
    PeerJoined,
    RoleStateReported,
    ToGateway,
)
from tandem.messages.gateway import TimePassed
from tandem.messages.node import (
    BlocksExported,
    BlocksFetched,
    BlocksKept,
    BlocksStaged,
    GatewayConnected,
    GatewayGone,
    Leave,
    MessageFromGateway,
    MoveFinished,
    NodeEffect,
    NodeEvent,
)
from tandem.messages.router import LoadReported, TokensReported
from tandem.messages.sharing import ShareUse
from tandem.twin.block_contents import EngineDied
from tandem.twin.drafts import SimulatedDrafts
from tandem.twin.engine import SimulatedEngine
from tandem.twin.event_queue import Timer, Turn
from tandem.twin.kv_transfer import SimulatedKvTransfer
from tandem.twin.load_reports import LoadReports
from tandem.twin.machine_configs import registration, tiers_config, worker_config
from tandem.twin.message_bus import GATEWAY, MessageBus
from tandem.twin.process import Process
from tandem.twin.scenario import Pool, Scenario, WorkerKind
from tandem.twin.shared_cores import SharedCores
from tandem.twin.shared_pool import SimulatedPoolClient, SimulatedPoolNode
from tandem.twin.step_recorder import StepRecorder
from tandem.twin.tier_stores import SimulatedStore
from tandem.twin.tiers import SimulatedTiers
from tandem.twin.transfers import Transfers

# What concerns KV on its way and leases alone: the worker machine does not get it, as long as
# no import ends by it.
PASSING = frozenset(
    {
        BlocksFetched,
        BlocksKept,
        BlocksExported,
        BlocksStaged,
        FetchKv,
        LeasesRenewed,
        MoveFinished,
        MoveKv,
        PeerJoined,
        ShareUse,
        TimePassed,
    }
)
Done = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a worker: number `order` of all names, the `starts`-th of its own."""

    name: str
    pool: Pool
    role: Role
    order: int
    starts: int


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What a worker shares with the rest of the cluster: messages, links, records, hashes of
    prompts, the disk that outlives it, and the cores of its machine. `changed` is called when its
    load or role may have changed, `left` when its machine ends the process, `died` when a step
    does."""

    scenario: Scenario
    bus: MessageBus
    transfers: Transfers
    steps: StepRecorder
    prompts: PromptChains
    workers: Mapping[str, "SimulatedWorker"]
    pool_nodes: Mapping[str, SimulatedPoolNode]
    disk: SimulatedStore
    cores: SharedCores | None
    changed: Callable[["SimulatedWorker"], object]
    left: Callable[["SimulatedWorker", Leave], object]
    died: Callable[["SimulatedWorker", str], object]


class SimulatedWorker(Process[NodeEvent]):
    """`up_since_ns` is since when it is paid for and not yet written down."""

    def __init__(self, start: Start, shared: SharedParts) -> None:
        super().__init__(start.name, str(start.starts), shared.bus)
        self.pool, self.order = start.pool, start.order
        self.block_count = start.pool.kind.block_count
        self.up_since_ns = shared.bus.queue.now_ns
        self._shared = shared
        self._queue = shared.bus.queue
        scenario, kind = shared.scenario, start.pool.kind
        tiers = tiers_config(start.pool, scenario, shared.disk)
        config = worker_config(start.pool, scenario, reports_full_blocks=tiers is not None)
        # Blocks of another size have other hashes.
        alike = config.block_size == scenario.block_size
        machine = WorkerMachine(config, shared.prompts if alike else None)
        register = registration(start.pool, self.name, start.role, self.incarnation, config)
        when_asked = scenario.asks_for_reports
        self.machine = NodeMachine(
            NodeConfig(register, tiers, reports_when_asked=when_asked), machine
        )
        self.worker_machine = machine
        self.host, self.disk = SimulatedStore(), shared.disk
        self.contents = scenario.contents(machine.config) if scenario.contents else None
        self.engine = SimulatedEngine(
            self.name,
            kind.cost.step_time,
            machine,
            shared.steps,
            self._clock,
            fast_forward=scenario.fast_forward and when_asked and not scenario.serves_step_by_step,
            contents=self.contents,
            drafts=SimulatedDrafts(kind.drafts, scenario.seed) if kind.speculation else None,
            serving=kind.cost.serving,
            cores=shared.cores,
            paced=self._await_step,
        )
        self.loads = LoadReports(
            self.machine,
            self.engine,
            round(scenario.health.report_interval_s * 1e9),
            self._perform,
            when_asked=when_asked,
        )
        self._ports = self._make_ports(tiers, kind)
        self._timer = Timer(self._queue, lambda _: self.receive(TimePassed()))
        self._wake_ns: int | None = None
        self._exported_ns = 0
        self._preemptions = 0
        self._drafts = NO_DRAFTS_YET
        # What the tiers have done at once while effects are performed belongs to the same turn.
        self._performing = False
        self._tiers_done: list[NodeEvent] = []
        self._landed_ns: Sequence[int] = ()

    @property
    def role(self) -> Role:
        return self.machine.role_state.role

    @property
    def versions(self) -> Sequence[int]:
        """Of its blocks, as they are now."""
        return self.worker_machine.sequences.pool.versions

    def take_mail(self, now_ns: int) -> None:
        """What has landed by now comes before what arrives now."""
        if self.hangs or not self.alive:
            return
        events, self.mail = self.mail, []
        for event in events:
            if isinstance(event, GatewayConnected):
                self.bus.open_channel(event.gateway, self)
        self.loads.make_due(now_ns)
        if self._changes_nothing(events, now_ns):
            self._handle(events, now_ns)
            return
        self._land_all(now_ns)
        if self.alive:
            self._handle(events, now_ns)
            self._go_on()

    def catch_up(self, now_ns: int) -> None:
        """What has landed by now is reported, before anything else that happens now."""
        if not self.hangs and self.engine.due(now_ns):
            self.loads.make_due(now_ns)
            self._land_all(now_ns)
            self._go_on()

    def hang(self, until_ns: int | None, now_ns: int) -> None:
        """Nothing moves in here, and nothing is heard or said; None: for good."""
        before_ns = max(now_ns, self.resume_ns)
        if until_ns is not None and until_ns <= before_ns:
            return
        if not self.hangs:
            self._land_all(now_ns)
            # Both worlds, taken step by step or not, know since when it is silent.
            self.send_heartbeat(now_ns)
        super().hang(until_ns, now_ns)
        self.engine.freeze(self.resume_ns - before_ns, now_ns)

    def set_speed(self, speed: float, now_ns: int) -> None:
        """Steps that begin later take the listed time divided by that."""
        if self.alive and not self.hangs:
            # Steps that were taken at one go are cut short: the others are as long as they will be.
            self._land_all(now_ns)
        self.engine.speed = speed
        if not self.hangs:
            self._go_on()

    def resumed(self, now_ns: int) -> None:
        self._land_all(now_ns)
        self._go_on()
        self.receive(TimePassed())

    def fenced(self, gateway: str) -> None:
        """The gateway has closed the channel. What it sent before is lost; the worker tries to
        come back."""
        self.mail = [
            event
            for event in self.mail
            if not isinstance(event, MessageFromGateway) or event.gateway != gateway
        ]
        self.receive(GatewayGone(gateway))
        self.bus.connect(gateway, self)

    def take_preemptions(self) -> int:
        """Since the last call."""
        counted, self._preemptions = self._preemptions, self.worker_machine.planner.preemptions
        return self._preemptions - counted

    def take_drafts(self) -> DraftTotals:
        """What came of its drafts since the last call."""
        drafting = self.worker_machine.drafting
        if drafting is None:
            return NO_DRAFTS_YET
        before, self._drafts = self._drafts, drafting.totals
        return self._drafts.since(before)

    def die(self) -> None:
        """The process is no more."""
        self.alive = False
        self.mail.clear()
        self.engine.release_cores()

    def due_report(self, now_ns: int) -> LoadReported | None:
        """The newest report that was due by now, if the gateway does not have it."""
        return None if self.hangs else self.loads.take_due(now_ns)

    @property
    def reports_unchanged(self) -> bool:
        """Whether a report may become due without a change of the worker: also once it hangs no
        more."""
        return self.hangs or self.loads.due_without_change

    def send_heartbeat(self, now_ns: int) -> None:
        """Report to the gateway now, changed or not."""
        if self.hangs:
            return
        report = self.loads.take_any(now_ns)
        if report is not None:
            self.bus.to_gateway(self, GATEWAY, report)

    def send_to_gateway(self, gateway: str, message: ToGateway) -> None:
        if isinstance(message, TokensReported):
            self._shared.steps.drew(self.name, message)
            self.bus.to_gateway(self, gateway, message, self._landed_ns)
        elif not (isinstance(message, LoadReported) and self.loads.keep_back(message)):
            if isinstance(message, RoleStateReported):
                self._shared.steps.role_taken(self.name, message.role)
            self.bus.to_gateway(self, gateway, message)

    def _clock(self) -> int:
        return self._queue.now_ns

    def _changes_nothing(self, events: Sequence[NodeEvent], now_ns: int) -> bool:
        """Whether the worker machine gets none of these: steps that are taken at one go need not be
        cut short for them."""
        for event in events:
            passes = event.message if isinstance(event, MessageFromGateway) else event
            if type(passes) not in PASSING:
                return False
        if self.machine.any_import_ends or not self.machine.role_state.accepting:
            return False
        lease_ns = self.machine.work.leases.next_wakeup()
        return lease_ns is None or lease_ns > now_ns

    def _land_all(self, now_ns: int) -> None:
        taken = self.engine.take_steps(now_ns)
        if taken is not None:
            self._changed()
            self._landed_ns = taken.landed_ns
            last_ns = taken.landed_ns[-1]
            self._perform(self.machine.fast_forward(taken.steps, taken.emission, last_ns))
            self._landed_ns = ()
        try:
            while (done := self.engine.landed(now_ns)) is not None:
                self._handle((done,), now_ns)
        except EngineDied as death:
            self._shared.died(self, str(death))

    def _handle(self, events: Sequence[NodeEvent], now_ns: int) -> None:
        self._changed()
        self._performing = True
        self._perform(self.machine.handle_together(events, now_ns))
        while self._tiers_done:
            done, self._tiers_done = self._tiers_done, []
            self._perform(self.machine.handle_together(done, now_ns))
        self._performing = False
        self._timer.set(self.machine.next_wakeup())
        self.loads.watch()

    def _changed(self) -> None:
        if self.loads.forget_load():
            self._shared.changed(self)

    def _go_on(self) -> None:
        """Look ahead, and have the queue wake the worker when its next step lands."""
        if not self.alive:
            return
        self.engine.look_ahead()
        self._await_step()

    def _await_step(self) -> None:
        wake_ns = self.engine.wake_ns
        if wake_ns is not None and wake_ns != self._wake_ns:
            self._wake_ns = wake_ns
            self._queue.at_in_order(wake_ns, self._wake, Turn.STEP, self.order)

    def _wake(self, now_ns: int) -> None:
        # An earlier wish that no longer holds is ignored when its instant comes.
        if self.alive and self._wake_ns == now_ns:
            self._wake_ns = None
            if not self.hangs and self.engine.goes_on(now_ns):
                self._await_step()
            else:
                self.catch_up(now_ns)

    def _perform(self, effects: Iterable[NodeEffect]) -> None:
        left = perform(effects, self._ports)
        if left is not None:
            self._shared.left(self, left)

    def _tier_event(self, event: NodeEvent) -> None:
        """The tiers have done what was asked for."""
        if self._performing:
            self._tiers_done.append(event)
        else:
            self.receive(event)

    def _export(self, blocks: tuple[int, ...], versions: tuple[int, ...], done: Done) -> None:
        """Others may read these blocks soon, in the order of the calls."""
        self._exported_ns = max(self._exported_ns, self.bus.soon_ns())

        def exported(_now_ns: int) -> None:
            if self.contents is not None:
                self.contents.export_contents(blocks, versions)
            done()

        if self._exported_ns > self._queue.now_ns:
            self._queue.at(self._exported_ns, exported)
        else:
            exported(self._exported_ns)

    def _make_ports(self, tiers: TiersConfig | None, kind: WorkerKind) -> NodePorts:
        shared, cost = self._shared, kind.cost
        transfer = SimulatedKvTransfer(
            self.name,
            shared.workers,
            cost.kv_bytes,
            shared.transfers,
            shared.steps.requests,
            self.receive,
            self._export,
            self.contents,
        )
        if tiers is None:
            return NodePorts(self.engine, self, transfer)
        block_size = self.worker_machine.config.block_size
        block_bytes = cost.kv_bytes(block_size)
        pool = None
        if tiers.remote:
            pool = SimulatedPoolClient(self.name, block_bytes, shared.pool_nodes, shared.transfers)
        simulated = SimulatedTiers(
            self.name,
            block_size,
            block_bytes,
            {Tier.HOST: self.host, Tier.DISK: shared.disk},
            pool,
            shared.transfers,
            shared.steps.requests,
            order_of=self.machine.order_of,
            clock=self._clock,
            post=self._tier_event,
            contents=self.contents,
        )
        return NodePorts(self.engine, self, transfer, simulated, pool)
