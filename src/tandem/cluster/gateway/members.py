"""Membership: the worker processes that a gateway has registered, by name and by connection, and
why it refuses others.

A worker is known by its name; the transport knows its process as a peer. A name belongs to the
newest start.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role
from tandem.facts.kv_export import KvGeometry, MoveReport
from tandem.facts.kv_tiers import TierFigures
from tandem.messages.cluster import PROTOCOL, PeerJoined, Register, RoleStateReported
from tandem.messages.router import LoadReported, RoleTaken, WorkerDrained

# A stranger is asked for its name once in so long.
ASK_AGAIN_NS = 1_000_000_000
KEPT_LOSSES = 100
KEPT_STRANGERS = 10_000


@dataclass(slots=True)
class WorkerCounters:
    """What a worker has done since it joined."""

    prompts: int = 0
    output_tokens: int = 0
    transfers: int = 0
    failed_transfers: int = 0
    moved_bytes: int = 0
    sent_bytes: int = 0
    spans: int = 0
    seconds: float = 0.0
    connectors: dict[str, None] = field(default_factory=dict)
    fetches: int = 0
    failed_fetches: int = 0
    fetched_tokens: int = 0
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0

    def read(self, report: MoveReport) -> None:
        """A move that it carried out."""
        self.transfers += 1
        self.failed_transfers += not report.arrived
        self.moved_bytes += report.moved_bytes
        self.spans += report.spans
        self.seconds += report.seconds
        if report.connector:
            self.connectors[report.connector] = None

    def fetched(self, report: MoveReport, tokens: int) -> None:
        """A fetch from a slower tier, of which so many tokens came."""
        self.fetches += 1
        self.failed_fetches += not report.arrived
        self.fetched_tokens += tokens
        self.fetched_bytes += report.moved_bytes
        self.fetch_seconds += report.seconds


@dataclass(slots=True)
class Member:
    """One worker. `reported` says that `load` is news since it was last looked at; `let_go` that it
    was told, since it began to drain, that nobody here needs it; `tiers` are its slower ones, as it
    told last."""

    peer: str
    registration: Register
    role: Role
    accepting: bool
    load: LoadReported
    reported: bool = False
    let_go: bool = False
    migrations: int = 0
    counters: WorkerCounters = field(default_factory=WorkerCounters)
    tiers: tuple[TierFigures, ...] = ()
    # What the others are told of it, made once: everybody is told of everybody.
    introduction: PeerJoined = field(init=False)

    def __post_init__(self) -> None:
        register = self.registration
        self.introduction = PeerJoined(register.worker, register.incarnation, register.export)

    @classmethod
    def of(cls, peer: str, register: Register) -> "Member":
        load = LoadReported(register.worker, 0, 0, 0, 0, register.export.block_count)
        return cls(peer, register, register.role, register.accepting, load)

    @property
    def name(self) -> str:
        return self.registration.worker

    @property
    def block_size(self) -> int:
        return self.registration.export.geometry.block_size

    def indexed(self, root: CacheRoot, block_size: int) -> bool:
        """Whether its blocks have the names by which this router looks for them."""
        return self.registration.root == root and self.block_size == block_size

    def reads(self, source: "Member") -> bool:
        """Whether KV of that worker is as its own: computed with the same weights, in the same
        way."""
        mine = self.registration.export.identity
        return bool(mine) and mine == source.registration.export.identity

    def stand(self, standing: RoleStateReported) -> RoleTaken | WorkerDrained:
        """It says in which role it takes requests, or that it takes none any more. Gives what that
        means for a router."""
        self.accepting = standing.accepting
        if standing.accepting:
            self.role = standing.role
            return RoleTaken(self.name, standing.role)
        self.reported = self.let_go = False
        self.migrations = 0
        return WorkerDrained(self.name)


class Members:
    """`lost` are those that died, as (name, why), latest last."""

    def __init__(self, model: str, revision: str) -> None:
        self.model = model
        self.revision = revision
        self.lost: deque[tuple[str, str]] = deque(maxlen=KEPT_LOSSES)
        # Those that take no new requests, by name.
        self.draining: dict[str, Member] = {}
        self._by_peer: dict[str, Member] = {}
        self._by_name: dict[str, Member] = {}
        self._in_order: list[Member] = []
        # Starts of workers whose name a newer start has taken.
        self._replaced: deque[tuple[str, str]] = deque(maxlen=KEPT_LOSSES)
        self._asked_ns: dict[str, int] = {}

    def __iter__(self) -> Iterator[Member]:
        """By name."""
        return iter(self._in_order)

    def of_peer(self, peer: str) -> Member | None:
        return self._by_peer.get(peer)

    def of_name(self, worker: str) -> Member | None:
        return self._by_name.get(worker)

    def others(self, member: Member) -> list[Member]:
        return [each for each in self if each is not member]

    def common_root(self, block_size: int, now: CacheRoot) -> CacheRoot:
        """Under which most of those that compute prompts name their blocks of that size; of equally
        many, the root of `now`. Where nobody does, that as well."""
        alike = [each for each in self if each.block_size == block_size]
        roots = Counter(
            each.registration.root
            for each in [each for each in alike if each.role.prefills] or alike
        )
        most = max(roots.values(), default=0)
        if roots[now] == most:
            return now
        return next(root for root, count in roots.items() if count == most)

    def add(self, member: Member) -> None:
        assert member.name not in self._by_name
        assert member.peer not in self._by_peer
        self._by_name[member.name] = self._by_peer[member.peer] = member
        # A new list: whoever goes through the members may add and remove some.
        self._in_order = sorted(self._by_name.values(), key=lambda each: each.name)
        if not member.accepting:
            self.draining[member.name] = member
        self._asked_ns.pop(member.peer, None)

    def remove(self, member: Member) -> None:
        del self._by_name[member.name]
        del self._by_peer[member.peer]
        self._in_order = [each for each in self._in_order if each is not member]
        self.draining.pop(member.name, None)

    def stand(self, member: Member, standing: RoleStateReported) -> RoleTaken | WorkerDrained:
        """It says whether it takes requests, and in which role. Gives what that means for a
        router."""
        if standing.accepting:
            self.draining.pop(member.name, None)
        else:
            self.draining[member.name] = member
        return member.stand(standing)

    def outdated(self, member: Member) -> None:
        """A newer start has taken its name: this one will not be let in again."""
        self._replaced.append((member.name, member.registration.incarnation))

    def to_be_asked(self, peer: str, now_ns: int) -> bool:
        """Whether to ask this stranger who it is: not for every word that it says."""
        asked_ns = self._asked_ns.get(peer)
        if asked_ns is not None and now_ns - asked_ns < ASK_AGAIN_NS:
            return False
        self._asked_ns[peer] = now_ns
        if len(self._asked_ns) > KEPT_STRANGERS:
            del self._asked_ns[next(iter(self._asked_ns))]
        return True

    def objection(self, register: Register) -> str:
        """Why this worker cannot be had; empty when it can."""
        export = register.export
        if register.protocol != PROTOCOL:
            return (
                f"{register.worker} (version {register.version}) speaks protocol "
                f"{register.protocol}, this gateway {PROTOCOL}; run the same version everywhere"
            )
        if (export.model, export.revision) != (self.model, self.revision):
            return (
                f"{register.worker} serves {_named(export.model, export.revision)}, this cluster "
                f"{_named(self.model, self.revision)}"
            )
        if (register.worker, register.incarnation) in self._replaced:
            return f"another process has taken the name {register.worker}"
        if export.geometry.block_size < 1:
            return f"{register.worker} has blocks of {export.geometry.block_size} tokens"
        for member in self:
            theirs = member.registration.export.geometry
            if member.name != register.worker and (problem := _misfit(export.geometry, theirs)):
                return f"KV of {register.worker} does not fit that of {member.name}: {problem}"
        return ""


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
