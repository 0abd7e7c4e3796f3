"""Messages between an operator's terminal and the supervisor of a cluster, over a socket in its
state directory."""

from msgspec import Struct


class AskApply(Struct, frozen=True, tag=True):
    """Run by this cluster file from now on. Answered by `ChangePlanned`, and unless `dry_run` then
    by any number of `ChangeProgress` and one `ChangeEnded`. Nothing is done where the cluster runs
    by another configuration than that of the number `seen` (None: whichever it is)."""

    file: str
    dry_run: bool
    seen: int | None = None


class ChangedKey(Struct, frozen=True):
    """See `config.cluster.changes.KeyChange`."""

    place: str
    old: str
    new: str
    when: str
    instead: str = ""


class ChangePlanned(Struct, frozen=True, tag=True):
    """What the file would change in the configuration of this `number`, and what it would do to
    workers, in words. With `refusals` nothing of it can be."""

    number: int
    keys: tuple[ChangedKey, ...] = ()
    workers: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


class ChangeProgress(Struct, frozen=True, tag=True):
    """One process has changed, or could not."""

    name: str
    text: str


class ChangeEnded(Struct, frozen=True, tag=True):
    """The cluster runs by the configuration of this `number`; `problems` are what is not as the
    file has it all the same."""

    number: int
    problems: tuple[str, ...] = ()


SupervisorAnswer = ChangePlanned | ChangeProgress | ChangeEnded
