"""What a worker must know to join: the cluster, its keys, and where its gateways are. Either the
state directory of `tandem up` says it, or whoever starts the worker does."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tandem.commands.cluster.key_files import read_worker_keys
from tandem.commands.cluster.places import WhichCluster, find_running
from tandem.commands.cluster.setups import CLUSTER_FILE, Setups
from tandem.commands.cluster.single import gateway_endpoints
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import read_live_cluster
from tandem.config.processes import CurveKeys
from tandem.facts.errors import InvalidConfiguration
from tandem.live.launching.state_directory import ProcessRecord, StateDirectory


@dataclass(frozen=True)
class FromOutside:
    """A cluster without a state directory here. All three go together."""

    file: Annotated[Path | None, typer.Option(help="The cluster file that its gateways have.")] = (
        None
    )
    keys: Annotated[Path | None, typer.Option(help="The worker.json of `tandem keys`.")] = None
    gateway: Annotated[
        list[str] | None,
        typer.Option(help="Where a gateway waits for workers, as tcp://host:9000; name them all."),
    ] = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """`directory` takes the worker's set-up. `supervisor` is None for a cluster that has none, or
    none here."""

    cluster: Cluster
    keys: CurveKeys
    endpoints: Sequence[str]
    directory: StateDirectory
    processes: frozenset[str] = frozenset()
    supervisor: ProcessRecord | None = None

    @property
    def is_alone(self) -> bool:
        """Whether the worker has its machine for itself."""
        return not self.processes

    def setups(self) -> Setups:
        return Setups(self.cluster, self.keys, alone=self.is_alone, joins=True)


@contextmanager
def invitation(which: WhichCluster, outside: FromOutside) -> Iterator[Invitation]:
    """It holds while the context does. Raises `InvalidConfiguration` or `NoCluster`."""
    if outside == FromOutside():
        yield _of_running(which)
        return
    if outside.file is None or outside.keys is None or not outside.gateway:
        raise InvalidConfiguration("--file, --keys and --gateway go together: give all three")
    if which != WhichCluster():
        raise InvalidConfiguration(
            "--file, --keys and --gateway name a cluster; leave out --cluster and --state-dir"
        )
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        yield Invitation(
            read_live_cluster(str(outside.file)).cluster,
            read_worker_keys(outside.keys),
            gateway_endpoints(outside.gateway),
            StateDirectory(Path(folder)),
        )


def _of_running(which: WhichCluster) -> Invitation:
    running = find_running(which, elsewhere=True)
    record = running.record
    described = read_live_cluster(str(running.directory.path / CLUSTER_FILE)).cluster
    if not running.keys.worker_secret:
        raise InvalidConfiguration(
            "the directory of a gateway alone has an operator's keys; give --file, --keys and "
            "--gateway"
        )
    return Invitation(
        # The model has the name that everybody in there knows it by.
        replace(described, model=record.model or "tandem-mini"),
        running.keys,
        running.endpoints,
        running.directory,
        frozenset(record.processes),
        # Of one on another machine nobody here knows.
        record.supervisor if record.supervisor.alive else None,
    )
