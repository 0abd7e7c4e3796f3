"""What another cluster file would do to a cluster that runs: which keys change, which workers start
or go, and all the reasons why it cannot be. Changes nothing."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from tandem.config.cluster.changes import KeyChange, changes
from tandem.config.cluster.file import Cluster, worker_names
from tandem.config.cluster.keys import Change
from tandem.config.cluster.live import LiveFile, checked, live_model
from tandem.config.cluster.tree import APPLIED, parse
from tandem.config.cluster.workers import PoolConfig
from tandem.config.kv_format import kv_precisions
from tandem.config.machine_share import on_ray
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.before_start import check_setups, check_wishes
from tandem.live.processes.setups import Setups, pool_checkpoints
from tandem.messages.supervisor import ChangedKey, ChangePlanned

_KV_FORMAT = (
    "pools: workers would keep KV in other formats than before, which those that run were not "
    "told: `tandem down`, then `tandem up` with this file"
)
_RAY = (
    "pools: Ray set places aside for the workers that the cluster started with, and none for {}: "
    "`tandem down`, then `tandem up` with this file"
)


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """Workers that are to start, with their pools, and those that are to drain and go."""

    starting: Mapping[str, PoolConfig]
    leaving: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """For a person."""
        return (
            *(f"{name} starts" for name in self.starting),
            *(f"{name} drains and goes" for name in self.leaving),
        )


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The new file with the set-ups by it, the keys and workers that change, and why it cannot be
    (`refusals`, empty if it can)."""

    file: LiveFile
    setups: Setups
    keys: tuple[KeyChange, ...]
    workers: WorkerChanges
    refusals: tuple[str, ...]

    def shown(self, number: int) -> ChangePlanned:
        """For an operator, where the configuration of this number is what changes."""
        keys = (ChangedKey(k.place, k.old, k.new, str(k.when), k.instead) for k in self.keys)
        return ChangePlanned(number, tuple(keys), self.workers.texts, self.refusals)


def plan_change(
    text: str, running: LiveFile, setups: Setups, workers: Mapping[str, str], taken: Collection[str]
) -> ChangePlan:
    """What the file of this text changes in a cluster that runs by another one. `workers` are those
    that its supervisor keeps, with the names of their pools; no name that is `taken` is given to
    another. Raises `InvalidConfiguration` for a file that describes no live cluster."""
    file = checked(parse(text, APPLIED), Path())
    old, new = running.cluster, file.cluster
    if _names_model(new.model, setups):
        # It has many spellings.
        file = LiveFile(replace(new, model=old.model), file.tree)
    file = LiveFile(_with_spellings_of(old, file.cluster), file.tree)
    new = file.cluster
    keys = changes(old, new)
    refusals = [
        f"{key.place}: {key.old} -> {key.new} cannot change live: {key.instead}"
        for key in keys
        if key.when is Change.NEVER
    ]
    moves = worker_changes(old, new, workers, taken)
    made = setups
    if not refusals:
        made = setups.with_cluster(new)
        refusals += _refused(file, running, setups, made, moves)
    return ChangePlan(file, made, keys, moves, tuple(refusals))


def _with_spellings_of(old: Cluster, new: Cluster) -> Cluster:
    """The new cluster; where a pool has the model that it had before, it is spelled as before."""
    before, after = pool_checkpoints(old), pool_checkpoints(new)
    pools = tuple(
        replace(pool, model=old.pool(pool.name).model)
        if pool.name in before and before[pool.name] == after.get(pool.name)
        else pool
        for pool in new.pools
    )
    return replace(new, pools=pools)


def _names_model(name: str, setups: Setups) -> bool:
    """Whether that is the model that the cluster serves: its name, or the folder it lies in."""
    model = live_model(name)
    return model == setups.model or (model is not None and Path(model) == setups.checkpoint)


def worker_changes(
    old: Cluster, new: Cluster, workers: Mapping[str, str], taken: Collection[str]
) -> WorkerChanges:
    """As many workers as the file has of each pool. Where a planner decides, it has those that the
    pool may have; only a new pool starts with its `count`."""
    before = {pool.name: pool for pool in old.pools}
    starting: dict[str, PoolConfig] = {}
    leaving: list[str] = []
    for pool in new.pools:
        here = [name for name, of in workers.items() if of == pool.name]
        wanted = pool.count
        if new.plans and pool.name in before:
            allowed = worker_names(pool)[: new.most_workers(pool)]
            wanted = sum(name in allowed for name in here)
        elif pool.name in before and before[pool.name].count == pool.count and not old.plans:
            # Who went by an operator's hand does not come back by a change of something else.
            wanted = len(here)
        free = (f"{pool.name}-{index}" for index in count())
        names = (name for name in free if name not in taken and name not in workers)
        starting |= {next(names): pool for _ in range(wanted - len(here))}
        leaving += sorted(here, key=_index)[wanted:]
    staying = {pool.name for pool in new.pools}
    leaving += [name for name, pool in workers.items() if pool not in staying]
    return WorkerChanges(starting, tuple(leaving))


def _refused(
    file: LiveFile, running: LiveFile, before: Setups, setups: Setups, workers: WorkerChanges
) -> Iterator[str]:
    """What cannot be beside what keys say themselves."""
    new = file.cluster
    same_precisions = kv_precisions(running.cluster) == kv_precisions(new)
    if not same_precisions or before.block_format() != setups.block_format():
        yield _KV_FORMAT
        return
    if on_ray(new) and workers.starting:
        yield _RAY.format(", ".join(workers.starting))
        return
    counts: dict[str, int] = {}
    for pool in workers.starting.values():
        counts[pool.name] = counts.get(pool.name, 0) + 1
    try:
        check_wishes(file)
        check_setups(file, setups, [pool for pool in new.pools if pool.name in counts])
        setups.share.check_more(counts)
    except InvalidConfiguration as error:
        yield str(error)


def _index(worker: str) -> int:
    """The number at the end of a worker's name."""
    number = worker.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
