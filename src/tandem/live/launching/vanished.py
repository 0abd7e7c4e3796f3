"""Which workers hang? Their processes run, but every gateway has given them up.

A gateway closes the channel of a worker that it takes for dead, and cannot end it; whoever started
the process can. Knows no clock: every look counts.
"""

from collections.abc import Mapping, Sequence

from tandem.messages.gateway import ClusterStatus

# A worker that was only slow introduces itself anew within less than a look.
LOOKS = 3


class Vanished:
    """Remembers who was seen, which losses were known then, and how often they were missing since.
    A worker that left on its own wish is missing, too, but no gateway lost it."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        # By gateway and worker: how often it had been lost when it was last seen.
        self._losses: dict[tuple[str, str], int] = {}

    def look(self, pids: Mapping[str, int], told: Sequence[ClusterStatus]) -> list[tuple[str, str]]:
        """Workers to be killed, each with why the gateways gave it up. `pids` are the processes
        that run, `told` what all gateways say at this moment."""
        known = {name for status in told for name in status.members}
        hung = []
        for worker, pid in pids.items():
            if worker in known:
                self._seen[worker] = pid
                self._missing[worker] = 0
                for status in told:
                    self._losses[status.gateway, worker] = len(_reasons(status, worker))
            elif self._seen.get(worker) == pid and (reason := self._lost(worker, told)):
                self._missing[worker] += 1
                if self._missing[worker] == LOOKS:
                    hung.append((worker, reason))
        return hung

    def _lost(self, worker: str, told: Sequence[ClusterStatus]) -> str:
        """Why a gateway has given it up since it was seen; empty if none has."""
        for status in told:
            reasons = _reasons(status, worker)
            before = self._losses.get((status.gateway, worker))
            if before is not None and len(reasons) > before:
                return reasons[-1]
        return ""


def _reasons(status: ClusterStatus, worker: str) -> list[str]:
    return [reason for lost, reason in status.lost if lost == worker]
