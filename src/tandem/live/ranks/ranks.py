"""The other ranks of a worker as their leader sees them: how they are started and where they meet,
whether they live, and the messages over the socket to each of them (`RankLink`).

A rank that ends, fails or falls silent ends the whole worker: the others could only wait for it.
"""

import os
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from tandem.facts.errors import TandemError
from tandem.kv.threads import SupervisedThread
from tandem.live.clock import NS_PER_S, now_ns
from tandem.messages.checks import BadMessage
from tandem.messages.codec import MESSAGE_LIMIT_BYTES, Codec
from tandem.messages.ranks import (
    TO_FOLLOWER,
    TO_LEADER,
    Ping,
    Pong,
    RankBegins,
    RankFailed,
    ToFollower,
    ToLeader,
)

Out = TypeVar("Out")
In = TypeVar("In")

LENGTH = struct.Struct("<I")


class RankLost(TandemError):
    """The other end is gone or does not answer: the worker cannot go on."""


class RankLink(Generic[Out, In]):
    """The socket between the leader of a worker and one other rank, which nobody else has: whole
    messages, both ways. Any thread may send, one may receive. A peer that takes nothing for
    `patience_s` is lost."""

    def __init__(
        self, connection: socket.socket, codecs: tuple[Codec[Out], Codec[In]], patience_s: float
    ) -> None:
        self._connection = connection
        self._outgoing, self._incoming = codecs
        self._sending = threading.Lock()
        seconds, fraction = divmod(patience_s, 1)
        patience = struct.pack("ll", int(seconds), int(fraction * 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)

    def send(self, message: Out) -> None:
        """Raises `RankLost`."""
        data = self._outgoing.encode(message)
        try:
            with self._sending:
                self._connection.sendall(LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise RankLost(f"a rank takes no messages: {error}") from error

    def receive(self, timeout_s: float | None = None) -> In:
        """The next message; waits for its begin, at most `timeout_s`. Raises `RankLost`
        when there will be none."""
        # Not `select`, which knows descriptors below 1024 only.
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        if not waiting.poll(None if timeout_s is None else timeout_s * 1000):
            raise RankLost(f"a rank said nothing for {timeout_s:g} s")
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > MESSAGE_LIMIT_BYTES:
            raise RankLost(f"a rank sends {length} bytes at once")
        try:
            return self._incoming.decode(bytes(self._exactly(length)))
        except BadMessage as error:
            raise RankLost(f"a message of a rank {error}") from error

    def close(self) -> None:
        """Both ends notice, also those that just wait."""
        # Otherwise the other end was faster.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, bytes: int) -> bytearray:
        data = bytearray(bytes)
        view, filled = memoryview(data), 0
        while filled < bytes:
            try:
                got = self._connection.recv_into(view[filled:])
            except OSError as error:
                raise RankLost(f"the socket to a rank is broken: {error}") from error
            if not got:
                raise RankLost("a rank has ended")
            filled += got
        return data


LeaderLink = RankLink[ToFollower, ToLeader]
# Looks at the silence of each rank so often within the time that it may be silent.
LOOKS = 4


@dataclass(frozen=True, slots=True)
class Follower:
    """A process that runs one rank, and the link to it."""

    process: "subprocess.Popen[bytes]"
    link: LeaderLink

    def begin(self, setup: bytes) -> None:
        """Its first word. Raises `RankLost`."""
        self.link.send(RankBegins(setup))


class Ranks:
    """The followers by rank. `received` gets their messages, from a thread for each; `failed` is
    called once, from any thread, when the worker cannot go on."""

    def __init__(self, followers: Mapping[int, Follower], silence_s: float) -> None:
        self._followers = dict(followers)
        self._silence_ns = int(silence_s * NS_PER_S)
        self._last_seen_ns = dict.fromkeys(followers, 0)
        self._closing = threading.Event()
        self._failed: Callable[[Exception], None] | None = None

    def listen(
        self, received: Callable[[int, ToLeader], None], failed: Callable[[Exception], None]
    ) -> None:
        """Begin to. A rank that ends is noticed from now on."""
        self._failed = failed
        for rank in self._followers:
            work = partial(self._listen, rank, received)
            SupervisedThread(f"link to rank {rank}", work, self._report_failure).start()

    def watch(self) -> None:
        """Begin to ask whether everybody lives; they have to be ready to answer."""
        self._last_seen_ns = dict.fromkeys(self._followers, now_ns())
        SupervisedThread("watch over the ranks", self._watch, self._report_failure).start()

    def send_to_ranks(self, message: ToFollower, ranks: Collection[int] | None = None) -> None:
        """All of them, or these. Raises `RankLost`."""
        for rank, follower in self._followers.items():
            if ranks is None or rank in ranks:
                follower.link.send(message)

    def close(self, timeout_s: float) -> None:
        """They end when their link does; those that have not within the time are killed."""
        self._closing.set()
        for follower in self._followers.values():
            follower.link.close()
        end_processes([f.process for f in self._followers.values()], timeout_s)

    def _report_failure(self, failure: Exception) -> None:
        assert self._failed is not None
        if not self._closing.is_set():
            self._failed(failure)

    def _listen(self, rank: int, received: Callable[[int, ToLeader], None]) -> None:
        link = self._followers[rank].link
        while not self._closing.is_set():
            try:
                message = link.receive()
            except RankLost as lost:
                if self._closing.is_set():
                    return
                raise RankLost(f"rank {rank}: {lost}") from lost
            self._last_seen_ns[rank] = now_ns()
            match message:
                case Pong():
                    pass
                case RankFailed(problem):
                    raise RankLost(f"rank {rank} failed: {problem}")
                case _:
                    received(rank, message)

    def _watch(self) -> None:
        while not self._closing.wait(self._silence_ns / NS_PER_S / LOOKS):
            for rank, last_seen_ns in self._last_seen_ns.items():
                if now_ns() - last_seen_ns > self._silence_ns:
                    raise RankLost(f"rank {rank} has not answered for too long")
            self.send_to_ranks(Ping())


def end_processes(processes: Sequence["subprocess.Popen[bytes]"], timeout_s: float) -> None:
    """Wait for processes that are to end; kill those that have not after `timeout_s`."""
    deadline_ns = now_ns() + int(timeout_s * NS_PER_S)
    for process in processes:
        try:
            process.wait(max(0.0, (deadline_ns - now_ns()) / NS_PER_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_follower(command: Sequence[str], patience_s: float) -> Follower:
    """Run a command with the number of its socket as the last word; it writes to the same log."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    return Follower(process, RankLink(ours, (TO_FOLLOWER, TO_LEADER), patience_s))


def link_to_leader(descriptor: int, patience_s: float) -> RankLink[ToLeader, ToFollower]:
    """The other end, in the process that was started."""
    return RankLink(socket.socket(fileno=descriptor), (TO_LEADER, TO_FOLLOWER), patience_s)


def meeting_place() -> str:
    """For `kernels.collectives`: a file in memory, which nothing is left of however the process
    ends. It stays open until then, as ranks come back to it when they part. Only this user can
    find it, and what the ranks then exchange stays on this host."""
    # The library would otherwise listen on whatever address the host's name has. It reads the
    # variable itself, here and in the processes started from here.
    os.putenv("GLOO_SOCKET_IFNAME", "lo")
    descriptor = os.memfd_create("tandem-ranks")
    return f"file:///proc/{os.getpid()}/fd/{descriptor}"
