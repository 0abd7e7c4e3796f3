"""Runs the batches of a store, one loop for all of them: opens batches, starts their requests as
the policy has it, writes answers in groups, and ends batches. Whatever it has not written when the
process ends, the next process does again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tandem.api.batches.active import ActiveBatch
from tandem.api.batches.bodies import BatchProblem, RequestCounts
from tandem.api.batches.line_call import LineCaller, TryAgain
from tandem.api.batches.lines import LineError, LineRules
from tandem.api.batches.records import BatchRecord
from tandem.api.batches.store import BatchStore
from tandem.api.clock_and_entropy import monotonic_s, unix_time_s
from tandem.api.config import ApiConfig
from tandem.policy.batches import (
    BatchAction,
    BatchStatus,
    BatchView,
    end_of,
    next_action,
    next_batch,
    next_to_open,
    requests_at_once,
)

logger = logging.getLogger(__name__)

# At least so often it looks whether a batch has expired, waits no longer, or has more room.
_LOOK_S = 0.25
_SWEEP_S = 60.0
# After a disk did not take what was written.
_DISK_PAUSE_S = 5.0
_NEVER_RAN = {
    BatchStatus.CANCELLED: LineError(
        code="batch_cancelled", message="the batch was cancelled before this request was answered"
    ),
    BatchStatus.EXPIRED: LineError(
        code="batch_expired", message="the time of the batch was over before this request ran"
    ),
}


@dataclass(frozen=True, slots=True)
class BatchServer:
    """Who answers requests of batches. `rules_of` says what those of a batch must be, and `quiet_s`
    for how long nobody has waited for an answer."""

    caller: LineCaller
    rules_of: Callable[[BatchRecord], LineRules]
    quiet_s: Callable[[], float]


class BatchRunner:
    """Use it from one event loop, between `start` and `stop`, once it is `connected`."""

    def __init__(self, store: BatchStore) -> None:
        self.store = store
        self._server: BatchServer | None = None
        self._active: dict[str, ActiveBatch] = {}
        self._wake = asyncio.Event()
        # Whether a batch may be opened that could not be before.
        self._may_open = True
        self._task: asyncio.Task[None] | None = None
        self._swept_s = monotonic_s()

    def connect(self, server: BatchServer) -> None:
        """To whoever answers the requests."""
        self._server = server

    @property
    def server(self) -> BatchServer:
        """Who answers, once it is connected."""
        assert self._server is not None
        return self._server

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="batches")
        self._task.add_done_callback(_say_failure)

    async def stop(self) -> None:
        """What is answered is written; what runs will run again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        batches = list(self._active.values())
        running = [each for batch in batches for each in batch.running.values()]
        for each in running:
            each.cancel()
        if ending := {*running, *(batch.work for batch in batches if batch.work is not None)}:
            await asyncio.wait(ending)
        for batch in batches:
            if batch.opened and batch.unwritten:
                try:
                    await batch.write()
                except OSError as error:
                    logger.warning("%s computes answers again: %s", batch.batch_id, error)
            batch.close()
        self.store.close()

    def wake(self) -> None:
        """A batch has come, is to end, or has ended."""
        self._may_open = True
        self._wake.set()

    @property
    def active(self) -> Iterable[ActiveBatch]:
        """The batches that are open."""
        return self._active.values()

    def counts(self, record: BatchRecord) -> RequestCounts:
        """Of a batch, at this moment."""
        batch = self._active.get(record.batch_id)
        return batch.counts if batch is not None and not record.status.is_final else record.counts

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            self._advance()
            self._start_requests()
            if monotonic_s() - self._swept_s > _SWEEP_S:
                self._swept_s = monotonic_s()
                await self._sweep()
            try:
                async with asyncio.timeout(_LOOK_S if self.store.unended else _SWEEP_S):
                    await self._wake.wait()
            except TimeoutError:
                self._may_open = True

    async def _sweep(self) -> None:
        try:
            await self.store.sweep(unix_time_s())
        except OSError as error:
            logger.warning("what was kept for its time cannot be removed: %s", error)

    def _views(self, records: Iterable[BatchRecord]) -> list[BatchView]:
        now_s, clock_s = unix_time_s(), monotonic_s()
        views = []
        for record in records:
            batch = self._active.get(record.batch_id)
            has_room = batch is None or self.store.has_room_for(batch.owner)
            views.append(_view(record, batch, now_s, clock_s, has_room=has_room))
        return views

    def _active_views(self) -> list[BatchView]:
        unended = self.store.unended
        return self._views([unended[name] for name in self._active if name in unended])

    def _advance(self) -> None:
        """Every open batch does what it must do next, and closed ones are opened."""
        for view in self._active_views():
            action, batch = next_action(view), self._active[view.batch_id]
            if action is BatchAction.STOP:
                for running in batch.running.values():
                    running.cancel()
            elif action is BatchAction.WRITE:
                self._work_on(batch, batch.write)
            elif action is BatchAction.FINALIZE:
                self._work_on(batch, partial(self._finalize, batch))
        while self._may_open:
            closed = next_to_open(self._views(self.store.unended.values()))
            if closed is None:
                self._may_open = False
                return
            record = self.store.batches[closed.batch_id]
            batch = self._active.setdefault(closed.batch_id, ActiveBatch(self.store, record))
            self._work_on(batch, partial(self._open, batch))

    def _start_requests(self) -> None:
        limit = requests_at_once(self.store.config.requests, self.server.quiet_s())
        running = sum(len(batch.running) for batch in self._active.values())
        while running < limit:
            view = next_batch(self._active_views())
            if view is None:
                return
            batch = self._active[view.batch_id]
            number = batch.waiting.popleft()
            task = asyncio.create_task(self._answer(batch, number), name=batch.batch_id)
            task.add_done_callback(_say_failure)
            batch.running[number] = task
            running += 1

    async def _answer(self, batch: ActiveBatch, number: int) -> None:
        """One request; one that has no answer waits again, behind the others."""
        answered = False
        try:
            line = await batch.read_request(number)
            answer = await self.server.caller.call(line, self.store.batches[batch.batch_id])
            if isinstance(answer, TryAgain):
                batch.paused_until_s = monotonic_s() + answer.after_s
            else:
                batch.unwritten.append((number, answer))
                answered = True
        except (OSError, ValueError) as error:
            logger.warning("a request of %s cannot be read: %s", batch.batch_id, error)
            batch.paused_until_s = monotonic_s() + _DISK_PAUSE_S
        finally:
            if not answered:
                batch.waiting.append(number)
            del batch.running[number]
            self._wake.set()

    def _work_on(self, batch: ActiveBatch, work: Callable[[], Awaitable[None]]) -> None:
        """With its files, until it is done; then the batch is looked at again."""

        async def run() -> None:
            # Also after a fault of ours: it would only happen again at once.
            batch.blocked_until_s = monotonic_s() + _DISK_PAUSE_S
            try:
                await work()
                batch.blocked_until_s = 0.0
            except OSError as error:
                logger.warning("%s waits for the disk: %s", batch.batch_id, error)
            finally:
                batch.work = None
                self._wake.set()

        batch.work = asyncio.create_task(run(), name=batch.batch_id)
        batch.work.add_done_callback(_say_failure)

    async def _open(self, batch: ActiveBatch) -> None:
        record = self.store.batches[batch.batch_id]
        try:
            await batch.open(self.server.rules_of(record))
            problems = batch.index.problems
        except FileNotFoundError:
            problem = "the file of its requests is not stored any more"
            problems = [BatchProblem(code="file_not_found", message=problem)]
        if problems:
            await self._fail(batch, problems)
            return
        model, now_s = batch.index.model, unix_time_s()

        def begun(record: BatchRecord) -> BatchRecord:
            if record.status is not BatchStatus.VALIDATING:
                return record
            return record.entered(BatchStatus.IN_PROGRESS, now_s, model=model)

        await self.store.change_batch(batch.batch_id, begun)
        batch.opened = True

    async def _fail(self, batch: ActiveBatch, problems: list[BatchProblem]) -> None:
        now_s = unix_time_s()

        def failed(record: BatchRecord) -> BatchRecord:
            is_cancelled = record.status is BatchStatus.CANCELLING
            status = BatchStatus.CANCELLED if is_cancelled else BatchStatus.FAILED
            return record.entered(status, now_s, problems=problems)

        record = await self.store.change_batch(batch.batch_id, failed)
        self._close(batch)
        # Should that not succeed, they are swept at the next start.
        for file_id in (record.output_file_id, record.error_file_id):
            await self.store.discard_data(file_id)

    async def _finalize(self, batch: ActiveBatch) -> None:
        now_s = unix_time_s()

        def ending(record: BatchRecord) -> BatchRecord:
            if record.status is not BatchStatus.IN_PROGRESS:
                return record
            return record.entered(BatchStatus.FINALIZING, now_s)

        record = await self.store.change_batch(batch.batch_id, ending)
        finalizing_s = record.times.get(BatchStatus.FINALIZING, now_s)
        end = end_of(record.status, expired=finalizing_s >= record.expires_s)
        if batch.waiting:
            await batch.give_up(_NEVER_RAN.get(end, _NEVER_RAN[BatchStatus.EXPIRED]))
        shows_output, shows_errors = await batch.publish()
        counts = batch.counts
        await self.store.change_batch(
            batch.batch_id,
            lambda record: record.entered(
                end,
                unix_time_s(),
                counts=counts,
                shows_output=shows_output,
                shows_errors=shows_errors,
            ),
        )
        self._close(batch)

    def _close(self, batch: ActiveBatch) -> None:
        batch.close()
        self._active.pop(batch.batch_id, None)
        self._may_open = True


def batch_runner(config: ApiConfig) -> BatchRunner | None:
    """That of a server, None where it has no folder for batches. Raises `InvalidConfiguration`."""
    if not config.batches.directory:
        return None
    return BatchRunner(BatchStore(config.batches, shared=config.has_keys))


def _view(
    record: BatchRecord, batch: ActiveBatch | None, now_s: int, clock_s: float, *, has_room: bool
) -> BatchView:
    is_expired = now_s >= record.expires_s
    if batch is None:
        return BatchView(
            record.batch_id, record.owner, record.created_ns, record.status, expired=is_expired
        )
    return BatchView(
        record.batch_id,
        record.owner,
        record.created_ns,
        record.status,
        opened=batch.opened,
        waiting=len(batch.waiting),
        running=len(batch.running),
        unwritten=len(batch.unwritten),
        paused=clock_s < batch.paused_until_s or not has_room,
        blocked=clock_s < batch.blocked_until_s and batch.work is None,
        working=batch.work is not None,
        expired=is_expired,
    )


def _say_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.error("a fault of the server in %s", task.get_name(), exc_info=failure)
