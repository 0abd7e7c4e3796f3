"""KV transfers that a gateway has under way between workers, and how many others shared their links
meanwhile."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class LinkUse:
    """One worker's links: how many transfers cross them, and the integral of that over time."""

    transfers: int = 0
    transfer_ns: int = 0
    changed_ns: int = 0

    def change(self, by: int, now_ns: int) -> None:
        self.transfer_ns += self.transfers * (now_ns - self.changed_ns)
        self.transfers += by
        self.changed_ns = now_ns


class TransferUnderWay(NamedTuple):
    """`source_ns` and `target_ns` are what the integrals were when it began."""

    source: str
    target: str
    began_ns: int
    source_ns: int
    target_ns: int


class LinkUses:
    """Owns the transfers between workers that have begun and not ended, by their ids."""

    def __init__(self) -> None:
        self.under_way: dict[int, TransferUnderWay] = {}
        self._uses: dict[str, LinkUse] = {}

    def transfer_began(self, transfer_id: int, source: str, target: str, now_ns: int) -> None:
        """The target was told to read."""
        ends = [self._uses.setdefault(name, LinkUse()) for name in (source, target)]
        for use in ends:
            use.change(1, now_ns)
        self.under_way[transfer_id] = TransferUnderWay(
            source, target, now_ns, ends[0].transfer_ns, ends[1].transfer_ns
        )

    def transfer_over(self, transfer_id: int, now_ns: int) -> float | None:
        """It has ended, or nobody wants it any more. Gives how many transfers, itself included,
        crossed its links on average; None for an unknown one."""
        transfer = self.under_way.pop(transfer_id, None)
        if transfer is None:
            return None
        others = 0.0
        lasted_ns = max(1, now_ns - transfer.began_ns)
        for name, before_ns in (
            (transfer.source, transfer.source_ns),
            (transfer.target, transfer.target_ns),
        ):
            use = self._uses[name]
            use.change(-1, now_ns)
            others += max(0.0, (use.transfer_ns - before_ns) / lasted_ns - 1.0)
            if not use.transfers:
                del self._uses[name]
        return 1.0 + others
