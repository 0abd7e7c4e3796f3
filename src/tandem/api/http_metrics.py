"""Counts of HTTP calls, as Prometheus knows them of most servers: by path, method and class of
status. Probes and pages that need no key are left out."""

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.api.access_log import CLIENT_GONE, INTERNAL_ERROR
from tandem.api.auth import LOOKED_AT_PATHS
from tandem.api.openapi import Handler

_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})


class HttpMetrics:
    """Calls whose answers have begun, or never will. Clients cannot add a series: paths are those
    of endpoints."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Counter(
            "http_requests",
            "HTTP calls by the status of their answers",
            ("handler", "method", "status"),
            registry=self._registry,
        )

    def call_answered(self, path: str | None, method: str, status: int) -> None:
        """One call, of the endpoint with this path (None: of none)."""
        shown = method if method in _METHODS else "other"
        self._calls.labels(path or "none", shown, f"{status // 100}xx").inc()

    def families(self) -> Iterable[Metric]:
        """All of them at this moment."""
        return self._registry.collect()


class HttpCounting:
    """The outermost layer: counts calls. `paths` are those of endpoints, by what handles them."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, paths: Mapping[Handler, str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in LOOKED_AT_PATHS:
            await self._app(scope, receive, send)
            return
        is_counted = False

        def count(status: int) -> None:
            nonlocal is_counted
            if not is_counted:
                path = self._paths.get(scope["endpoint"]) if "endpoint" in scope else None
                self._metrics.call_answered(path, scope["method"], status)
            is_counted = True

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        # A fault of ours is answered further out.
        status = INTERNAL_ERROR
        try:
            await self._app(scope, receive, counting_send)
            status = CLIENT_GONE
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        finally:
            count(status)
