"""The simulated cluster at work: the machines of the live cluster, driven on a virtual clock by an
event queue, a network and a cost model."""

from dataclasses import replace
from typing import Protocol

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.prefix_cache.index import ComputedHashes
from tandem.cluster.shared_pool.machine import PoolNodeMachine
from tandem.facts.blocks import PromptChains
from tandem.facts.fleet import Role, Tier
from tandem.messages.cluster import Register
from tandem.messages.gateway import PeerGone, ShapesSimulated, SimulateShapes
from tandem.messages.node import GatewayGone, Leave
from tandem.messages.router import RequestSubmitted, RequestWithdrawn
from tandem.report.record import Decision, RunRecord, WorkerRecord
from tandem.twin.event_queue import EventQueue
from tandem.twin.gateway import SimulatedGateway
from tandem.twin.machine_configs import gateway_config, pool_names, pool_node_config
from tandem.twin.message_bus import GATEWAY, MessageBus
from tandem.twin.network.paths import pool_ports
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Scenario
from tandem.twin.shared_cores import SharedCores
from tandem.twin.shared_pool import SimulatedPoolNode
from tandem.twin.step_recorder import StepRecorder
from tandem.twin.tier_stores import SimulatedStore
from tandem.twin.transfers import Transfers
from tandem.twin.worker import SharedParts, SimulatedWorker, Start

# Of so many prompts the block hashes are kept: about as many as are on their way at once.
PROMPTS_PER_WORKER = 32


class PlannedStarts(Protocol):
    """Starts workers that are not up (`twin.launcher`)."""

    def start(self, name: str, role: Role) -> None: ...


class SimulatedCluster:
    """Gateway, workers, shared pool, network and records. Everybody who may ever come up is known
    from the start; `workers` and `pool_nodes` are those that are up, by name. After whatever
    happens at an instant, `bus.deliver` has everybody handle what follows."""

    def __init__(
        self, scenario: Scenario, run: RunRecord, recorder: Recorder | None = None
    ) -> None:
        self.scenario = scenario
        self.run = run
        self.queue = EventQueue()
        self.recorder = recorder or Recorder(run)
        self.steps = StepRecorder(run, self.recorder)
        self.pools = {name: pool for pool in scenario.pools for name in pool.workers()}
        self.bus = MessageBus(self.queue, encodes=scenario.encodes, seed=scenario.seed)
        self.transfers = Transfers(
            round(scenario.network_latency_s * 1e9),
            round(scenario.health.transfer_timeout_s * 1e9),
            self.queue,
        )
        self.prompts = PromptChains(scenario.block_size, PROMPTS_PER_WORKER * len(self.pools))
        self.workers: dict[str, SimulatedWorker] = {}
        self.pool_nodes: dict[str, SimulatedPoolNode] = {}
        self.gateways: dict[str, SimulatedGateway] = {}
        # Workers that hang, and whose name another process has taken over.
        self.replaced: list[SimulatedWorker] = []
        # Workers whose load or role may have changed: since the last sample, and since they were
        # last asked for a report.
        self._changed: set[SimulatedWorker] = set()
        self._to_ask: set[SimulatedWorker] = set()
        self.left: list[tuple[str, Role, Leave]] = []
        self.launcher: PlannedStarts | None = None
        self._disks = {name: SimulatedStore() for name in self.pools}
        self._order = {name: index for index, name in enumerate(self.pools)}
        self._starts: dict[str, int] = {}
        # At what share of their listed speed workers compute, where that is not all of it.
        self._speeds: dict[str, float] = {}
        # Tiers that are down, each of a worker or (an empty name) of all.
        self._tiers_down: set[tuple[Tier, str]] = set()
        self._cores = SharedCores() if scenario.serving.shares_cores else None
        self._direct = not scenario.message_latency_s and not scenario.encodes
        for name, pool in self.pools.items():
            self.transfers.add_ports(pool.kind.links.ports(name))
        self.pool_names = pool_names(scenario)
        for name in self.pool_names:
            share = scenario.pool_bytes_per_s / len(self.pool_names)
            self.transfers.add_ports(pool_ports(name, share))

    @property
    def now_ns(self) -> int:
        return self.queue.now_ns

    @property
    def gateway(self) -> SimulatedGateway | None:
        """The first of the gateways that are up."""
        return next(iter(self.gateways.values()), None)

    def open(self) -> None:
        """The gateways are there, and the processes of the shared pool."""
        for name in self.scenario.gateway_names:
            self.start_gateway(name)
        for name in self.pool_names:
            self.start_pool_node(name)

    def opened(self) -> None:
        """Everybody who is up at the start knows each other: from now on messages take time."""
        self.bus.deliver()
        self.bus.latency_ns = round(self.scenario.message_latency_s * 1e9)
        self.bus.jitter_ns = round(self.scenario.message_jitter_s * 1e9)

    # Processes

    def start_gateway(self, name: str = GATEWAY) -> None:
        """A gateway that knows nobody; whoever is up presents itself."""
        machine = GatewayMachine(self.gateway_config(name))
        gateway = SimulatedGateway(
            machine,
            self._next_start(name),
            self.bus,
            self.recorder,
            self,
            self.scenario.serving if self.scenario.serves_step_by_step else None,
        )
        self.gateways[name] = self.bus.gateways[name] = gateway
        gateway.start()
        for process in self._everybody():
            self.bus.connect(name, process)

    def lose_gateway(self, name: str = GATEWAY) -> None:
        """A gateway dies with everything that it was asked."""
        gateway = self.gateways[name]
        if not gateway.hangs:
            self.catch_up()
            self.bus.deliver()
        self.run.calibration.add(gateway.machine.router.predictions.total())
        gateway.alive = False
        del self.gateways[name]
        self.bus.lose_gateway(name)
        for process in self._everybody():
            process.receive(GatewayGone(name))
        for request_id in gateway.asked:
            self.recorder.lost(request_id, "its gateway died", self.now_ns)

    def start_worker(self, name: str, role: Role) -> None:
        """A worker is up; what its disk held before it still holds."""
        pool = self.pools[name]
        self.steps.worker(self.record_of(name, role))
        shared = SharedParts(
            scenario=self.scenario,
            bus=self.bus,
            transfers=self.transfers,
            steps=self.steps,
            prompts=self.prompts,
            workers=self.workers,
            pool_nodes=self.pool_nodes,
            disk=self._disks[name],
            cores=self._cores,
            changed=self._worker_changed,
            left=self._worker_left,
            died=self.worker_died,
        )
        start = Start(name, pool, role, self._order[name], int(self._next_start(name)))
        worker = self.workers[name] = SimulatedWorker(start, shared)
        self._worker_changed(worker)
        worker.engine.speed = self._speeds.get(name, 1.0)
        worker.host.up = self._tiers_down.isdisjoint({(Tier.HOST, ""), (Tier.HOST, name)})
        for gateway in self.gateways:
            self.bus.connect(gateway, worker)

    def kill_worker(self, name: str, *, silently: bool = False) -> None:
        """It dies, and everything on its device with it; the gateways see its channel break, or
        (`silently`) only that it is silent."""
        worker = self.workers[name]
        worker.catch_up(self.now_ns)
        self.bus.deliver()
        if self.workers.get(name) is not worker:
            # It had left by its own account meanwhile.
            return
        self._remove(worker)
        if not silently:
            gone = PeerGone(worker.peer, "its process has ended")
            self.bus.end_process(worker, gone, delivers_sent=False)

    def worker_died(self, worker: SimulatedWorker, reason: str) -> None:
        """A step has ended its process."""
        self._remove(worker)
        self.bus.end_process(worker, PeerGone(worker.peer, reason), delivers_sent=True)

    def replace_worker(self, name: str, role: Role) -> None:
        """Somebody takes this worker, which hangs, for dead, and starts it anew. Perhaps it wakes
        up one day."""
        worker = self.workers[name]
        self.settle_accounts(name)
        del self.workers[name]
        self._worker_changed(worker)
        self.replaced.append(worker)
        # Its own disk is locked: the new one begins with what lies there now.
        disk = self._disks[name]
        self._disks[name] = replace(
            disk, blocks=dict(disk.blocks), corrupt=set(disk.corrupt), lost=set(disk.lost)
        )
        self.start_worker(name, role)

    def start_pool_node(self, name: str) -> None:
        """A process of the shared pool is up, empty."""
        scenario = self.scenario
        config = pool_node_config(name, self._next_start(name), scenario)
        machine = PoolNodeMachine(config, self.now_ns)
        block_bytes = scenario.pools[0].kind.cost.kv_bytes(scenario.block_size)
        node = SimulatedPoolNode(machine, self.bus, self.transfers, block_bytes, self.pool_nodes)
        node.store.up = (Tier.REMOTE, "") not in self._tiers_down
        self.pool_nodes[name] = node
        for gateway in self.gateways:
            self.bus.connect(gateway, node)

    def kill_pool_node(self, name: str) -> None:
        """It dies with what it held."""
        node = self.pool_nodes.pop(name)
        node.die()
        self.transfers.fail_ports(tuple(pool_ports(name, 1.0)))
        gone = PeerGone(node.peer, "its process has ended")
        self.bus.end_process(node, gone, delivers_sent=False)

    def settle_accounts(self, name: str) -> None:
        """Write down what a worker was up for, until now."""
        worker, record = self.workers[name], self.steps.of(name)
        record.up_ns += self.now_ns - worker.up_since_ns
        record.preemptions += worker.take_preemptions()
        record.drafts = record.drafts.plus(worker.take_drafts())
        worker.up_since_ns = self.now_ns

    def stores(self, tier: Tier, name: str) -> list[SimulatedStore]:
        """Of a tier: those of a worker, of all of them (an empty `name`), or of the pool."""
        if tier is Tier.REMOTE:
            return [node.store for node in self.pool_nodes.values()]
        names = [each for each in self.pools if name in ("", each)]
        if tier is Tier.DISK:
            return [self._disks[each] for each in names]
        up = [self.workers[each] for each in names if each in self.workers]
        return [worker.host for worker in up]

    def set_speed(self, name: str, speed: float) -> None:
        """A worker computes at this share of its listed speed from its next step on, and whoever is
        started under its name."""
        self._speeds[name] = speed
        if name in self.workers:
            self.workers[name].set_speed(speed, self.now_ns)

    def set_tier(self, tier: Tier, name: str, *, up: bool) -> None:
        """A tier can be read and written, or not; its content outlives that."""
        if up:
            self._tiers_down.discard((tier, name))
        else:
            self._tiers_down.add((tier, name))
        for store in self.stores(tier, name):
            store.up = up

    # What is known

    def gateway_for(self, serial: int) -> SimulatedGateway | None:
        """Whoever answers a client that connects now; None: nobody is up."""
        up = list(self.gateways.values())
        return up[serial % len(up)] if up else None

    def submit(self, event: RequestSubmitted, gateway: SimulatedGateway) -> None:
        """A client asks this gateway. What workers carry is known to it as their reports have it by
        now."""
        gateway.submit(event)

    def withdraw(self, request_id: str) -> None:
        """The client of this request leaves, and its gateway knows."""
        self.recorder.left(request_id, self.now_ns)
        for gateway in self.gateways.values():
            if request_id in gateway.asked:
                gateway.receive(RequestWithdrawn(request_id))

    def refresh_loads(self) -> None:
        """The gateway is about to decide: it gets the reports that are due by now."""
        gateway, now_ns = self.gateway, self.now_ns
        if gateway is None or not self.scenario.asks_for_reports:
            return
        asked, self._to_ask = self._to_ask, set()
        reports = []
        for worker in self.workers.values():
            if worker not in asked:
                continue
            if (report := worker.due_report(now_ns)) is not None:
                reports.append((worker, report))
            if worker.reports_unchanged:
                self._to_ask.add(worker)
        if self._direct:
            loads = [(worker.peer, report) for worker, report in reports]
            gateway.machine.loads_reported(loads, now_ns)
            return
        for worker, report in reports:
            self.bus.to_gateway(worker, gateway.name, report)

    def take_changed(self) -> set[SimulatedWorker]:
        """The workers whose load or role may have changed since the last call, with those that have
        come up or are up no more."""
        changed, self._changed = self._changed, set()
        return changed

    def catch_up(self) -> None:
        """All tokens that are there by now are reported, in the order of the workers."""
        for worker in sorted(self.workers.values(), key=lambda each: each.order):
            worker.catch_up(self.now_ns)

    def send_heartbeats(self) -> None:
        """Everybody who can report does: who does not is silent."""
        if not self.scenario.asks_for_reports:
            return
        for worker in self.workers.values():
            worker.send_heartbeat(self.now_ns)
        for node in self.pool_nodes.values():
            node.send_heartbeat(self.now_ns)

    def fence(self, gateway: str, peer: str) -> None:
        """A gateway closes the channel of this process, as far as it reaches that."""
        channel = self.bus.channels.get((gateway, peer))
        if channel is None or channel.cut:
            return
        self.bus.close_channel(gateway, peer)
        if isinstance(channel.process, SimulatedWorker):
            channel.process.fenced(gateway)

    def start_planned(self, worker: str, role: Role) -> None:
        """The planner of the gateway wants a worker."""
        assert self.launcher is not None
        self.launcher.start(worker, role)

    def simulate_shapes(self, gateway: str, effect: SimulateShapes) -> None:
        """The planner of a gateway asks, and is answered `answers_s` later, if it lives."""
        simulator = self.scenario.simulator
        if simulator is None:
            answer = ShapesSimulated(effect.question_id, problem="there is no simulator here")
        else:
            answer = simulator(effect)
        asking = self.gateways[gateway]

        def arrive(now_ns: int) -> None:  # noqa: ARG001
            if self.gateways.get(gateway) is asking:
                asking.receive(answer)

        self.queue.at(self.now_ns + round(self.scenario.answers_s * 1e9), arrive)

    def decided(self, decision: Decision) -> None:
        """Keep a decision: always one about the fleet, one about a request when asked for."""
        if self.scenario.explains or not decision.request_id:
            self.run.decisions.append(decision)

    def _worker_changed(self, worker: SimulatedWorker) -> None:
        self._changed.add(worker)
        self._to_ask.add(worker)

    def _everybody(self) -> list[SimulatedPoolNode | SimulatedWorker]:
        return [*self.pool_nodes.values(), *self.workers.values(), *self.replaced]

    def _worker_left(self, worker: SimulatedWorker, leave: Leave) -> None:
        """Its machine has ended the process, orderly or because it was not let in."""
        self.left.append((worker.name, worker.role, leave))
        self._remove(worker)
        gone = PeerGone(worker.peer, leave.reason or "it left", died=False)
        self.bus.end_process(worker, gone, delivers_sent=True)

    def _remove(self, worker: SimulatedWorker) -> None:
        worker.die()
        self._worker_changed(worker)
        if worker in self.replaced:
            self.replaced.remove(worker)
            return
        self.settle_accounts(worker.name)
        del self.workers[worker.name]
        for before in self.replaced:
            if before.name == worker.name:
                # The name is that of the one that was taken for dead again.
                self.replaced.remove(before)
                self.workers[worker.name] = before
                self._worker_changed(before)
                self._disks[worker.name] = before.disk
                before.up_since_ns = self.now_ns
                break
        self.transfers.fail_ports(tuple(worker.pool.kind.links.ports(worker.name)))

    def record_of(self, name: str, role: Role) -> WorkerRecord:
        """An empty record of this worker."""
        pool = self.pools[name]
        classes = ", ".join(sorted(self.scenario.policies.classes.dedicated_to(pool.name)))
        kind = pool.kind
        return WorkerRecord(name, str(role), kind.device, kind.devices, classes=classes)

    def _next_start(self, name: str) -> str:
        self._starts[name] = self._starts.get(name, 0) + 1
        return str(self._starts[name])

    def gateway_config(self, name: str) -> GatewayConfig:
        """What a gateway starts with."""
        hashes = ComputedHashes(self.scenario.block_size, self.prompts)
        return gateway_config(name, self.scenario, hashes, self._capacity_of)

    def _capacity_of(self, register: Register) -> Capacity:
        pool = self.pools[register.worker]
        kind, block_size = pool.kind, register.export.geometry.block_size
        return Capacity(
            cost=kind.cost,
            block_size=block_size,
            block_count=kind.block_count,
            max_sequences=kind.max_sequences,
            pool=pool.name,
        )
