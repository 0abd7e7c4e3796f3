"""Reads KV of other simulated workers: what the KV transfer engine does live, over links with
contention. Whether a block still holds what was announced is looked at as it is live: by its
version, before and after it is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tandem.facts.kv import KvExport, MoveKv, MoveReport
from tandem.messages.node import BlocksExported, MoveFinished, NodeEvent
from tandem.twin.block_contents import BlockContents
from tandem.twin.network.paths import path_to_node
from tandem.twin.recorder import Recorder
from tandem.twin.transfers import Transfers

KV = "kv"
# Blocks and versions to export, and what is called when that is done.
Export = Callable[[tuple[int, ...], tuple[int, ...], Callable[[], object]], None]


class SourceOfKv(Protocol):
    """A worker that others read from."""

    @property
    def incarnation(self) -> str: ...

    @property
    def contents(self) -> BlockContents | None: ...

    @property
    def versions(self) -> Sequence[int]:
        """Of its blocks, as they are now."""
        ...


class SimulatedKvTransfer:
    """One worker's. `sources` are the workers that are up, by name; what is done goes to
    `post`."""

    def __init__(
        self,
        worker: str,
        sources: Mapping[str, SourceOfKv],
        bytes_of: Callable[[int], float],
        transfers: Transfers,
        recorder: Recorder,
        post: Callable[[NodeEvent], None],
        export: Export,
        contents: BlockContents | None = None,
    ) -> None:
        self._worker = worker
        self._sources = sources
        self._bytes_of = bytes_of
        self._transfers = transfers
        self._recorder = recorder
        self._post = post
        self._export = export
        self._contents = contents
        self._under_way: dict[int, tuple[int, MoveKv]] = {}

    def add_source(self, worker: str, incarnation: str, export: KvExport) -> None:
        """Links are there from the start."""

    def forget_source(self, worker: str, incarnation: str) -> None:
        """What is read from it ends by itself."""

    def start_transfer(self, move_id: int, order: MoveKv) -> None:
        if not self._sound(order):
            self._finish(move_id, order, 0.0, 0.0, "the source has given its blocks away")
            return
        moved_bytes = self._bytes_of(order.end_token - order.first_token)

        def ended(arrived: bool, seconds: float) -> None:
            del self._under_way[move_id]
            problem = "" if arrived else "the transfer was lost"
            if arrived and not self._sound(order):
                problem = "the source gave its blocks away meanwhile"
            if self._contents is not None:
                source = None if problem else self._sources[order.source].contents
                if not self._contents.receive_contents(source, order):
                    problem = problem or "a block is not what was exported"
            self._finish(move_id, order, moved_bytes, seconds, problem)

        path = path_to_node(order.source, self._worker)
        transfer = self._transfers.start(KV, moved_bytes, path, ended, urgent=True)
        self._under_way[move_id] = transfer, order

    def stop_transfer(self, move_id: int) -> None:
        transfer_id, order = self._under_way.get(move_id, (None, None))
        if transfer_id is not None and self._transfers.cancel(transfer_id):
            del self._under_way[move_id]
            if self._contents is not None and order is not None:
                self._contents.receive_contents(None, order)
            self._post(MoveFinished(move_id, MoveReport(False, problem="stopped")))

    def export_blocks(
        self,
        export_id: int,
        blocks: tuple[int, ...],
        versions: tuple[int, ...],
    ) -> None:
        self._export(blocks, versions, lambda: self._post(BlocksExported(export_id)))

    def _sound(self, order: MoveKv) -> bool:
        """Whether what is to be read is still what was announced."""
        source = self._sources.get(order.source)
        if source is None or source.incarnation != order.incarnation:
            return False
        now = source.versions
        blocks = zip(order.source_blocks, order.source_versions, strict=True)
        return all(now[block] == version for block, version in blocks)

    def _finish(
        self, move_id: int, order: MoveKv, moved_bytes: float, seconds: float, problem: str
    ) -> None:
        if not problem:
            self._recorder.moved(order.request_id, order.end_token - order.first_token)
        report = MoveReport(
            arrived=not problem,
            connector="simulated",
            moved_bytes=round(moved_bytes),
            spans=len(order.source_blocks),
            seconds=seconds,
            problem=problem,
        )
        self._post(MoveFinished(move_id, report))
