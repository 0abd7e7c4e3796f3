"""Which cluster a command means: the one that runs, or the one that is named."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tandem.commands.cluster.setups import KEYS_FILE
from tandem.config.environment import runtime_directory
from tandem.config.processes import CurveKeys
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.launching.private_directory import read_private
from tandem.live.launching.state_directory import ClusterRecord, StateDirectory, running_clusters


class NoCluster(TandemError):
    """There is no running cluster that the user may have meant."""


@dataclass(frozen=True)
class WhichCluster:
    """Which cluster."""

    name: Annotated[
        str | None, typer.Option("--cluster", help="Its name. (default: the one that runs)")
    ] = None
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Where it keeps its files, if it was started so."),
    ] = None


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
