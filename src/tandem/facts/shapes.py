"""Shapes of a fleet (how many workers of which pool have which role), the recorded demand that they
are tried with, and how well each would have served it."""

from dataclasses import dataclass

from tandem.facts.fleet import Role


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """`count` workers of one pool with one role, each with so many KV blocks."""

    pool: str
    role: Role
    count: int
    kv_blocks: int


@dataclass(frozen=True, slots=True)
class FleetShape:
    """All workers that take requests, by pool and role."""

    groups: tuple[WorkerGroup, ...]

    def workers(self, role: Role) -> int:
        """How many have this role."""
        return sum(group.count for group in self.groups if group.role is role)

    def __str__(self) -> str:
        counts = [f"{count} {role}" for role in Role if (count := self.workers(role))]
        return " + ".join(counts) or "nobody"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as a gateway saw it: its answer as long as it became, or is expected to become.
    `digests` are the hashes of the full blocks of its prompt, one after the other (empty: never
    known). `kept` says whether the client got what its SLO says; None: not known."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    digests: bytes = b""
    tenant: str = ""
    service_class: str = ""
    kept: bool | None = None


@dataclass(frozen=True, slots=True)
class ShapeFigures:
    """How one shape would have served a demand: the share of `requests` that kept their SLO,
    goodput, percentiles in seconds (0 where nothing was measured), and the devices that it has."""

    requests: int
    kept: float
    goodput_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    devices: int
