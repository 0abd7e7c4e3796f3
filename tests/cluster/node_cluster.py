"""Gateways and workers as processes, by a driver that chance leads: messages wait in channels,
steps and copies are late, processes die, hang, come back, are replaced and leave."""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from tandem.cluster.gateway.autoscaling import PlanningConfig
from tandem.cluster.gateway.machine import GatewayConfig, GatewayMachine
from tandem.cluster.node.machine import NodeConfig, NodeMachine
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cluster.router.request_state import Stage
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.facts.fleet import Role
from tandem.facts.kv import BlockFormat, KvExport, KvGeometry, MoveKv, MoveReport
from tandem.facts.request import Request
from tandem.messages.cluster import PROTOCOL, Audited, Drain, Register, Registered, ToWorker
from tandem.messages.codec import TO_GATEWAY, TO_WORKER
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    Deliver,
    DrainAsked,
    Fence,
    MessageFromWorker,
    OperationEnded,
    PeerGone,
    PlanDecided,
    SendToWorker,
    StartWorker,
    TimePassed,
    UndrainAsked,
)
from tandem.messages.node import (
    BlocksExported,
    ConnectPeer,
    EndMove,
    ExportBlocks,
    ForgetPeer,
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
    MoveFinished,
    SendToGateway,
    StartMove,
)
from tandem.messages.router import (
    Explain,
    ImportReported,
    MigrationsRequested,
    Reject,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.messages.worker import (
    CopiesRequested,
    FailRequest,
    ImportDone,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsArrived,
    RunStep,
    StepDone,
)
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.routing.policies import ROUTINGS
from tests.cluster.ledger_engine import NONSENSE, LedgerEngine
from tests.cluster.router_cluster import CLASSES, COST, is_copy

MS = 1_000_000
WELCOME = Registered("", report_interval_ns=100 * MS, silence_ns=1000 * MS, lease_ns=3000 * MS)
ROLES = ((Role.PREFILL, Role.DECODE), (Role.BOTH,), (Role.PREFILL, Role.DECODE, Role.BOTH))


@dataclass(slots=True)
class Client:
    """Who asked, and what came back."""

    request: Request
    output: list[int] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Gate:
    """One start of a gateway. `open` are the operations that have not ended."""

    name: str
    start: int
    machine: GatewayMachine
    clients: dict[str, Client] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    answers: dict[int, AuditEnded] = field(default_factory=dict)
    hung: bool = False


@dataclass(slots=True, eq=False)
class Process:
    """One start of a worker, with its memory: `headers` are version and content of the blocks
    that were published, `peers` those it may read from."""

    name: str
    incarnation: str
    node: NodeMachine
    engine: LedgerEngine
    landing: deque = field(default_factory=deque)
    moves: dict[int, MoveKv] = field(default_factory=dict)
    publishing: deque = field(default_factory=deque)
    headers: dict[int, tuple[int, list[bytes]]] = field(default_factory=dict)
    peers: set[tuple[str, str]] = field(default_factory=set)
    hung: bool = False
    alive: bool = True

    @property
    def peer(self) -> str:
        return f"{self.name}/{self.incarnation}"

    @property
    def block_size(self) -> int:
        return self.engine.block_size


@dataclass(slots=True)
class Channel:
    """Between a gateway and a start of a worker; `up` leads to the gateway. Broken ones stay while
    something said before is still on its way."""

    up: deque = field(default_factory=deque)
    down: deque = field(default_factory=deque)


class NodeCluster:
    """`configs` are the workers that may live, by name. `seen` counts what has happened."""

    # Of the blocks of the shared pool; here there is none.
    block_format: BlockFormat | None = None

    def __init__(self, configs: dict[str, WorkerConfig], gateways: int, chance: Random) -> None:
        self.configs = configs
        self.chance = chance
        self.roles = chance.choice(ROLES)
        self.first_token = chance.choice(list(FirstToken))
        self.policies = self._policies()
        self.gates: dict[str, Gate] = {}
        self.processes: list[Process] = []
        self.channels: dict[tuple[str, str], Channel] = {}
        self.finished: list[Gate] = []
        self.seen: Counter[str] = Counter()
        self.starts = 0
        self.operations = 0
        self.now_ns = 0
        for index in range(gateways):
            self.start_gateway(f"g{index}")

    def _policies(self) -> dict:
        chance, transfer = self.chance, self.chance.choice(list(Transfer))
        dispatch = chance.choice(["local", "remote", "remote", "queue", "seconds", "conditional"])
        bounds = {"local_tokens": 8} if dispatch == "conditional" else {}
        first = next(iter(self.configs.values()))
        return {
            "block_size": first.block_size,
            "root": first.root,
            "capacities": {},
            "routing": ROUTINGS[chance.choice(sorted(ROUTINGS))](chance.randrange(100)),
            "admission": ADMISSIONS["none"](),
            "dispatching": DISPATCHES[dispatch](transfer=transfer, **bounds),
            "queue": RequestQueueConfig(
                max_requests=chance.choice([0, 0, 3]), prefill_depth=chance.choice([0, 0, 1, 2])
            ),
            "classes": CLASSES,
            "explains": chance.choice([False, True]),
            "first_token": self.first_token,
        }

    # Processes come and go

    def start_gateway(self, name: str) -> None:
        self.starts += 1
        config = GatewayConfig(
            gateway=name,
            router=RouterConfig(**self.policies),
            capacity_of=self._capacity,
            terms=WELCOME,
            model="model",
            revision="revision",
            block_format=self.block_format,
            planning=self.planning_of(name),
        )
        self.gates[name] = Gate(name, self.starts, GatewayMachine(config))
        for process in self.living():
            # What was said to the old one may reach the new one, which knows nobody.
            old = self.channels.get((name, process.peer))
            if old is not None and self.chance.randrange(2):
                old.down.clear()
            elif not process.hung:
                self._reconnect(name, process)
            else:
                self.channels[name, process.peer] = Channel()

    def planning_of(self, gateway: str) -> PlanningConfig | None:
        """With what a gateway plans that starts now; here none does."""
        return None

    def plan_carried_out(self, effect: StartWorker | PlanDecided) -> None:
        """What a planner wants done."""
        raise AssertionError(effect)

    def _capacity(self, register: Register) -> Capacity:
        config = self.configs[register.worker]
        return Capacity(COST, config.block_size, config.block_count, config.max_sequences)

    def start_worker(self, name: str, role: Role) -> None:
        config = self.configs[name]
        self.starts += 1
        geometry = KvGeometry(1, 1, 1, config.block_size, "float32")
        register = Register(
            protocol=PROTOCOL,
            version="1",
            worker=name,
            incarnation=str(self.starts),
            pool="pool",
            role=role,
            accepting=True,
            root=config.root,
            export=KvExport(
                "model",
                "revision",
                geometry,
                config.block_count,
                (),
                identity=config.root.identity,
            ),
            max_sequences=config.max_sequences,
            context_tokens=config.context_tokens,
        )
        node = NodeMachine(NodeConfig(register, self.tiers_of(name)), WorkerMachine(config))
        engine = LedgerEngine(config.block_size, config.block_count, config.max_sequences)
        process = Process(name, register.incarnation, node, engine)
        self.processes.append(process)
        for gateway in self.gates:
            self.channels[gateway, process.peer] = Channel()
            self.tell(process, [GatewayConnected(gateway)])

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def crash_worker(self, process: Process) -> None:
        process.alive = False
        self.seen["crashes"] += 1
        for gateway in self.gates:
            self.channels[gateway, process.peer].down.clear()
            # Sometimes only its silence tells that it is dead.
            if self.chance.randrange(3):
                self.channels[gateway, process.peer].up.append(None)

    def restart_gateway(self, name: str) -> None:
        gate = self.gates.pop(name)
        self.finished.append(gate)
        for client in gate.clients.values():
            if not client.endings:
                client.endings.append("gateway lost")
        self.start_gateway(name)
        self.seen["gateway restarts"] += 1

    def _reconnect(self, gateway: str, process: Process) -> None:
        self.channels[gateway, process.peer] = Channel()
        self.tell(process, [GatewayGone(gateway)])
        self.tell(process, [GatewayConnected(gateway)])

    # What machines hear and ask for

    def tell(self, process: Process, events: list) -> None:
        for effect in process.node.handle_together(events, self.now_ns):
            match effect:
                case RunStep(plan):
                    process.landing.append(plan)
                case SendToGateway(gateway, message):
                    if isinstance(message, ImportReported):
                        # Whoever reads what was not brought reads nonsense.
                        process.engine.spoil(message.wanted.blocks)
                    self._send_up(gateway, process, message)
                case StartMove(move_id, order):
                    process.moves[move_id] = order
                case EndMove(move_id):
                    assert move_id in process.moves
                    self.seen["moves stopped"] += 1
                case ExportBlocks():
                    process.publishing.append(effect)
                case ConnectPeer(worker, incarnation):
                    assert (worker, incarnation) not in process.peers
                    process.peers.add((worker, incarnation))
                case ForgetPeer(worker, incarnation):
                    process.peers.remove((worker, incarnation))
                case Leave():
                    self._leave(process, effect)
                case _:
                    self.perform(process, effect)
        if process.alive and not self.chance.randrange(3):
            process.node.audit()

    def tiers_of(self, name: str) -> TiersConfig | None:
        """The tiers below a worker that starts now; here there are none."""
        return None

    def perform(self, process: Process, effect) -> None:
        """What else a worker wants done."""
        raise AssertionError(effect)

    def _leave(self, process: Process, effect: Leave) -> None:
        process.alive = False
        self.seen["leaves" if not effect.reason else "turned away"] += 1
        for gateway in self.gates:
            self.channels[gateway, process.peer].down.clear()
            self.channels[gateway, process.peer].up.append(None)

    def _send_up(self, gateway: str, process: Process, message) -> None:
        if channel := self.channels.get((gateway, process.peer)):
            channel.up.append(TO_GATEWAY.encode(message))

    def hear(self, gate: Gate, events: list) -> None:
        for effect in gate.machine.handle_together(events, self.now_ns):
            match effect:
                case SendToWorker(peer, message):
                    self._count(message)
                    channel = self.channels.get((gate.name, peer))
                    if channel is not None:
                        channel.down.append(TO_WORKER.encode(message))
                case Deliver(emission):
                    self._deliver(gate, emission)
                case Reject(request_id, reason):
                    client = gate.clients[request_id]
                    assert not client.output, reason
                    client.endings.append("rejected")
                case FailRequest(request_id):
                    gate.clients[request_id].endings.append("failed")
                case Fence(peer):
                    self._fence(gate, peer)
                case OperationEnded(operation_id, problem):
                    gate.open.remove(operation_id)
                    self.seen["operations refused" if problem else "operations done"] += 1
                case AuditEnded(operation_id):
                    gate.open.remove(operation_id)
                    gate.answers[operation_id] = effect
                    assert all(not each.problem for each in effect.workers), effect
                case Explain():
                    self.seen["explained"] += 1
                case StartWorker() | PlanDecided():
                    self.plan_carried_out(effect)
        if not self.chance.randrange(3):
            gate.machine.audit()
        for request_id, state in gate.machine.router.requests.items():
            assert list(state.output) == gate.clients[request_id].output

    def _count(self, message: ToWorker) -> None:
        match message:
            case CopiesRequested():
                self.seen["copies"] += 1
            case ImportDone(wire_id, tokens, said) if said and is_copy(wire_id):
                self.seen["migrated" if tokens else "migrated without KV"] += 1
            case KvTransfersRequested():
                self.seen["migrations"] += 1
            case ImportDone(_, tokens):
                self.seen["hand-overs" if tokens else "hand-overs without KV"] += 1
            case RequestsArrived(requests) | PrefillsArrived(requests):
                self.seen["taken up again"] += any("~" in one.request_id for one in requests)
            case Drain(then_role) if then_role:
                self.seen["flips"] += 1

    def _deliver(self, gate: Gate, emission) -> None:
        for request_id, token, reason in zip(
            emission.request_ids, emission.tokens, emission.finish_reasons, strict=True
        ):
            client = gate.clients[request_id]
            assert not client.endings
            client.output.append(token)
            if reason:
                client.endings.append("finished")

    def _fence(self, gate: Gate, peer: str) -> None:
        """The channel is closed, which the worker hears now, later or by itself."""
        self.seen["fenced"] += 1
        channel = self.channels[gate.name, peer]
        process = next(each for each in self.processes if each.peer == peer)
        if self.chance.randrange(2):
            channel.down.clear()
            channel.up.clear()
            if process.alive:
                channel.down.append(None)

    # What sooner or later happens by itself

    def routine(self) -> list[tuple]:
        choices: list[tuple] = []
        for (gateway, peer), channel in self.channels.items():
            if channel.up and not self.gates[gateway].hung:
                choices += [(self.deliver_up, gateway, peer)] * 2
        for process in self.living():
            if process.hung:
                continue
            for gateway in self.gates:
                if self.channels[gateway, process.peer].down:
                    choices += [(self.deliver_down, gateway, process)] * 2
            choices += [(self.land, process)] * (3 * bool(process.landing))
            choices += [(self.end_move, process, move_id) for move_id in process.moves]
            choices += [(self.publish, process)] * bool(process.publishing)
        return choices

    def deliver_up(self, gateway: str, peer: str) -> None:
        """A gateway hears some of what a worker has said."""
        channel, events = self.channels[gateway, peer], []
        for _ in range(self.chance.randint(1, len(channel.up))):
            data = channel.up.popleft()
            if data is None:
                events.append(PeerGone(peer, "its connection broke"))
            else:
                events.append(MessageFromWorker(peer, TO_GATEWAY.decode(data)))
        self.hear(self.gates[gateway], events)

    def deliver_down(self, gateway: str, process: Process) -> None:
        """A worker hears some of what a gateway has told it."""
        channel, events = self.channels[gateway, process.peer], []
        for _ in range(self.chance.randint(1, len(channel.down))):
            data = channel.down.popleft()
            if data is None:
                self._reconnect(gateway, process)
                return
            events.append(MessageFromGateway(gateway, TO_WORKER.decode(data)))
        if process.landing and self.chance.randrange(2):
            events.append(StepDone(process.engine.run(process.landing.popleft())))
        self.tell(process, events)

    def land(self, process: Process) -> None:
        self.tell(process, [StepDone(process.engine.run(process.landing.popleft()))])

    def publish(self, process: Process) -> None:
        wanted = process.publishing.popleft()
        for block, version in zip(wanted.blocks, wanted.versions, strict=True):
            process.headers[block] = version, list(process.engine.kv[block])
        self.tell(process, [BlocksExported(wanted.export_id)])

    def end_move(self, process: Process, move_id: int) -> None:
        """KV is read and written now: as late as may be."""
        order = process.moves.pop(move_id)
        importing = process.node.work.machine.sequences.importing
        residency = importing[order.request_id].residency
        assert set(order.target_blocks) <= set(residency.blocks), (
            "nobody writes into blocks given back"
        )
        keys = self._read(process, order)
        arrived = keys is not None and self.chance.randrange(6) > 0
        self.seen["transfers" if arrived else "transfers failed"] += 1
        for offset in range(order.end_token - order.first_token):
            token = order.first_token + offset
            index = token // process.block_size - order.first_token // process.block_size
            block = process.engine.kv[order.target_blocks[index]]
            if arrived:
                block[token % process.block_size] = keys[offset]
            elif self.chance.randrange(2):
                block[token % process.block_size] = NONSENSE
        report = MoveReport(arrived, "loop", 1, 1, 0.001, "" if arrived else "lost")
        self.tell(process, [MoveFinished(move_id, report)])

    def _read(self, process: Process, order: MoveKv) -> list[bytes] | None:
        """What lies at the source, if it is what was announced. The memory of the dead stays."""
        if (order.source, order.incarnation) not in process.peers:
            return None
        source = next(
            each
            for each in self.processes
            if (each.name, each.incarnation) == (order.source, order.incarnation)
        )
        for block, version in zip(order.source_blocks, order.source_versions, strict=True):
            if source.headers.get(block) != (version, source.engine.kv[block]):
                self.seen["stale reads"] += 1
                return None
        size = source.block_size
        first_block = order.first_token // size
        return [
            source.engine.kv[order.source_blocks[token // size - first_block]][token % size]
            for token in range(order.first_token, order.end_token)
        ]

    def tick(self) -> None:
        """Time passes until somebody was to be woken."""
        machines = [(one, one.machine.next_wakeup()) for one in self.gates.values() if not one.hung]
        machines += [(one, one.node.next_wakeup()) for one in self.living() if not one.hung]
        due_ns = [wakeup_ns for _, wakeup_ns in machines if wakeup_ns is not None]
        if not due_ns:
            return
        self.now_ns = max(self.now_ns, min(due_ns))
        for one, wakeup_ns in machines:
            if wakeup_ns is not None and wakeup_ns <= self.now_ns:
                if isinstance(one, Gate):
                    self.hear(one, [TimePassed()])
                else:
                    self.tell(one, [TimePassed()])

    # What may happen besides

    def mischief(self) -> list[tuple]:
        chance, living = self.chance, self.living()
        names = {process.name for process in living}
        choices: list[tuple] = []
        for name in self.configs:
            if name not in names and name != "spare":
                choices += [(self.start_worker, name, self.role())] * 4
        for process in living:
            if process.hung:
                choices += [(self.wake, process)] * 2
                choices += [(self.start_worker, process.name, self.role())] * chance.randrange(2)
                continue
            choices += [(self.hang, process)] * (chance.randrange(3) == 0)
            choices += [(self.crash_worker, process)] * (chance.randrange(3) == 0)
            choices += [(self.tell, process, [LeaveRequested()])] * (chance.randrange(6) == 0)
        for gate in self.gates.values():
            if gate.hung:
                choices += [(self.wake, gate)] * 3
                continue
            choices += [(self.hang, gate)] * (chance.randrange(4) == 0)
            choices += [(self.operate, gate)] * 3
            choices += [(self.restart_gateway, gate.name)] * (chance.randrange(4) == 0)
            for request_id, client in gate.clients.items():
                if not client.endings and chance.randrange(4) == 0:
                    choices.append((self.withdraw, gate, request_id))
        return choices

    def role(self) -> Role:
        return self.chance.choice(self.roles)

    def hang(self, one: Process | Gate) -> None:
        one.hung = True
        self.seen["hung"] += 1

    def wake(self, one: Process | Gate) -> None:
        """It goes on where it was, at another time."""
        one.hung = False
        self.seen["returned"] += 1

    def operate(self, gate: Gate) -> None:
        """An operator wants something."""
        self.operations += 1
        gate.open.add(self.operations)
        worker = self.chance.choice([*self.configs, "nobody"])
        event = self.chance.choice(
            [
                DrainAsked(self.operations, worker),
                DrainAsked(self.operations, worker, then_role=self.chance.choice(list(Role))),
                DrainAsked(self.operations, worker, then_role=self.chance.choice(list(Role))),
                DrainAsked(self.operations, worker, leave=True),
                UndrainAsked(self.operations, worker),
                AuditAsked(self.operations),
            ]
        )
        self.hear(gate, [event])

    def migrate(self, gate: Gate) -> None:
        """Somebody has found that requests should go on elsewhere."""
        decoding = (p for p in gate.machine.router.requests.values() if p.stage is Stage.DECODING)
        sources = sorted({state.decode for state in decoding})
        if sources and not gate.hung:
            source, target = self.chance.choice(sources), self.chance.choice(sorted(self.configs))
            wanted = MigrationsRequested(source, target, self.chance.randint(10, 120))
            gate.machine.routing.gather(wanted)
            self.hear(gate, [TimePassed()])
            # Answers here are short: most would end before they have moved.
            for _ in range(self.chance.choice([0, 40])):
                if choices := [each for each in self.routine() if each[0] != self.land]:
                    action, *arguments = self.chance.choice(choices)
                    action(*arguments)

    def submit(self, gate: Gate, request: Request) -> None:
        gate.clients[request.request_id] = Client(request)
        service_class = self.chance.choice(["", "gold", "batch"])
        self.hear(gate, [RequestSubmitted(request, 4.0, request.cache_salt, service_class)])

    def withdraw(self, gate: Gate, request_id: str) -> None:
        gate.clients[request_id].endings.append("withdrawn")
        self.hear(gate, [RequestWithdrawn(request_id)])

    def turn(self) -> None:
        """One thing that may happen now, happens."""
        dice = self.chance.randrange(100)
        if dice < 8:
            self.tick()
            return
        if dice > 95:
            self.migrate(self.gates[self.chance.choice(sorted(self.gates))])
            return
        choices = self.mischief() if dice < 12 else self.routine()
        if choices:
            action, *arguments = self.chance.choice(choices)
            action(*arguments)

    # The end

    def settle(self) -> None:
        """No more mischief: everybody gets to the end, and nothing stays behind."""
        for process in self.living():
            process.hung = False
        for gate in self.gates.values():
            gate.hung = False
        self.gather()
        self.start_worker("spare", Role.BOTH)
        for turn in range(2_000):
            if self.quiet():
                break
            if turn % 10 == 0:
                self.undrain()
            self.rest()
        assert self.quiet(), "nobody moves"

    def undrain(self) -> None:
        """Whoever only drains takes requests again."""
        for gate in self.gates.values():
            for member in gate.machine.members:
                if not member.accepting:
                    self.operations += 1
                    gate.open.add(self.operations)
                    self.hear(gate, [UndrainAsked(self.operations, member.name)])

    def gather(self) -> None:
        """Until all who live know each other."""
        for _ in range(200):
            if self.known():
                return
            self.rest()
        assert self.known(), "somebody stays a stranger"

    def rest(self) -> None:
        """All that is under way comes to its end, then time passes."""
        for _ in range(10_000):
            choices = self.routine()
            if not choices:
                break
            action, *arguments = self.chance.choice(choices)
            action(*arguments)
        self.tick()

    def quiet(self) -> bool:
        """Whether every request has ended, every operation too, and nobody holds anything or is
        about to leave."""
        if not self.known():
            return False
        for gate in self.gates.values():
            if gate.machine.router.requests or gate.open:
                return False
        return all(
            process.node.work.idle and process.node.role_state.accepting
            for process in self.living()
        )

    def known(self) -> bool:
        """Whether every gateway knows exactly those who live."""
        peers = {process.peer for process in self.living()}
        return all(
            {member.peer for member in gate.machine.members} == peers
            for gate in self.gates.values()
        )

    def audit_all(self) -> list[Audited]:
        """What every worker says that it holds, as an operator hears it."""
        answers: list[Audited] = []
        for gate in self.gates.values():
            self.operations += 1
            gate.open.add(self.operations)
            self.hear(gate, [AuditAsked(self.operations)])
            for _ in range(30):
                if not gate.open:
                    break
                self.rest()
            ended = gate.answers[self.operations]
            assert not ended.problem, ended
            workers = {one.name for one in self.living()}
            mine = [each for each in ended.workers if each.worker in workers]
            assert len(mine) == len(workers)
            answers += mine
        return answers
