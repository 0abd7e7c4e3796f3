"""Changes that an operator asks for over HTTP: some keys of the cluster file, applied by the
supervisor as `tandem apply` has it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tandem.config.cluster.live import read_live_cluster
from tandem.config.processes import CLUSTER_FILE
from tandem.facts.errors import InvalidConfiguration, InvalidRequest
from tandem.facts.overview import AppliedChange, ChangedSetting
from tandem.live.launching.control import ControlFailed, ask_supervisor
from tandem.messages.supervisor import AskApply, ChangeEnded, ChangePlanned, ChangeProgress


class SettingsChange:
    """Of the cluster whose state directory this is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def apply(self, settings: Sequence[str], seen: int | None) -> AppliedChange:
        """Run by the cluster's file with these settings, as `policies.routing=cost`; without the
        number that was `seen` in an earlier answer, only what would change. Raises `InvalidRequest`
        for settings that cannot be, and where no supervisor runs here."""
        try:
            text = await asyncio.to_thread(self._text, settings)
        except (InvalidConfiguration, OSError) as error:
            raise InvalidRequest("settings", f"cannot be applied: {error}") from error
        try:
            return await self._asked(AskApply(text, dry_run=seen is None, seen=seen))
        except ControlFailed as error:
            raise InvalidRequest("settings", f"cannot be applied: {error}") from error

    def _text(self, settings: Sequence[str]) -> str:
        """Of the file that the cluster would run by."""
        file = read_live_cluster(str(self._directory / CLUSTER_FILE), settings)
        return file.text(file.cluster.model)

    async def _asked(self, question: AskApply) -> AppliedChange:
        planned = ChangePlanned(0)
        progress: list[str] = []
        async for answer in ask_supervisor(self._directory, question):
            match answer:
                case ChangePlanned():
                    planned = answer
                case ChangeProgress(name, text):
                    progress.append(f"{name} {text}")
                case ChangeEnded(_, problems):
                    return _change(planned, tuple(progress), problems, applied=not problems)
        return _change(planned, tuple(progress), (), applied=False)


def _change(
    planned: ChangePlanned,
    progress: tuple[str, ...],
    problems: tuple[str, ...],
    *,
    applied: bool,
) -> AppliedChange:
    keys = (ChangedSetting(each.place, each.old, each.new, each.when) for each in planned.keys)
    return AppliedChange(
        planned.number,
        tuple(keys),
        planned.workers,
        planned.refusals,
        progress,
        problems,
        applied=applied,
    )
