"""What a gateway's journal recorded: of one file its run, of a folder all gateways of the newest
run's cluster that were there at the same time."""

from dataclasses import dataclass
from pathlib import Path

from tandem.config.cluster.file import Cluster
from tandem.config.journal import recorded_cluster
from tandem.observe.journal.files import JournalRun, open_journal
from tandem.observe.journal.history import History
from tandem.observe.journal.joint_history import history_of, joint_history


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """`history` is of `run` and of the `joined` ones together, of the `cluster` as `run` began."""

    run: JournalRun
    joined: tuple[JournalRun, ...]
    cluster: Cluster
    history: History

    @property
    def names(self) -> list[str]:
        return [self.run.name, *(other.name for other in self.joined)]

    @property
    def left_out(self) -> list[str]:
        """Runs that lie in the same folder."""
        names = self.names
        return [name for name in self.run.others if name not in names]


def read_history(journal: Path, folder: Path) -> RecordedHistory:
    """Files that the cluster names are written to `folder`, and needed for as long as it is used.
    Raises `InvalidConfiguration`."""
    run = open_journal(journal)
    cluster = recorded_cluster(run.head.cluster, run.head.files, folder)
    if journal.is_file():
        return RecordedHistory(run, (), cluster, history_of(run))
    history, joined = joint_history(run, [tenant.name for tenant in cluster.tenants])
    return RecordedHistory(run, joined, cluster, history)
