"""Which cluster a command means (the one that runs, or the one that is named), and what a process
needs to join it: the cluster file, its keys, its gateways' addresses. They come from the state
directory of `tandem up` or from flags."""

import asyncio
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tandem.commands.options import flag, flags
from tandem.config.cluster.file import MOST_PORT, Cluster, name_problem
from tandem.config.cluster.live import read_live_cluster
from tandem.config.environment import BUNDLED_MODEL, runtime_directory
from tandem.config.processes import CLUSTER_FILE, CurveKeys
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.gateway.operators import PATIENCE_S, Operators
from tandem.live.launching.name_locks import NameLocks
from tandem.live.launching.private_directory import read_private
from tandem.live.launching.state_directory import (
    ClusterRecord,
    ProcessRecord,
    StateDirectory,
    running_clusters,
)
from tandem.live.processes.key_files import read_worker_keys
from tandem.live.processes.setups import KEYS_FILE, Setups


class NoCluster(TandemError):
    """There is no running cluster that the user may have meant."""


@flags
class WhichCluster:
    """Which cluster."""

    name: str | None = flag("Its name. (default: the one that runs)", "--cluster", default=None)
    state_dir: Path | None = flag("Where it keeps its files, if it was started so.", default=None)


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster that runs, as its state directory tells."""

    directory: StateDirectory
    record: ClusterRecord

    @property
    def endpoints(self) -> Sequence[str]:
        """Of the gateways. Raises `NoCluster` while it only starts."""
        if not self.record.gateways:
            raise NoCluster(f"cluster {self.record.name} is only starting; try again soon")
        return list(self.record.gateways.values())

    @property
    def keys(self) -> CurveKeys:
        """What operators and workers have."""
        try:
            return msgspec.json.decode(
                read_private(self.directory.path / KEYS_FILE), type=CurveKeys
            )
        except OSError as error:
            raise NoCluster(
                f"the keys of the cluster cannot be read: {error.strerror or error}"
            ) from error

    @property
    def model(self) -> str:
        return self.record.model or BUNDLED_MODEL.name

    def operators(self, timeout_s: float = PATIENCE_S) -> Operators:
        """Raises `NoCluster` as `endpoints` and `keys`."""
        return Operators(self.endpoints, self.keys, timeout_s)


def state_directory(name: str, given: Path | None) -> StateDirectory:
    """Of a cluster of this name."""
    return StateDirectory(given.absolute() if given else runtime_directory() / name)


def find_running(which: WhichCluster, *, elsewhere: bool = False) -> RunningCluster:
    """With `elsewhere` a directory that is named may be the copy of one on another machine. Raises
    `NoCluster` when there is none, `InvalidConfiguration` when there are several."""
    if which.state_dir is not None or which.name is not None:
        directory = state_directory(which.name or "", which.state_dir)
        if not directory.claimed and not (elsewhere and directory.read()):
            raise NoCluster(f"no cluster runs in {directory.path}")
        candidates = [directory]
    else:
        candidates = running_clusters(runtime_directory())
    found = [
        RunningCluster(directory, record)
        for directory in candidates
        if (record := directory.read()) is not None
    ]
    if not found:
        raise NoCluster("no cluster runs; start one with `tandem up`")
    if len(found) > 1:
        names = ", ".join(cluster.record.name for cluster in found)
        raise InvalidConfiguration(
            f"several clusters run ({names}); say which, with --cluster NAME"
        )
    return found[0]


@flags
class ClusterElsewhere:
    """A cluster without a state directory here. All three go together."""

    file: Path | None = flag("The cluster file that its gateways have.", default=None)
    keys: Path | None = flag("The worker.json of `tandem keys`.", default=None)
    gateway: list[str] | None = flag(
        "Where a gateway waits for workers, as tcp://host:9000; name them all.", default=None
    )


@dataclass(frozen=True, slots=True)
class ClusterToJoin:
    """What a process that joins needs. `directory` takes its set-up; `names` are those that others
    on this machine join under; `supervisor` is None for a cluster that has none, or none here."""

    cluster: Cluster
    keys: CurveKeys
    endpoints: Sequence[str]
    directory: StateDirectory
    names: NameLocks
    processes: frozenset[str] = frozenset()
    supervisor: ProcessRecord | None = None

    @property
    def is_alone(self) -> bool:
        """Whether the worker has its machine for itself."""
        return not self.processes

    def setups(self) -> Setups:
        return Setups(self.cluster, self.keys, alone=self.is_alone, joins=True)


@contextmanager
def cluster_to_join(which: WhichCluster, elsewhere: ClusterElsewhere) -> Iterator[ClusterToJoin]:
    """It holds while the context does. Raises `InvalidConfiguration` or `NoCluster`."""
    with ExitStack() as undo:
        if elsewhere == ClusterElsewhere():
            target = _of_running(which)
        else:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="tandem-"))
            target = _of_elsewhere(which, elsewhere, Path(folder))
        undo.callback(target.names.release_names)
        yield target


def _of_elsewhere(which: WhichCluster, elsewhere: ClusterElsewhere, folder: Path) -> ClusterToJoin:
    if elsewhere.file is None or elsewhere.keys is None or not elsewhere.gateway:
        raise InvalidConfiguration("--file, --keys and --gateway go together: give all three")
    if which != WhichCluster():
        raise InvalidConfiguration(
            "--file, --keys and --gateway name a cluster; leave out --cluster and --state-dir"
        )
    cluster = read_live_cluster(str(elsewhere.file)).cluster
    return ClusterToJoin(
        cluster,
        read_worker_keys(elsewhere.keys),
        gateway_endpoints(elsewhere.gateway),
        StateDirectory(folder),
        # Beside the directories of clusters, whose names begin with no dot.
        NameLocks(runtime_directory() / f".joined-{cluster.name}"),
    )


def _of_running(which: WhichCluster) -> ClusterToJoin:
    running = find_running(which, elsewhere=True)
    record = running.record
    described = read_live_cluster(str(running.directory.path / CLUSTER_FILE)).cluster
    if not running.keys.worker_secret:
        raise InvalidConfiguration(
            "the directory of a gateway alone has an operator's keys; give --file, --keys and "
            "--gateway"
        )
    return ClusterToJoin(
        # The model has the name that everybody in there knows it by.
        replace(described, model=running.model),
        running.keys,
        running.endpoints,
        running.directory,
        NameLocks(running.directory.path),
        frozenset(record.processes),
        # Of one on another machine nobody here knows.
        record.supervisor if record.supervisor.alive else None,
    )


LONGEST_NAME = 64
POLL_S = 0.5


def process_name(given: str | None) -> str:
    """As given, or this host's: on Kubernetes that is the pod's. Raises `InvalidConfiguration`."""
    name = given if given is not None else next(host_names())
    if problem := name_problem(name):
        raise InvalidConfiguration(problem)
    return name


def host_names() -> Iterator[str]:
    """This host's name, and for further processes on it the same with 2, 3, ... behind it."""
    for number in count(1):
        end = f"-{number}" if number > 1 else ""
        # The end of a pod's name tells it from others.
        yield socket.gethostname()[len(end) - LONGEST_NAME :].lstrip("-._") + end


def listen_endpoint(listen: str) -> str:
    """Of an address, or address:port, in a cluster file."""
    host, _, port = listen.rpartition(":")
    return f"tcp://{host}:{port}" if host else f"tcp://{listen}:0"


def gateway_endpoints(given: Sequence[str]) -> tuple[str, ...]:
    """As given on the command line, checked. Raises `InvalidConfiguration`."""
    endpoints = []
    for text in given:
        endpoint = text if "://" in text else f"tcp://{text}"
        parts = urlsplit(endpoint)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "tcp" or not parts.hostname or not port or port > MOST_PORT:
            raise InvalidConfiguration(
                f"--gateway {text}: expected the address of a gateway as tcp://host:9000"
            )
        endpoints.append(endpoint)
    return tuple(dict.fromkeys(endpoints))


async def until_resolved(endpoints: Sequence[str], limit_s: float) -> None:
    """Until a first name is known: where machines start together, a gateway's may come later.
    Raises `InvalidConfiguration` when it does not."""
    loop = asyncio.get_running_loop()
    names = [urlsplit(endpoint).hostname or "" for endpoint in endpoints]
    end_s = loop.time() + limit_s
    while not await _is_known(names[0]):
        if loop.time() > end_s:
            raise InvalidConfiguration(
                f"--gateway {endpoints[0]}: nobody knew {names[0]} for {limit_s:g} s"
            )
        await asyncio.sleep(POLL_S)


async def _is_known(name: str) -> bool:
    try:
        await asyncio.get_running_loop().getaddrinfo(name, None)
    except OSError:
        return False
    return True
