"""How many generating calls a server is answering."""

from dataclasses import dataclass

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(slots=True)
class ServerLoad:
    """`calls` are those that have arrived and whose answers are not sent to their end, whether they
    wait or run. A call may be several sequences."""

    calls: int = 0

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

        return answer
