"""The load reports of one simulated worker.

Without a report interval loads are always known: a report is made when somebody is about to decide.
With one, a report is as of the last instant at which it was due; those that it supersedes are never
made.
"""

from collections.abc import Callable, Iterable

from tandem.cluster.node.machine import NodeMachine
from tandem.cluster.worker.load import drawn_since, load_of
from tandem.cluster.worker.machine import WorkerMachine
from tandem.messages.node import NodeEffect
from tandem.messages.router import LoadReported
from tandem.twin.engine import SimulatedEngine
from tandem.twin.message_bus import GATEWAY

# The figures of slower tiers are reported so often at most.
TIERS_REPORT_NS = 1_000_000_000


class LoadReports:
    """Reads the worker machine, its `node` and the steps that the `engine` is ahead of them. An
    `interval_ns` of 0: loads are always known. Where the node reports by time (`when_asked` is
    false), nothing is made here."""

    def __init__(
        self,
        node: NodeMachine,
        engine: SimulatedEngine,
        interval_ns: int,
        perform: Callable[[Iterable[NodeEffect]], object],
        *,
        when_asked: bool,
    ) -> None:
        self._node = node
        self._engine = engine
        self._interval_ns = interval_ns if when_asked else 0
        self._perform = perform
        self._when_asked = when_asked
        # The load as the worker machine has it, and as it was reported last.
        self._load: LoadReported | None = None
        self._reported: LoadReported | None = None
        # With an interval: when the next one is due, and the one that was made and not sent.
        self._due_ns: int | None = None
        self._pending: LoadReported | None = None
        self._making = False
        self._tiers_reported_ns = -TIERS_REPORT_NS

    @property
    def worker_load(self) -> LoadReported:
        """As the worker machine has it: without tokens that steps taken at one go have drawn
        since."""
        if self._load is None:
            machine: WorkerMachine = self._node.work.machine
            self._load = load_of(self._node.registration.worker, machine)
        return self._load

    def load(self, now_ns: int) -> LoadReported:
        """What a report of this instant says, but for the events received."""
        load = self.worker_load
        drawn_tokens = self._engine.tokens_ahead(now_ns)
        return drawn_since(load, drawn_tokens) if drawn_tokens else load

    def forget_load(self) -> bool:
        """The worker machine handles something. Whether the load was read since the last time."""
        looked, self._load = self._load is not None, None
        return looked

    @property
    def due_without_change(self) -> bool:
        """Whether a report may become due while the machine stays as it is: at an interval, or by
        steps that are taken at one go."""
        return bool(self._interval_ns) or self._engine.steps_ahead > 0

    def take_due(self, now_ns: int) -> LoadReported | None:
        """The newest report that was due by now, if the gateway does not have it: as of now where
        loads are always known."""
        if not self._when_asked:
            return None
        if self._interval_ns:
            self.make_due(now_ns + 1)
        else:
            load = self.load(now_ns)
            if load is self._reported:
                return None
            self._reported = load
            if now_ns - self._tiers_reported_ns < TIERS_REPORT_NS:
                return self._node.report_to(GATEWAY, load, now_ns)
            self._make(now_ns, load)
        return self._take_pending()

    def take_any(self, now_ns: int) -> LoadReported | None:
        """A report, changed or not, as a heartbeat."""
        if not self._when_asked:
            return None
        self.make_due(now_ns + 1)
        if self._pending is None:
            self._make(now_ns, self.load(now_ns))
        return self._take_pending()

    def make_due(self, before_ns: int) -> None:
        """Make the last report that was due before that instant: what follows changes the load."""
        due_ns = self._due_ns
        if due_ns is None or due_ns >= before_ns:
            return
        due_ns += (before_ns - 1 - due_ns) // self._interval_ns * self._interval_ns
        self._make(due_ns, self.load(due_ns))

    def keep_back(self, report: LoadReported) -> bool:
        """Whether this report, which the node sends, was made here and waits to be taken."""
        if self._making:
            self._pending = report
        return self._making

    def watch(self) -> None:
        """The node has handled something: its next report may be due at another instant."""
        if self._interval_ns:
            self._due_ns = self._node.gateways.report_due_ns()

    def _make(self, instant_ns: int, load: LoadReported) -> None:
        tiers = instant_ns - self._tiers_reported_ns >= TIERS_REPORT_NS
        if tiers:
            self._tiers_reported_ns = instant_ns
        self._making = True
        self._perform(self._node.report(load, instant_ns, tiers=tiers))
        self._making = False
        self.watch()

    def _take_pending(self) -> LoadReported | None:
        report, self._pending = self._pending, None
        return report
