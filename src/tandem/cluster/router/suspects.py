"""Requests suspected of killing workers (see `deaths`): no two of them run on one worker."""

from collections.abc import Sequence

from tandem.cluster.audit import invariant
from tandem.cluster.router.queue import RequestQueue
from tandem.cluster.router.request_state import RequestState


class Suspects:
    """By request id. `waiting` are at no worker, in the order in which they are to start, beside
    the `line` of all others; `running` are at workers."""

    def __init__(self, line: RequestQueue) -> None:
        self._line = line
        self.waiting: dict[str, RequestState] = {}
        self.running: dict[str, RequestState] = {}

    @property
    def all_waiting(self) -> int:
        """Requests that are at no worker, suspects or not."""
        return len(self._line) + len(self.waiting)

    @property
    def first(self) -> RequestState | None:
        return next(iter(self.waiting.values()), None)

    def workers(self) -> set[str]:
        """Where there is one."""
        return {worker for each in self.running.values() for worker in _workers_of(each)}

    def enqueue(self, state: RequestState) -> None:
        """It stands here if it is a suspect, else in the line."""
        if state.deaths.suspect:
            self.waiting[state.request_id] = state
        else:
            self._line.enqueue(state)

    def dequeue(self, state: RequestState) -> None:
        """It will not go on."""
        if self.waiting.pop(state.request_id, None) is None:
            self._line.dequeue(state)

    def starts(self, state: RequestState) -> None:
        """It goes to workers now, where no other is."""
        del self.waiting[state.request_id]
        self.running[state.request_id] = state

    def leaves(self, state: RequestState) -> None:
        """It is at no worker any more, or no suspect. Others, too, may leave."""
        self.running.pop(state.request_id, None)

    def audit(self, on_their_way: Sequence[RequestState]) -> None:
        """Raises `InvariantBroken` unless all suspects are here, and no two share a worker."""
        running = {each.request_id: each for each in on_their_way if each.deaths.suspect}
        invariant(running == self.running, "suspects at workers are known")
        suspected = all(each.deaths.suspect for each in self.waiting.values())
        invariant(suspected, "who waits beside the line is a suspect")
        workers = [worker for each in running.values() for worker in _workers_of(each)]
        invariant(len(workers) == len(set(workers)), "no two suspects are at one worker")


class Witnesses:
    """Requests that were sent to a worker after another died with them, until it is heard again."""

    def __init__(self) -> None:
        self._awaited: dict[str, list[tuple[RequestState, int, int]]] = {}

    def sent(self, state: RequestState, worker: str, told: int) -> None:
        """To be heard of: the worker had been told so many events before."""
        if state.deaths.total:
            entry = state, state.names.attempt, told
            self._awaited.setdefault(worker, []).append(entry)

    def heard(self, worker: str, heard: int | None) -> None:
        """The worker lives, and has heard so many events (None: all)."""
        if worker not in self._awaited:
            return
        left = []
        for state, attempt, told in self._awaited.pop(worker):
            if heard is not None and heard <= told:
                left.append((state, attempt, told))
            elif state.names.attempt == attempt:
                state.deaths.heard.add(worker)
        if left:
            self._awaited[worker] = left

    def lost(self, worker: str) -> None:
        """Nothing is heard of it any more."""
        self._awaited.pop(worker, None)


def _workers_of(state: RequestState) -> set[str]:
    return {name for name in (state.prefill, state.decode) if state.needs(name)}
