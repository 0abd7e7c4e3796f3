"""One simulated worker process: the node machine that runs live, over a simulated engine, KV
transfer and tiers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tandem.cluster.node.driver import NodePorts, perform
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine, drawn_since, load_of
from tandem.facts.blocks import CacheRoot, PromptChains
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import KvExport, KvGeometry, MoveKv
from tandem.messages.cluster import (
    PROTOCOL,
    FetchKv,
    LeasesRenewed,
    PeerJoined,
    Register,
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
from tandem.twin.block_contents import EngineDied
from tandem.twin.engine import SimulatedEngine
from tandem.twin.event_queue import Timer, Turn
from tandem.twin.kv_transfer import SimulatedKvTransfer
from tandem.twin.process import GATEWAY, MessageBus, Process
from tandem.twin.scenario import Pool, Scenario, WorkerKind
from tandem.twin.shared_pool import SimulatedPoolClient, SimulatedPoolNode
from tandem.twin.step_recorder import StepRecorder
from tandem.twin.tier_stores import SimulatedStore
from tandem.twin.tiers import SimulatedTiers
from tandem.twin.transfers import Transfers
from tandem.twin.workload import VOCABULARY_TOKENS

MODEL = "simulated"
# What concerns KV on its way and leases alone: the worker machine hears nothing of it, as long as
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
        TimePassed,
    }
)
# How slower tiers fare is told so often at most.
TIERS_REPORT_NS = 1_000_000_000
CACHE_ROOT = CacheRoot("twin", "", b"")
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
class Surroundings:
    """What a worker shares with the others: messages, links, records, hashes of prompts, and the
    disk that outlives it. `changed` is called when its load or role may have changed, `left` when
    its machine ends the process, `died` when a step does."""

    scenario: Scenario
    bus: MessageBus
    transfers: Transfers
    steps: StepRecorder
    prompts: PromptChains
    workers: Mapping[str, "SimulatedWorker"]
    pool_nodes: Mapping[str, SimulatedPoolNode]
    disk: SimulatedStore
    changed: Callable[["SimulatedWorker"], object]
    left: Callable[["SimulatedWorker", Leave], object]
    died: Callable[["SimulatedWorker", str], object]


class SimulatedWorker(Process[NodeEvent]):
    """`up_since_ns` is since when it is paid for and not yet written down."""

    def __init__(self, start: Start, around: Surroundings) -> None:
        super().__init__(start.name, str(start.starts), around.bus)
        self.pool, self.order = start.pool, start.order
        self.block_count = start.pool.kind.block_count
        self.up_since_ns = around.bus.queue.now_ns
        self._around = around
        self._queue = around.bus.queue
        scenario, kind = around.scenario, start.pool.kind
        tiers = _tiers_config(kind, scenario, around.disk)
        worker_config = _worker_config(kind, scenario, reports_full_blocks=tiers is not None)
        # Blocks of another size have other hashes.
        alike = worker_config.block_size == scenario.block_size
        machine = WorkerMachine(worker_config, around.prompts if alike else None)
        register = _hello(start, self.incarnation, machine.config)
        self._reports_when_asked = scenario.asks_for_reports
        config = NodeConfig(register, tiers, reports_when_asked=self._reports_when_asked)
        self.machine = NodeMachine(config, machine)
        self.worker_machine = machine
        self.host, self.disk = SimulatedStore(), around.disk
        self.contents = scenario.contents(machine.config) if scenario.contents else None
        self.engine = SimulatedEngine(
            self.name,
            kind.cost.step_time,
            machine,
            around.steps,
            self._clock,
            fast_forward=scenario.fast_forward and self._reports_when_asked,
            contents=self.contents,
        )
        self._ports = self._make_ports(tiers, kind)
        self._timer = Timer(self._queue, lambda _: self.receive(TimePassed()))
        self._wake_ns: int | None = None
        self._exported_ns = 0
        self._preemptions = 0
        # What the tiers have done at once while effects are performed belongs to the same turn.
        self._performing = False
        self._tiers_done: list[NodeEvent] = []
        self._landed_ns: Sequence[int] = ()
        # The load as the machine has it, and as it was reported last where it is always known.
        self._load: LoadReported | None = None
        self._reported: LoadReported | None = None
        # Where it is told now and then: how often, when next, and what was said but not heard.
        self._interval_ns = round(scenario.report_interval_s * 1e9) * self._reports_when_asked
        self._report_due_ns: int | None = None
        self._pending: LoadReported | None = None
        self._asked = False
        self._tiers_reported_ns = -TIERS_REPORT_NS

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
        self._settle_report(now_ns)
        if self._changes_nothing(events, now_ns):
            self._handle(events, now_ns)
            return
        self._land_all(now_ns)
        if self.alive:
            self._handle(events, now_ns)
            self._go_on()

    def catch_up(self, now_ns: int) -> None:
        """What has landed by now is told of, before anything else that happens now."""
        if not self.hangs and self.engine.due(now_ns):
            self._settle_report(now_ns)
            self._land_all(now_ns)
            self._go_on()

    def hang(self, until_ns: int | None, now_ns: int) -> None:
        """Nothing moves in here, and nothing is heard or said; None: for good."""
        before_ns = max(now_ns, self.thaw_ns)
        if until_ns is not None and until_ns <= before_ns:
            return
        if not self.hangs:
            self._land_all(now_ns)
            # Both worlds, taken step by step or not, know since when it is silent.
            self.sign_of_life(now_ns)
        super().hang(until_ns, now_ns)
        self.engine.freeze(self.thaw_ns - before_ns, now_ns)

    def thawed(self, now_ns: int) -> None:
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

    def die(self) -> None:
        """The process is no more."""
        self.alive = False
        self.mail.clear()

    @property
    def machine_load(self) -> LoadReported:
        """As the worker machine knows it: without tokens that steps taken at one go have drawn
        since."""
        if self._load is None:
            self._load = load_of(self.name, self.worker_machine)
        return self._load

    def load(self, now_ns: int) -> LoadReported:
        """What a report sent now would say, but for what was heard."""
        load = self.machine_load
        drawn_tokens = self.engine.tokens_ahead(now_ns)
        return drawn_since(load, drawn_tokens) if drawn_tokens else load

    @property
    def reports_unchanged(self) -> bool:
        """Whether a report may become due without a change of its machine: at an interval, by steps
        that are taken at one go, or once it hangs no more."""
        return bool(self._interval_ns) or self.hangs or self.engine.steps_ahead > 0

    def due_report(self, now_ns: int) -> LoadReported | None:
        """The newest report that was to be sent by now and is news: as of now where loads are
        always known. Superseded ones are never made."""
        if self.hangs or not self._reports_when_asked:
            return None
        if self._interval_ns:
            self._settle_report(now_ns + 1)
        else:
            load = self.load(now_ns)
            if load is self._reported:
                return None
            self._reported = load
            if now_ns - self._tiers_reported_ns < TIERS_REPORT_NS:
                return self.machine.report_to(GATEWAY, load)
            self._report_as_of(now_ns, load)
        report, self._pending = self._pending, None
        return report

    def sign_of_life(self, now_ns: int) -> None:
        """The gateway hears of it, whatever it carries."""
        if self.hangs or not self._reports_when_asked:
            return
        self._settle_report(now_ns + 1)
        if self._pending is None:
            self._report_as_of(now_ns, self.load(now_ns))
        report, self._pending = self._pending, None
        if report is not None:
            self.bus.to_gateway(self, GATEWAY, report)

    def send_to_gateway(self, gateway: str, message: ToGateway) -> None:
        if isinstance(message, TokensReported):
            self._around.steps.drew(self.name, message)
            self.bus.to_gateway(self, gateway, message, self._landed_ns)
        elif isinstance(message, LoadReported) and self._asked:
            self._pending = message
        else:
            if isinstance(message, RoleStateReported):
                self._around.steps.role_taken(self.name, message.role)
            self.bus.to_gateway(self, gateway, message)

    def _settle_report(self, before_ns: int) -> None:
        """Make the last report that was due before that instant."""
        due_ns = self._report_due_ns
        if due_ns is None or due_ns >= before_ns:
            return
        due_ns += (before_ns - 1 - due_ns) // self._interval_ns * self._interval_ns
        self._report_as_of(due_ns, self.load(due_ns))

    def _report_as_of(self, instant_ns: int, load: LoadReported) -> None:
        tiers = instant_ns - self._tiers_reported_ns >= TIERS_REPORT_NS
        if tiers:
            self._tiers_reported_ns = instant_ns
        self._asked = True
        self._perform(self.machine.report(load, instant_ns, tiers=tiers))
        self._asked = False
        self._watch_report()

    def _watch_report(self) -> None:
        if self._interval_ns:
            self._report_due_ns = self.machine.gateways.report_due_ns()

    def _clock(self) -> int:
        return self._queue.now_ns

    def _changes_nothing(self, events: Sequence[NodeEvent], now_ns: int) -> bool:
        """Whether the worker machine hears nothing of these: steps that are taken at one go need
        not be cut short for them."""
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
            self._around.died(self, str(death))

    def _handle(self, events: Sequence[NodeEvent], now_ns: int) -> None:
        self._changed()
        self._performing = True
        self._perform(self.machine.handle_together(events, now_ns))
        while self._tiers_done:
            done, self._tiers_done = self._tiers_done, []
            self._perform(self.machine.handle_together(done, now_ns))
        self._performing = False
        self._timer.set(self.machine.next_wakeup())
        self._watch_report()

    def _changed(self) -> None:
        if self._load is not None:
            # Else nobody has looked since it was told of last.
            self._load = None
            self._around.changed(self)

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
            self._around.left(self, left)

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
        around, cost = self._around, kind.cost
        transfer = SimulatedKvTransfer(
            self.name,
            around.workers,
            cost.kv_bytes,
            around.transfers,
            around.steps.requests,
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
            pool = SimulatedPoolClient(self.name, block_bytes, around.pool_nodes, around.transfers)
        simulated = SimulatedTiers(
            self.name,
            block_size,
            block_bytes,
            {Tier.HOST: self.host, Tier.DISK: around.disk},
            pool,
            around.transfers,
            around.steps.requests,
            order_of=self.machine.order_of,
            clock=self._clock,
            post=self._tier_event,
            contents=self.contents,
        )
        return NodePorts(self.engine, self, transfer, simulated, pool)


def _worker_config(
    kind: WorkerKind, scenario: Scenario, *, reports_full_blocks: bool
) -> WorkerConfig:
    block_size = kind.block_size or scenario.block_size
    return WorkerConfig(
        block_size=block_size,
        block_count=kind.block_count,
        context_tokens=min(scenario.context_tokens, kind.block_count * block_size),
        vocabulary_tokens=VOCABULARY_TOKENS,
        max_sequences=kind.max_sequences,
        batching=kind.batching,
        root=CACHE_ROOT,
        steps_in_flight=kind.steps_in_flight,
        pipeline_stages=kind.cost.step_time.stages,
        max_waiting=1 << 30,
        reports_committed=reports_full_blocks,
    )


def _tiers_config(kind: WorkerKind, scenario: Scenario, disk: SimulatedStore) -> TiersConfig | None:
    sizes = {Tier.HOST: kind.host_blocks, Tier.DISK: kind.disk_blocks}
    capacities = {tier: blocks for tier, blocks in sizes.items() if blocks}
    remote = scenario.remote_blocks > 0
    if not capacities and not remote:
        return None
    eviction = scenario.policies.eviction
    return TiersConfig(
        capacities,
        lambda _blocks: eviction(),
        found=tuple(disk.blocks.values()) if kind.disk_blocks else (),
        remote=remote,
        pin_share=scenario.pin_share,
        quotas=scenario.quotas,
        pin_shares=scenario.pin_shares,
        limits=scenario.tier_limits or TierLimits.within(capacities.values()),
    )


def _hello(start: Start, incarnation: str, config: WorkerConfig) -> Register:
    geometry = KvGeometry(1, 1, 1, config.block_size, "simulated")
    export = KvExport(MODEL, "", geometry, config.block_count, (), identity=CACHE_ROOT.identity)
    return Register(
        protocol=PROTOCOL,
        version="",
        worker=start.name,
        incarnation=incarnation,
        pool=start.pool.name,
        role=start.role,
        accepting=True,
        root=CACHE_ROOT,
        export=export,
        max_sequences=config.max_sequences,
        context_tokens=config.context_tokens,
    )
