"""What makes the figures of a run of `tandem bench` doubtful, in a line each."""

from collections.abc import Sequence

from tandem.report.measured import SweepPoint

# Above this, a workload that shares nothing was surely asked before.
_SURPRISING_CACHED_SHARE = 0.05
_WORRYING_LATE_S = 0.05


def cache_note(runs: Sequence[SweepPoint], why: str) -> list[str]:
    """For runs that should find nothing in the server's prefix cache."""
    cached = max((run.summary.cached_share or 0.0) for run in runs)
    if cached <= _SURPRISING_CACHED_SHARE:
        return []
    return [f"{cached:.0%} of the prompt tokens came from the prefix cache {why}"]


def late_note(runs: Sequence[SweepPoint]) -> list[str]:
    """A bound on concurrency holds requests back on purpose; without one, only a slow client
    does."""
    unbound_s = [run.summary.late_p99_s for run in runs if run.load.concurrency is None]
    late_s = max(unbound_s, default=0.0)
    if late_s <= _WORRYING_LATE_S:
        return []
    return [f"this client ran up to {late_s * 1e3:.0f} ms (p99) behind its plan."]
