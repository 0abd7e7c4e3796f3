"""Workers that an operator changed by hand, which the planner leaves alone until they are released.

A gateway hears of an operator's order from the worker, whichever gateway the operator asked: a
drain, flip or leave that the planner did not order is an operator's. A drained worker is held until
it takes requests again, every other one for a fixed time.
"""

from dataclasses import dataclass

from tandem.facts.fleet import Role
from tandem.messages.planning import HeldWorker


@dataclass(frozen=True, slots=True)
class Hold:
    """`role` is the one that the worker had; `until_ns` None: until it takes requests again."""

    why: str
    role: Role
    until_ns: int | None


class OperatorHolds:
    """By the worker's name, whether it lives or not: what was sent away is not started again."""

    def __init__(self, hold_s: float) -> None:
        self._hold_ns = round(hold_s * 1e9)
        self._holds: dict[str, Hold] = {}

    def __contains__(self, worker: str) -> bool:
        return worker in self._holds

    @property
    def workers(self) -> frozenset[str]:
        return frozenset(self._holds)

    def worker_drained(self, worker: str, role: Role) -> None:
        """It takes no new requests, and the planner did not order it."""
        self._holds[worker] = Hold("drained", role, None)

    def worker_back(self, worker: str, role: Role, now_ns: int) -> None:
        """It takes requests again: an operator's drain ends, by an undrain or a flip."""
        hold = self._holds.get(worker)
        if hold is None or hold.until_ns is not None:
            return
        if role is hold.role:
            del self._holds[worker]
        else:
            self.hold(worker, f"flipped to {role}", role, now_ns)

    def hold(self, worker: str, why: str, role: Role, now_ns: int) -> None:
        """Leave it alone from now on for the fixed time."""
        self._holds[worker] = Hold(why, role, now_ns + self._hold_ns)

    def release(self, worker: str) -> bool:
        """The operator gives a worker that takes requests back to the planner; whether it was
        held."""
        return self._holds.pop(worker, None) is not None

    def expire(self, now_ns: int) -> None:
        """Forget holds whose time is over."""
        self._holds = {
            worker: hold
            for worker, hold in self._holds.items()
            if hold.until_ns is None or hold.until_ns > now_ns
        }

    def shown(self, now_ns: int) -> tuple[HeldWorker, ...]:
        """For operators, by name."""
        return tuple(
            HeldWorker(
                worker,
                hold.why,
                None if hold.until_ns is None else max(0, hold.until_ns - now_ns) / 1e9,
            )
            for worker, hold in sorted(self._holds.items())
        )
