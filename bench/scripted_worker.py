"""A worker that says what it is asked for without computing anything: all of a gateway's protocol,
none of a model. Run as a process of its own.

python bench/scripted_worker.py SETUP, a JSON file of `ScriptedSetup`
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from tandem.facts.blocks import CacheRoot
from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, KvGeometry
from tandem.facts.request import FinishReason
from tandem.live.channels.keys import KeyPair
from tandem.live.channels.sockets import ChannelLimits, NodeKeys, node_socket
from tandem.messages.cluster import PROTOCOL, Register, RegisterAgain, ToGateway
from tandem.messages.codec import TO_GATEWAY, TO_WORKER
from tandem.messages.router import LoadReported, TokensReported
from tandem.messages.worker import EmitTokens, RequestsAborted, RequestsArrived

REPORT_S = 0.1
BLOCKS = 1 << 20
# The only token that is ever drawn, and how the bundled model spells it: as no event does.
TOKEN, SPELLED = 1518, b"Noah"


class ScriptedSetup(msgspec.Struct):
    """`step_s` 0: a step as soon as the gateways have read the last ones."""

    gateways: list[str]
    worker_public: str
    worker_secret: str
    gateway_public: str
    step_s: float


@dataclass
class Line:
    """To one gateway: `left` are the tokens that each request still gets."""

    send: Callable[[ToGateway], None]
    socket: zmq.Socket[bytes]
    left: dict[str, int] = field(default_factory=dict)

    def read(self) -> None:
        while self.socket.poll(0):
            frame = self.socket.recv()
            message = TO_WORKER.decode(frame) if frame else None
            match message:
                case RequestsArrived(requests):
                    self.left |= {each.request_id: each.sampling.max_tokens for each in requests}
                case RequestsAborted(request_ids):
                    for request_id in request_ids:
                        self.left.pop(request_id, None)
                case RegisterAgain():
                    self.greet()

    def greet(self) -> None:
        export = KvExport("tandem-mini", "main", KvGeometry(8, 4, 64, 16, "float32"), BLOCKS, ())
        root = CacheRoot("tandem-mini", "main", b"none")
        self.send(
            Register(PROTOCOL, "0", "w0", "a", "both", Role.BOTH, True, root, export, 4096, 8192)
        )

    def step(self) -> None:
        """One token for each."""
        if not self.left:
            return
        request_ids = tuple(self.left)
        rows = len(request_ids)
        ended = [left == 1 for left in self.left.values()]
        reasons = tuple(FinishReason.LENGTH if end else None for end in ended)
        emission = EmitTokens(request_ids, (TOKEN,) * rows, reasons, (False,) * rows, (0,) * rows)
        self.send(TokensReported("w0", emission))
        for request_id in request_ids:
            self.left[request_id] -= 1
        if any(ended):
            self.left = {request_id: left for request_id, left in self.left.items() if left}


def line_to(context: zmq.Context[zmq.Socket[bytes]], setup: ScriptedSetup, gateway: str) -> Line:
    keys = NodeKeys(KeyPair(setup.worker_public, setup.worker_secret), setup.gateway_public)
    # Few messages lie in between: what is sent is what has been read.
    socket = node_socket(context, keys, ChannelLimits(high_water=16), b"w0/a/1")
    socket.connect(gateway)
    return Line(lambda message: socket.send(TO_GATEWAY.encode(message)), socket)


def main() -> None:
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ScriptedSetup)
    context = zmq.Context()
    lines = [line_to(context, setup, gateway) for gateway in setup.gateways]
    poller = zmq.Poller()
    for line in lines:
        poller.register(line.socket, zmq.POLLIN)
        line.greet()
    report_s = step_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s >= report_s:
            report_s = now_s + REPORT_S
            for line in lines:
                running = len(line.left)
                line.send(LoadReported("w0", running, 0, 0, running * 64, BLOCKS - running))
        busy = any(line.left for line in lines)
        due_s = min(report_s, step_s if busy else report_s)
        if now_s < due_s:
            poller.poll(math.ceil((due_s - now_s) * 1000))
        for line in lines:
            line.read()
        if time.monotonic() >= step_s:
            step_s = time.monotonic() + setup.step_s
            for line in lines:
                line.step()


if __name__ == "__main__":
    main()
