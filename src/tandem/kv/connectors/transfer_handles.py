"""Transfer handles: reads under way in the background of a connector, who may stop them, and how
their ends are reported.

Every handle ends exactly once, whoever is first: the thread that serves it, a cancellation before
that thread has begun, or nobody serving it at all.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, problem_of

Description = TypeVar("Description", bound=msgspec.Struct)
# Between two looks at the state of the device or library, ever less often.
FIRST_PAUSE_S: Final = 50e-6
LONGEST_PAUSE_S: Final = 1e-3


@dataclass(slots=True, eq=False)
class TransferHandle:
    """One read. `stop` is why to end early, and empty until somebody wants that."""

    number: int
    peer: str
    stop: str = ""
    begun: bool = False
    ended: bool = False


class TransferHandles:
    """All of one connector. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, TransferHandle] = {}
        self._last_number = 0
        self._all_ended = ""
        self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()

    def open_handle(self, peer: str) -> TransferHandle:
        """One that is to be served, unless all have ended."""
        with self._lock:
            self._last_number += 1
            handle = TransferHandle(self._last_number, peer)
            self._open[handle.number] = handle
        if self._all_ended:
            self.end_handle(handle, self._all_ended)
        return handle

    def open_checked(
        self, peer: str, spans: Spans, peer_bytes: int | None, own_bytes: int
    ) -> TransferHandle:
        """As `open_handle`, of a read between regions of these sizes; one has `ended` at once where
        there is no connected peer (None) or the spans lie outside."""
        handle = self.open_handle(peer)
        if peer_bytes is None:
            self.end_handle(handle, f"not connected to {peer}")
        elif problem := problem_of(spans, peer_bytes, own_bytes):
            self.end_handle(handle, problem)
        return handle

    def begin_handle(self, handle: TransferHandle) -> bool:
        """Whether the handle is still to be served; from then on its server ends it."""
        with self._lock:
            handle.begun = handle.number in self._open
            return handle.begun

    @contextmanager
    def serving(self, handle: TransferHandle) -> Iterator[None]:
        """The work for a handle that was begun, which ends it: so does its failure."""
        try:
            yield
        finally:
            self.end_handle(handle, "the thread that served it failed")

    def end_handle(self, handle: TransferHandle, problem: str = "") -> None:
        """Tell its completion; nothing happens to one that has ended."""
        with self._lock:
            handle.ended = True
            if self._open.pop(handle.number, None) is not None:
                self._completions.put(Completion(handle.number, problem))

    def cancel_handle(self, number: int, why: str = "cancelled") -> None:
        """A handle that is being served ends when its server looks at `stop`, others now."""
        with self._lock:
            handle = self._open.get(number)
            if handle is None:
                return
            handle.stop = handle.stop or why
            if not handle.begun:
                handle.ended = True
                del self._open[number]
                self._completions.put(Completion(number, handle.stop))

    def cancel_peer(self, peer: str, why: str) -> None:
        """As `cancel_handle`, all of that peer."""
        with self._lock:
            numbers = [number for number, handle in self._open.items() if handle.peer == peer]
        for number in numbers:
            self.cancel_handle(number, why)

    def end_all(self, why: str) -> None:
        """All handles end, those to come included."""
        with self._lock:
            self._all_ended = why
            numbers = list(self._open)
        for number in numbers:
            self.cancel_handle(number, why)

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        """What has ended; waits up to `timeout_s` for the first."""
        found: list[Completion] = []
        try:
            found.append(self._completions.get(timeout=max(timeout_s, 0.0)))
            while True:
                found.append(self._completions.get_nowait())
        except queue.Empty:
            return found


def parsed_description(peer: str, raw: bytes, kind: type[Description]) -> Description:
    """What a peer of the same connector described. Raises `ConnectorError`."""
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise ConnectorError(f"{peer} describes its memory in no known way: {error}") from error


def poll_until_ended(
    handles: TransferHandles, look: Callable[[], bool], timeout_s: float
) -> list[Completion]:
    """For ends that nobody announces: what has ended; waits for the first. `look` ends handles that
    are over, and gives whether others go on: while none do, only another thread can end one."""
    waited_s, pause_s = 0.0, FIRST_PAUSE_S
    while True:
        going_on = look()
        left_s = max(timeout_s - waited_s, 0.0)
        pause_s = min(pause_s, left_s) if going_on else left_s
        found = handles.poll_completions(pause_s)
        waited_s += pause_s
        if found or waited_s >= timeout_s:
            return found
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
