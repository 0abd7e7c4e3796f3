"""Membership: the workers and the processes of the shared pool that a gateway has registered, and
why it refuses others."""

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import structs

from tandem.facts.adapter import AdapterFigures
from tandem.facts.blocks import NO_SALT, CacheRoot
from tandem.facts.correction import Correction
from tandem.facts.fleet import Role
from tandem.facts.kv import BlockFormat, KvGeometry, MoveReport, TierFigures
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.cluster import (
    PROTOCOL,
    PeerJoined,
    PoolNodeJoined,
    Register,
    RegisterPoolNode,
    RoleStateReported,
)
from tandem.messages.gateway import PoolNodeStatus, WorkerCounters, WorkerStatus
from tandem.messages.router import LoadReported, RoleTaken, WorkerDrained

# An unknown process is asked to register once in so long.
ASK_AGAIN_NS = 1_000_000_000
KEPT_LOSSES = 100
KEPT_UNKNOWN = 10_000


class RegisteredProcess(Protocol):
    """A process that a gateway has registered, known to the transport as `peer`."""

    peer: str

    @property
    def name(self) -> str: ...

    @property
    def registration(self) -> Register | RegisterPoolNode: ...


P = TypeVar("P", bound=RegisteredProcess)


class Registry(Generic[P]):
    """Registered processes of one kind, by peer and by name; a name belongs to the newest start."""

    def __init__(self) -> None:
        self._by_peer: dict[str, P] = {}
        self._by_name: dict[str, P] = {}
        self._in_order: list[P] = []
        # Starts whose name a newer start has taken.
        self._replaced: deque[tuple[str, str]] = deque(maxlen=KEPT_LOSSES)

    def __iter__(self) -> Iterator[P]:
        """By name."""
        return iter(self._in_order)

    def of_peer(self, peer: str) -> P | None:
        return self._by_peer.get(peer)

    def of_name(self, name: str) -> P | None:
        return self._by_name.get(name)

    def others(self, process: P) -> list[P]:
        return [each for each in self if each is not process]

    def add(self, process: P) -> None:
        assert process.name not in self._by_name
        assert process.peer not in self._by_peer
        self._by_name[process.name] = self._by_peer[process.peer] = process
        # A new list: whoever goes through the processes may add and remove some.
        self._in_order = self._in_order.copy()
        insort(self._in_order, process, key=lambda each: each.name)

    def remove(self, process: P) -> None:
        del self._by_name[process.name]
        del self._by_peer[process.peer]
        self._in_order = self.others(process)

    def outdated(self, process: P) -> None:
        """A newer start has taken its name: this one will not be registered again."""
        self._replaced.append((process.name, process.registration.incarnation))

    def _objection(self, register: Register | RegisterPoolNode) -> str:
        """Why a process of any kind is refused; empty when it is not."""
        if register.protocol != PROTOCOL:
            return (
                f"{register.worker} (version {register.version}) speaks protocol "
                f"{register.protocol}, this gateway {PROTOCOL}; run the same version everywhere"
            )
        if (register.worker, register.incarnation) in self._replaced:
            return f"another process has taken the name {register.worker}"
        return ""


class Counters(WorkerCounters):
    """What a worker has done, as its moves and fetches end; `bytes_from` each other worker it has
    read."""

    bytes_from: dict[str, int] = msgspec.field(default_factory=dict)

    def read(self, source: str, report: MoveReport) -> None:
        """A move from this worker that it carried out."""
        self.transfers += 1
        self.failed_transfers += not report.arrived
        self.moved_bytes += report.moved_bytes
        self.bytes_from[source] = self.bytes_from.get(source, 0) + report.moved_bytes
        self.spans += report.spans
        self.seconds += report.seconds
        if report.connector and report.connector not in self.connectors:
            self.connectors += (report.connector,)

    def fetched(self, report: MoveReport, tokens: int) -> None:
        """A fetch from a slower tier, of which so many tokens came."""
        self.fetches += 1
        self.failed_fetches += not report.arrived
        self.fetched_tokens += tokens
        self.fetched_bytes += report.moved_bytes
        self.fetch_seconds += report.seconds


@dataclass(slots=True)
class Member:
    """One worker. `reported`: `load` is newer than the last look at it; `let_go`: since it began to
    drain, it was sent `NotNeeded`; `tiers` are the figures of its slower tiers, `steps` and
    `drafts` the totals of its steps, `adapters` those that it has, as last reported. A `spare`
    takes no requests because the planner has it stand by. It serves another `model` than the
    cluster's, or (empty) that."""

    peer: str
    registration: Register
    role: Role
    accepting: bool
    load: LoadReported
    model: str = ""
    spare: bool = False
    reported: bool = False
    let_go: bool = False
    migrations: int = 0
    counters: Counters = field(default_factory=Counters)
    tiers: tuple[TierFigures, ...] = ()
    steps: tuple[StepTotals, ...] = ()
    drafts: DraftTotals | None = None
    adapters: AdapterFigures | None = None
    # The peers that it was introduced to: each before it reads from it for the first time. With
    # everybody introduced at the start, a fleet would get as many messages as it has pairs.
    introduced: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, peer: str, register: Register, model: str = "") -> "Member":
        load = LoadReported(register.worker, 0, 0, 0, 0, register.export.block_count)
        role, accepting, spare = register.role, register.accepting, register.spare
        return cls(peer, register, role, accepting, load, model, spare)

    @property
    def name(self) -> str:
        return self.registration.worker

    @property
    def block_size(self) -> int:
        return self.registration.export.geometry.block_size

    def indexed(self, roots: Mapping[str, CacheRoot], block_size: int) -> bool:
        """Whether its blocks are hashed under the one of these roots that is of its model, so that
        the router can find them."""
        mine, root = self.registration.root, roots.get(self.model)
        return (mine is root or mine == root) and self.block_size == block_size

    def reads(self, source: "Member") -> bool:
        """Whether KV of that worker is as its own: computed with the same weights, in the same
        way."""
        mine = self.registration.export.identity
        return bool(mine) and mine == source.registration.export.identity

    def introduction(self, source: "Member") -> PeerJoined | None:
        """What must be sent to it before it reads KV from that worker; None when it was."""
        if source.peer in self.introduced:
            return None
        self.introduced.add(source.peer)
        register = source.registration
        return PeerJoined(register.worker, register.incarnation, register.export)

    def forget(self, source: "Member") -> bool:
        """That worker is gone, or may be unknown to this one. Whether it was introduced."""
        if source.peer not in self.introduced:
            return False
        self.introduced.remove(source.peer)
        return True


class Members(Registry[Member]):
    """The workers: of the `model` at this `revision`, those of some pools of another one
    (`pool_models`). `lost` are the workers and pool processes that died, as (name, why), latest
    last; `draining` the workers that take no new requests, by name."""

    def __init__(
        self, model: str, revision: str, pool_models: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.revision = revision
        self.pool_models = pool_models or {}
        self.lost: deque[tuple[str, str]] = deque(maxlen=KEPT_LOSSES)
        self.draining: dict[str, Member] = {}
        # How many members have each: the members of most clusters are alike.
        self._roots: Counter[CacheRoot] = Counter()
        self._geometries: Counter[KvGeometry] = Counter()
        self._asked_ns: dict[str, int] = {}

    def add(self, process: Member) -> None:
        super().add(process)
        self._roots[process.registration.root] += 1
        self._geometries[process.registration.export.geometry] += 1
        if not process.accepting:
            self.draining[process.name] = process
        self._asked_ns.pop(process.peer, None)

    def remove(self, process: Member) -> None:
        super().remove(process)
        self._roots -= Counter((process.registration.root,))
        self._geometries -= Counter((process.registration.export.geometry,))
        self.draining.pop(process.name, None)

    @property
    def identity(self) -> str | None:
        """Of weights, arithmetic and KV format that all of them have; None where they differ, or
        nobody is there."""
        roots = list(self._roots)
        return roots[0].hash(NO_SALT).hex() if len(roots) == 1 else None

    def common_roots(
        self, block_size: int, now: Mapping[str, CacheRoot]
    ) -> Mapping[str, CacheRoot]:
        """Of each model, under which most of those that compute prompts name their blocks of that
        size; of equally many, that of `now`. Where nobody does, that as well."""
        if self._roots.keys() <= {now[""]}:
            return now
        roots = dict(now)
        for model in dict.fromkeys(("", *self.pool_models.values())):
            found = self._common_root(block_size, now.get(model), model)
            if found is not None:
                roots[model] = found
        return roots

    def _common_root(self, block_size: int, now: CacheRoot | None, model: str) -> CacheRoot | None:
        alike = [each for each in self if each.block_size == block_size and each.model == model]
        roots = Counter(
            each.registration.root
            for each in [each for each in alike if each.role.prefills] or alike
        )
        most = max(roots.values(), default=0)
        if not most or (now is not None and roots[now] == most):
            return now
        return next(root for root, count in roots.items() if count == most)

    def role_state_changed(
        self, member: Member, reported: RoleStateReported
    ) -> RoleTaken | WorkerDrained:
        """A member reported its role and whether it takes requests. Gives what that means for a
        router."""
        member.accepting, member.spare = reported.accepting, reported.spare
        if reported.accepting:
            self.draining.pop(member.name, None)
            member.role = reported.role
            return RoleTaken(member.name, reported.role)
        self.draining[member.name] = member
        member.reported = member.let_go = False
        member.migrations = 0
        return WorkerDrained(member.name)

    def asked_to_register(self, peer: str, now_ns: int) -> bool:
        """Whether to ask this unknown process to register: not for each of its messages."""
        asked_ns = self._asked_ns.get(peer)
        if asked_ns is not None and now_ns - asked_ns < ASK_AGAIN_NS:
            return False
        self._asked_ns[peer] = now_ns
        if len(self._asked_ns) > KEPT_UNKNOWN:
            del self._asked_ns[next(iter(self._asked_ns))]
        return True

    def objection(self, register: Register) -> str:
        """Why this worker is refused; empty when it is not."""
        export = register.export
        if problem := self._objection(register):
            return problem
        own = self.pool_models.get(register.pool, "")
        if own and _folder_name(own) != _folder_name(export.model):
            return f"{register.worker} serves {export.model}, its pool {own}"
        if not own and (export.model, export.revision) != (self.model, self.revision):
            return (
                f"{register.worker} serves {_named(export.model, export.revision)}, this cluster "
                f"{_named(self.model, self.revision)}"
            )
        if export.geometry.block_size < 1:
            return f"{register.worker} has blocks of {export.geometry.block_size} tokens"
        misfits = {theirs: _misfit(export.geometry, theirs) for theirs in self._geometries}
        if any(misfits.values()):
            for member in self:
                problem = misfits[member.registration.export.geometry]
                if problem and member.name != register.worker and member.model == own:
                    return f"KV of {register.worker} does not fit that of {member.name}: {problem}"
        return ""


def _folder_name(model: str) -> str:
    """Wherever it lies on a machine."""
    return model.rpartition("/")[2]


def _named(model: str, revision: str) -> str:
    return f"{model} at {revision}" if revision else model


def _misfit(mine: KvGeometry, theirs: KvGeometry) -> str:
    for what, one, other in (
        ("layers", mine.layers, theirs.layers),
        ("KV heads", mine.kv_heads, theirs.kv_heads),
        ("values a head", mine.head_dim, theirs.head_dim),
    ):
        if one != other:
            return f"{one} {what} against {other}"
    small, large = sorted((mine.block_size, theirs.block_size))
    if large % small:
        return (
            f"blocks of {mine.block_size} tokens against {theirs.block_size}, and neither divides"
        )
    return ""


@dataclass(slots=True)
class PoolNode:
    """One process of the shared pool. `tiers` are its figures as last reported."""

    peer: str
    registration: RegisterPoolNode
    tiers: tuple[TierFigures, ...] = ()

    @property
    def name(self) -> str:
        return self.registration.worker

    @property
    def joined(self) -> PoolNodeJoined:
        """What workers and the other processes of the pool receive about it."""
        register = self.registration
        return PoolNodeJoined(register.worker, register.incarnation, register.address)


class PoolNodes(Registry[PoolNode]):
    """The processes of the shared pool. Only those that keep blocks of `block_format` are let in;
    None lets nobody in."""

    def __init__(self, block_format: BlockFormat | None) -> None:
        super().__init__()
        self.block_format = block_format

    def objection(self, register: RegisterPoolNode) -> str:
        """Why this process is refused; empty when it is not."""
        if problem := self._objection(register):
            return problem
        if self.block_format is None:
            return f"{register.worker} keeps KV for all, and this cluster has no remote tier"
        if register.format.block_bytes != self.block_format.block_bytes:
            return (
                f"{register.worker} keeps blocks of {register.format.block_bytes} bytes, this "
                f"cluster has blocks of {self.block_format.block_bytes}"
            )
        if register.format != self.block_format:
            return f"{register.worker} keeps KV of another model or layout than this cluster's"
        return ""


def worker_status(member: Member, last_seen_s: float, correction: Correction) -> WorkerStatus:
    """One worker, whose last message came `last_seen_s` ago."""
    register = member.registration
    counted = structs.asdict(member.counters)
    read_from = tuple(counted.pop("bytes_from").items())
    return WorkerStatus(
        worker=member.name,
        pool=register.pool,
        incarnation=register.incarnation,
        role=member.role,
        accepting=member.accepting,
        spare=member.spare,
        last_seen_s=last_seen_s,
        load=member.load,
        total_blocks=register.export.block_count,
        export=register.export,
        tiers=member.tiers,
        steps=member.steps,
        drafts=member.drafts,
        adapters=member.adapters,
        correction=correction,
        read_from=read_from,
        **counted,
    )


def pool_node_status(node: PoolNode, last_seen_s: float) -> PoolNodeStatus:
    """One process of the shared pool, whose last message came `last_seen_s` ago."""
    register = node.registration
    return PoolNodeStatus(
        node=node.name,
        incarnation=register.incarnation,
        address=register.address,
        last_seen_s=last_seen_s,
        capacity_blocks=register.capacity_blocks,
        block_bytes=register.format.block_bytes,
        tiers=node.tiers,
    )
