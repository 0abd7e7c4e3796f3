"""A router over several real workers, by a driver that chance leads: messages wait in channels,
workers die and come back, drain, flip, hang back; KV is copied as late as it may be."""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cluster.router.request_state import Stage
from tandem.cluster.worker.machine import WorkerConfig, load_of
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Role, Tier
from tandem.facts.request import Request
from tandem.messages.router import (
    AskForBlocks,
    BlocksListed,
    BlocksReported,
    CancelTransfer,
    Explain,
    ImportReported,
    KvReported,
    MigrationsRequested,
    Reject,
    RequestRefused,
    RequestSubmitted,
    RequestWithdrawn,
    RoleTaken,
    RouterEvent,
    SendEvent,
    StartTransfer,
    TokensReported,
    TransferEnded,
    WorkerDrained,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import (
    CancelImport,
    CopiesRequested,
    EmitTokens,
    FailRequest,
    ImportBlocks,
    ImportDone,
    KvComputed,
    KvTransfersRequested,
    PrefillsArrived,
    Refuse,
    ReportBlocks,
    RequestsArrived,
    WorkerEvent,
)
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import ROUTINGS
from tests.cluster.ledger_engine import keys_of
from tests.cluster.world import World

COST = WorkerCost(
    FittedStepTime(fixed_s=0.01, token_s=1e-3),
    kv_bytes_per_token=1.0,
    chunk_tokens=16,
    tiers={Tier.HOST: LinkCost(1e4), Tier.REMOTE: LinkCost(1e4)},
    network=LinkCost(1e4),
)
CLASSES = Classes((ServiceClass("gold", reserved=0.7), ServiceClass("batch", priority=1)))
ROLES = (
    (Role.PREFILL, Role.DECODE),
    (Role.BOTH,),
    (Role.PREFILL, Role.DECODE, Role.BOTH),
)


def is_copy(wire_id: str) -> bool:
    """Whether somebody knows a request by this name who took it over from a living worker."""
    return "." in wire_id.partition("~")[2]


@dataclass(slots=True)
class Seat:
    """A living worker. What is told to it waits in `inbox`, what it says in `outbox`."""

    world: World
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    draining: bool = False


@dataclass(slots=True)
class Client:
    """Who asked, and what came back."""

    request: Request
    output: list[int] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)


class Cluster:
    """`configs` are the workers that may live, by name. `seen` counts what has happened."""

    def __init__(self, configs: dict[str, WorkerConfig], chance: Random) -> None:
        self.configs = configs
        self.chance = chance
        self.roles = chance.choice(ROLES)
        self.block_size = next(iter(configs.values())).block_size
        self.router = RouterMachine(self._router_config())
        self.seats: dict[str, Seat] = {}
        self.clients: dict[str, Client] = {}
        # Deaths that the router has not heard of yet: nobody of that name comes up before.
        self.mourned: list[str] = []
        # What the dead had said and is still on its way.
        self.late: dict[str, deque] = {}
        self.transfers: dict[int, tuple[StartTransfer, World | None, World | None]] = {}
        self.cancelled: set[tuple[str, str]] = set()
        self.remote_reports = 0
        self.seen: Counter[str] = Counter()
        self.now_ns = 0

    def _router_config(self) -> RouterConfig:
        chance, transfer = self.chance, self.chance.choice(list(Transfer))
        dispatch = chance.choice(["local", "remote", "remote", "queue", "seconds", "conditional"])
        bounds = {"local_tokens": 8} if dispatch == "conditional" else {}
        capacities = {
            name: Capacity(COST, config.block_size, config.block_count, config.max_sequences)
            for name, config in self.configs.items()
        }
        return RouterConfig(
            block_size=self.block_size,
            root=next(iter(self.configs.values())).root,
            capacities=capacities,
            routing=ROUTINGS[chance.choice(sorted(ROUTINGS))](chance.randrange(100)),
            admission=ADMISSIONS["none"](),
            dispatching=DISPATCHES[dispatch](transfer=transfer, **bounds),
            queue=RequestQueueConfig(
                max_requests=chance.choice([0, 0, 3]), prefill_depth=chance.choice([0, 0, 1, 2])
            ),
            classes=CLASSES,
            explains=chance.choice([False, True]),
        )

    # What the router hears and asks for

    def hear(self, event: RouterEvent) -> None:
        """The router handles an event, and what it asks for is under way."""
        self.now_ns += 1
        if isinstance(event, TokensReported):
            self._to_clients(event)
        for effect in self.router.handle(event, self.now_ns):
            match effect:
                case SendEvent(name, told):
                    if name in self.seats:
                        self.seats[name].inbox.append(told)
                        self._count(told)
                case StartTransfer():
                    ends = self._world_of(effect.source), self._world_of(effect.target)
                    self.transfers[effect.transfer_id] = effect, *ends
                case CancelTransfer(transfer_id):
                    # One that has ended meanwhile is no more to be cancelled.
                    self.transfers.pop(transfer_id, None)
                case Reject(request_id, reason):
                    assert not self.clients[request_id].output, reason
                    self.clients[request_id].endings.append("rejected")
                case FailRequest(request_id):
                    self.clients[request_id].endings.append("failed")
                case AskForBlocks(name, tier):
                    assert tier is Tier.DEVICE
                    if name in self.seats:
                        self.seats[name].inbox.append(effect)
                case Explain():
                    self.seen["explained"] += 1
        self.router.audit()
        for request_id, state in self.router.requests.items():
            assert list(state.output) == self.clients[request_id].output

    def _count(self, told: WorkerEvent) -> None:
        match told:
            case CopiesRequested():
                self.seen["copies"] += 1
            case ImportDone(wire_id, tokens, said) if said and is_copy(wire_id):
                self.seen["migrated" if tokens else "migrated without KV"] += 1
            case KvTransfersRequested():
                self.seen["migrations"] += 1
            case ImportDone(_, tokens, output_tokens) if output_tokens:
                self.seen["hand-overs" if tokens else "hand-overs without KV"] += 1
            case RequestsArrived(requests) | PrefillsArrived(requests):
                self.seen["taken up again"] += any("~" in one.request_id for one in requests)

    def _to_clients(self, event: TokensReported) -> None:
        emission = event.emission
        for wire_id, token, reason in zip(
            emission.request_ids, emission.tokens, emission.finish_reasons, strict=True
        ):
            if state := self.router.state_of(wire_id):
                client = self.clients[state.request_id]
                assert not client.endings
                client.output.append(token)
                if reason:
                    client.endings.append("finished")

    def _world_of(self, name: str) -> World | None:
        return self.seats[name].world if name in self.seats else None

    # What workers hear and say

    def deliver(self, name: str) -> None:
        """The worker hears the next thing that was told to it."""
        seat = self.seats[name]
        told = seat.inbox.popleft()
        match told:
            case AskForBlocks():
                listing = seat.world.machine.sequences.pool.listing()
                seat.outbox.append(BlocksListed(name, Tier.DEVICE, *listing))
                return
            case ImportDone(wire_id):
                if wire_id not in seat.world.imports:
                    assert (name, wire_id) in self.cancelled, "blocks are given back once"
                    return
                del seat.world.imports[wire_id]
                seat.world.cancelled.discard(wire_id)
        seat.world.tell(told)
        self._listen(name)

    def land(self, name: str) -> None:
        self.seats[name].world.land()
        self._listen(name)

    def _listen(self, name: str) -> None:
        seat = self.seats[name]
        for effect in seat.world.effects:
            match effect:
                case EmitTokens():
                    seat.outbox.append(TokensReported(name, effect))
                case KvComputed():
                    seat.outbox.append(KvReported(name, effect))
                case ImportBlocks():
                    seat.outbox.append(ImportReported(name, effect))
                case CancelImport(wire_id):
                    self._cancel_import(name, wire_id)
                case Refuse(wire_id, error):
                    seat.outbox.append(RequestRefused(name, wire_id, str(error)))
                case ReportBlocks(changes):
                    self._report_blocks(name, changes)

    def _cancel_import(self, name: str, wire_id: str) -> None:
        """As a node does: its transfers are stopped, then the worker gets its blocks back."""
        seat = self.seats[name]
        self.cancelled.add((name, wire_id))
        for transfer_id, (order, _, target) in list(self.transfers.items()):
            if target is seat.world and order.request_id == wire_id:
                del self.transfers[transfer_id]
                seat.outbox.append(TransferEnded(transfer_id, arrived=False))
        seat.inbox.append(ImportDone(wire_id, 0))

    def _report_blocks(self, name: str, changes: BlockChanges) -> None:
        outbox = self.seats[name].outbox
        if self.chance.randrange(10):
            outbox.append(BlocksReported(name, Tier.DEVICE, changes))
        else:
            self.seen["reports lost"] += 1
        # Sometimes a slower tier has a copy too.
        kept = replace(changes, removed=())
        if changes.stored and not self.chance.randrange(3):
            kept = replace(kept, sequence_number=self.remote_reports)
            self.remote_reports += 1
            self.hear(BlocksReported("", Tier.REMOTE, kept))

    def report_load(self, name: str) -> None:
        self.seats[name].outbox.append(load_of(name, self.seats[name].world.machine))

    def end_transfer(self, transfer_id: int) -> None:
        """KV is there, or lost. It is read and written now: as late as may be."""
        order, source, target = self.transfers.pop(transfer_id)
        alive = [seat.world for seat in self.seats.values()]
        gone = any(end is not None and end not in alive for end in (source, target))
        missing = target is None or (bool(order.source) and source is None)
        arrived = not gone and not missing and self.chance.randrange(6) > 0
        if target in alive:
            assert order.request_id in target.imports, "nobody writes into blocks given back"
        if arrived:
            self._copy(order, source, target)
            self.seen["transfers"] += 1
        self.hear(TransferEnded(transfer_id, arrived))

    def _copy(self, order: StartTransfer, source: World | None, target: World) -> None:
        if source is None:
            state = self.router.state_of(order.request_id)
            keys = keys_of(tuple(state.tokens()))[: order.end_token]
            self.seen["pulled from a tier"] += 1
        else:
            name = self.router.state_of(order.request_id).name_at(order.source)
            keys = source.engine.read(source.computed[name][1], order.end_token)
        wanted = target.imports[order.request_id]
        for token in range(order.first_token, order.end_token):
            block, place = divmod(token - wanted.first_token, self.block_size)
            if token < len(keys):
                target.engine.kv[wanted.blocks[block]][place] = keys[token]

    # What happens to workers and requests

    def join(self, name: str, role: Role) -> None:
        self.late.pop(name, None)
        self.seats[name] = Seat(World.of(self.configs[name]))
        self.hear(WorkerJoined(name, role))

    def crash(self, name: str) -> None:
        """It dies with all it was to hear; the router learns of it sooner or later."""
        self.late[name] = self.seats.pop(name).outbox
        self.mourned.append(name)
        self.seen["crashes"] += 1

    def bury(self) -> None:
        self.hear(WorkerLost(self.mourned.pop(0)))

    def drain(self, name: str) -> None:
        self.seats[name].draining = True
        self.hear(WorkerDrained(name))

    def drained(self) -> list[str]:
        """Who was drained and is needed no more."""
        needed = {
            name
            for state in self.router.requests.values()
            for name in self.configs
            if state.needs(name)
        }
        return [
            name
            for name, seat in self.seats.items()
            if seat.draining
            and name not in needed
            and name not in self.mourned
            and seat.world.machine.idle
            and not seat.inbox
        ]

    def take_role(self, name: str, role: Role) -> None:
        self.seats[name].draining = False
        self.hear(RoleTaken(name, role))
        self.seen["flips"] += 1

    def migrate(self) -> None:
        decoding = (p for p in self.router.requests.values() if p.stage is Stage.DECODING)
        sources = sorted({state.decode for state in decoding})
        source = self.chance.choice(sources or sorted(self.configs))
        target = self.chance.choice(sorted(self.configs))
        self.seen["migrations wanted"] += 1
        self.hear(MigrationsRequested(source, target, self.chance.randint(10, 120)))

    def submit(self, request: Request) -> None:
        self.clients[request.request_id] = Client(request)
        service_class = self.chance.choice(["", "gold", "batch"])
        self.hear(RequestSubmitted(request, 4.0, request.cache_salt, service_class))

    def withdraw(self, request_id: str) -> None:
        self.clients[request_id].endings.append("withdrawn")
        self.hear(RequestWithdrawn(request_id))

    # Who is led by chance

    def routine(self) -> list[tuple]:
        """What sooner or later happens by itself."""
        choices: list[tuple] = [(self.end_transfer, one) for one in self.transfers]
        for name, seat in self.seats.items():
            choices += [(self.deliver, name)] * (3 * bool(seat.inbox))
            choices += [(self.land, name)] * (3 * bool(seat.world.landing))
            choices += [(self.speak, name)] * (3 * bool(seat.outbox))
        choices += [(self.hear_late, name) for name, said in self.late.items() if said]
        choices += [(self.bury,)] * bool(self.mourned)
        choices += [(self.take_role, name, self.role()) for name in self.drained()]
        return choices

    def speak(self, name: str) -> None:
        """The router hears the next thing that a worker has said."""
        self.hear(self.seats[name].outbox.popleft())

    def hear_late(self, name: str) -> None:
        """The router hears from the dead, whether it knows of the death or not."""
        self.hear(self.late[name].popleft())

    def role(self) -> Role:
        return self.chance.choice(self.roles)

    def mischief(self) -> list[tuple]:
        """What may happen besides."""
        chance = self.chance
        choices: list[tuple] = [(self.migrate,)] * 4
        choices += [(self.report_load, name) for name in self.seats]
        for name, seat in self.seats.items():
            choices += [(self.crash, name)] * (chance.randrange(6) == 0)
            if not seat.draining and chance.randrange(4) == 0:
                choices.append((self.drain, name))
        for name in self.configs:
            if name not in self.seats and name not in self.mourned:
                choices += [(self.join, name, self.role())] * 3
        for request_id, client in self.clients.items():
            if not client.endings and chance.randrange(12) == 0:
                choices.append((self.withdraw, request_id))
        return choices

    def turn(self) -> None:
        """One thing that may happen now, happens."""
        choices = self.routine()
        if not choices or self.chance.randrange(8) == 0:
            choices = self.mischief()
        action, *arguments = self.chance.choice(choices)
        action(*arguments)

    def settle(self) -> None:
        """No more mischief: everybody gets to the end, and nothing stays behind."""
        for _ in range(50_000):
            choices = self.routine()
            if not choices:
                if not self.router.requests:
                    break
                self._unblock()
                continue
            action, *arguments = self.chance.choice(choices)
            action(*arguments)
        assert not self.router.requests
        for seat in self.seats.values():
            seat.world.assert_empty()
        assert not self.transfers

    def _unblock(self) -> None:
        """Nothing moves though somebody waits: who is left may not be able to do both phases."""
        absent = [name for name in self.configs if name not in self.seats]
        if absent:
            self.join(absent[0], Role.BOTH)
            return
        tracked_workers = self.router.admission.fleet.workers
        assert not any(tracked_workers[name].role is Role.BOTH for name in self.seats), (
            "nobody moves"
        )
        name = next(iter(self.seats))
        if not self.seats[name].draining:
            self.drain(name)
        assert name in self.drained(), "nobody moves"
        self.take_role(name, Role.BOTH)
