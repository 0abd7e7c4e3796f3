"""Health of one process of a cluster over HTTP, for whoever would start it again (Kubernetes).

It is judged by the statuses of the gateways, not by itself: one that hangs would not answer, and
one that nobody reaches is of no use. Gateways that do not answer prove nothing against it.
"""

import asyncio
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tandem.api.config import ConnectionLimits
from tandem.live.gateway.operators import Operators
from tandem.live.http_server import bounded_server, listen
from tandem.live.launching.supervisor import Vanished
from tandem.messages.gateway import ClusterStatus

LOOK_S = 1.0
# Who asks here sends no more than a path.
LIMITS = ConnectionLimits(head_bytes=16 << 10, connections=64)


class MemberHealth:
    """Of the worker, or process of the shared pool, called `member`; `pid` is its process."""

    def __init__(self, member: str) -> None:
        self.joined = False
        self.problem = ""
        self.pid = 0
        self._member = member
        self._vanished = Vanished()

    def look(self, statuses: Sequence[ClusterStatus]) -> None:
        """Take the statuses of all gateways that answer at this moment."""
        known = any(self._member in status.members for status in statuses)
        if statuses:
            self.joined = known
        if known:
            self.problem = ""
        for _, reason in self._vanished.look({self._member: self.pid}, statuses):
            self.problem = f"the gateways gave it up: {reason}"


async def watch(health: MemberHealth, operators: Operators) -> None:
    """Looks at it until it is cancelled."""
    while True:
        health.look(await operators.statuses())
        await asyncio.sleep(LOOK_S)


async def serve_health(health: MemberHealth, port: int) -> None:
    """Answers on the port until it is cancelled: `/health` (503: only a new start helps) and
    `/ready` (503: no gateway knows it). Raises `InvalidConfiguration` when the port is taken."""

    async def alive(_: Request) -> JSONResponse:
        problem = health.problem
        return JSONResponse({"status": problem or "ok"}, 503 if problem else 200)

    async def ready(_: Request) -> JSONResponse:
        state = "ready" if health.joined else "not ready"
        return JSONResponse({"status": state}, 200 if health.joined else 503)

    routes = [Route("/health", alive), Route("/ready", ready)]
    server = bounded_server(Starlette(routes=routes), LIMITS, "warning")
    with listen("0.0.0.0", port) as listener:
        await server.serve(sockets=[listener])
