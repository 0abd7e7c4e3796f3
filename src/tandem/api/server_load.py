"""How many generating calls a server is answering."""

import math
from dataclasses import dataclass

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.api.clock_and_entropy import monotonic_s


@dataclass(slots=True)
class ServerLoad:
    """`calls` are those that have arrived and whose answers are not sent to their end, whether they
    wait or run. A call may be several sequences. The last one ended at `ended_s`."""

    calls: int = 0
    ended_s: float = -math.inf

    @property
    def quiet_s(self) -> float:
        """For how long there has been none."""
        return 0.0 if self.calls else monotonic_s() - self.ended_s

    def counting(self, route: Route) -> Route:
        """The same route, whose calls count."""
        route.app = self._counted(route.app)
        return route

    def _counted(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self.calls += 1
            try:
                await app(scope, receive, send)
            finally:
                self.calls -= 1
                self.ended_s = monotonic_s()

        return answer
