"""One move over all the ranks it reads from: what is still to come, by which ways, and how it went.

Knows neither threads nor memory.
"""

from dataclasses import dataclass, field

from tandem.facts.kv_export import Endpoint, MoveKv, MoveReport
from tandem.kv.runs import Reading, Window


@dataclass(slots=True)
class PartPlan:
    """What is read from one rank: `windows`, of `reading` or of encoded copies. `ways` are those
    not tried yet, the preferred first; `refusals` say why the others would not do."""

    reading: Reading
    windows: list[tuple[Reading, Window]]
    ways: list[Endpoint]
    refusals: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Move:
    """`waiting` are the parts under way, by the name their source rank has for connectors."""

    order: MoveKv
    begun_ns: int
    waiting: dict[str, PartPlan] = field(default_factory=dict)
    problem: str = ""
    used: list[str] = field(default_factory=list)
    moved_bytes: int = 0
    spans: int = 0

    @property
    def source(self) -> tuple[str, str]:
        """Worker and incarnation."""
        return self.order.source, self.order.incarnation

    def report(self, now_ns: int) -> MoveReport:
        return MoveReport(
            arrived=not self.problem,
            connector="+".join(dict.fromkeys(self.used)),
            moved_bytes=self.moved_bytes,
            spans=self.spans,
            seconds=(now_ns - self.begun_ns) / 1e9,
            problem=self.problem,
        )
