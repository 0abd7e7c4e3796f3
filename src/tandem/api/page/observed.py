"""What the page, `tandem top` and scripts read of a running server, and what operators do to its
workers. Callers see their own requests; names of tenants and sessions are for operators."""

import asyncio
from collections.abc import Awaitable
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import VERSION, AppContext
from tandem.api.auth import OPERATOR
from tandem.api.errors import Refusal, Refused
from tandem.api.openapi import ApiEndpoint
from tandem.api.operator_endpoints import JSON, check_operator
from tandem.api.request_body import read_body
from tandem.api.requests import ApplyBody, DrainBody, WhatIfBody
from tandem.api.responses import StatusAnswer
from tandem.facts.errors import InvalidRequest
from tandem.facts.overview import (
    AppliedChange,
    Observed,
    Operated,
    Overview,
    QueueOverview,
    RequestDetail,
    RequestLine,
    WhatIfChange,
    WhatIfRun,
)

MOST_LINES = 500
# Later than all of them.
NO_BIN = 1 << 62
# Of a what-if that says nothing else.
LAST_S = 300.0
# A worker that has much to do is drained for longer; the call does not wait for it.
PATIENCE_S = 2.0


class OverviewAnswer(Struct, kw_only=True):
    """The server as it is now. `is_operator` says whether the caller may change its workers, and
    sees everybody's requests and names."""

    version: str
    is_operator: bool
    overview: Overview


class RequestList(Struct, kw_only=True):
    """Requests that run, and then those that ended last."""

    data: list[RequestLine]
    object: Literal["list"] = "list"


class RequestDetails(Struct, kw_only=True):
    """One request, or all choices of an answer or a call."""

    data: list[RequestDetail]
    object: Literal["list"] = "list"


class WhatIfRuns(Struct, kw_only=True):
    """What was recorded, the same simulated, and what would have come of the change."""

    data: list[WhatIfRun]
    object: Literal["list"] = "list"


def observed_endpoints(
    context: AppContext, observed: Observed, operated: Operated | None
) -> list[ApiEndpoint]:
    """The endpoints over what is `observed`; those of operators where workers can be changed."""

    async def overview(request: Request) -> Response:
        """Workers, queues, latencies over time and news of this server. With `since`, only bins of
        time from that one on. Operators see whose they are."""
        account = _account(context, request)
        seen = await observed.overview(account, _whole(request, "since", 0, NO_BIN))
        if account is not None:
            seen = msgspec.structs.replace(seen, queues=tuple(map(_nameless, seen.queues)))
        return _answered(
            OverviewAnswer(version=VERSION, is_operator=account is None, overview=seen)
        )

    async def list_requests(request: Request) -> Response:
        """The latest requests of the caller, of an operator everybody's."""
        account = _account(context, request)
        most = _whole(request, "limit", 100, MOST_LINES)
        lines = await observed.latest_requests(account, most)
        return _answered(RequestList(data=[_told(line, account) for line in lines]))

    async def explain_request(request: Request) -> Response:
        """What was decided about a request, on which figures, and when what happened: by the `id`
        of its response, or its X-Request-Id."""
        name: str = request.path_params["request"]
        account = _account(context, request)
        details = [
            msgspec.structs.replace(detail, line=_told(detail.line, account))
            for detail in await observed.request_details(account, name)
        ]
        if not details:
            problem = f"nothing is known of the request {name[:128]!r}: it may be too long ago"
            raise Refused(Refusal(404, problem, "request_not_found"))
        return _answered(RequestDetails(data=details))

    endpoints = [
        ApiEndpoint(
            "GET",
            "/tandem/overview",
            overview,
            "Observation",
            answer=OverviewAnswer,
            query={"since": {"type": "integer", "minimum": 0, "default": 0}},
        ),
        ApiEndpoint(
            "GET",
            "/tandem/requests",
            list_requests,
            "Observation",
            answer=RequestList,
            query={
                "limit": {"type": "integer", "minimum": 0, "maximum": MOST_LINES, "default": 100}
            },
        ),
        # Ids of a gateway's requests contain slashes.
        ApiEndpoint(
            "GET",
            "/tandem/requests/{request:path}",
            explain_request,
            "Observation",
            answer=RequestDetails,
        ),
    ]
    if operated is not None:
        endpoints += _operator_endpoints(context, observed, operated)
    return endpoints


def _operator_endpoints(
    context: AppContext, observed: Observed, operated: Operated
) -> list[ApiEndpoint]:
    async def drain_worker(request: Request) -> Response:
        """Gives a worker nothing new, and once it is empty another role, or its end. `draining`
        where that takes longer than a moment. For operators."""
        check_operator(request)
        with context.holding_body(request) as held:
            body = await read_body(request, DrainBody, context.config, held)
        worker = await _worker(request, observed)
        if body.leave and body.then_role:
            raise InvalidRequest("leave", "a worker that leaves takes no role; choose one of both")
        drained = operated.drain(worker, body.then_role or "", leave=bool(body.leave))
        return await _within_patience(drained, "draining")

    async def undrain_worker(request: Request) -> Response:
        """Gives a drained worker requests again. For operators."""
        check_operator(request)
        worker = await _worker(request, observed)
        return await _within_patience(operated.undrain(worker), "waiting")

    async def apply_settings(request: Request) -> Response:
        """Changes keys of the cluster file while the cluster runs, as `tandem apply` does: first
        without `seen`, for what would change; then with the number of that answer. For operators.
        """
        check_operator(request)
        with context.holding_body(request) as held:
            body = await read_body(request, ApplyBody, context.config, held)
        return _answered(await operated.apply(body.settings, body.seen))

    async def what_if(request: Request) -> Response:
        """Simulates the last minutes of the gateway's journal with something changed, beside what
        was recorded; takes seconds. For operators."""
        check_operator(request)
        with context.holding_body(request) as held:
            body = await read_body(request, WhatIfBody, context.config, held)
        change = WhatIfChange(
            LAST_S if body.last_s is None else body.last_s,
            body.routing or "",
            body.admission or "",
            body.workers or {},
            tuple(body.settings or ()),
        )
        return _answered(WhatIfRuns(data=await operated.what_if(change)))

    return [
        ApiEndpoint(
            "POST",
            "/tandem/apply",
            apply_settings,
            "Observation",
            body=ApplyBody,
            answer=AppliedChange,
        ),
        ApiEndpoint(
            "POST",
            "/tandem/what-if",
            what_if,
            "Observation",
            body=WhatIfBody,
            answer=WhatIfRuns,
        ),
        ApiEndpoint(
            "POST",
            "/tandem/workers/{worker}/drain",
            drain_worker,
            "Observation",
            body=DrainBody,
            answer=StatusAnswer,
        ),
        ApiEndpoint(
            "POST",
            "/tandem/workers/{worker}/undrain",
            undrain_worker,
            "Observation",
            answer=StatusAnswer,
        ),
    ]


# What goes on after its call was answered; the event loop itself keeps no task alive.
_going_on: set["asyncio.Future[None]"] = set()


async def _within_patience(done: Awaitable[None], meanwhile: str) -> Response:
    """Raises what `done` raises by then."""
    task = asyncio.ensure_future(done)
    _going_on.add(task)
    task.add_done_callback(_ended)
    await asyncio.wait({task}, timeout=PATIENCE_S)
    if not task.done():
        return _answered(StatusAnswer(status=meanwhile))
    task.result()
    return _answered(StatusAnswer(status="done"))


def _ended(task: "asyncio.Future[None]") -> None:
    _going_on.discard(task)
    if not task.cancelled():
        # Whoever asked may have gone.
        task.exception()


def _account(context: AppContext, request: Request) -> str | None:
    """Whose requests the caller sees: None for an operator, who sees everybody's."""
    if request.scope.get(OPERATOR):
        return None
    return context.caller_of(request).account


async def _worker(request: Request, observed: Observed) -> str:
    """That of the path. Raises `Refused` with 404 where there is none of that name."""
    name: str = request.path_params["worker"]
    known = [each.worker for each in (await observed.overview(None, NO_BIN)).workers]
    if name not in known:
        problem = f"no worker is called {name[:128]!r}; there are {', '.join(known)}"
        raise Refused(Refusal(404, problem, "worker_not_found", "worker"))
    return name


def _nameless(queue: QueueOverview) -> QueueOverview:
    return msgspec.structs.replace(queue, tenant="")


def _told(line: RequestLine, account: str | None) -> RequestLine:
    """Without the names of sessions where callers are not told apart."""
    return msgspec.structs.replace(line, session="") if account == "" else line


def _whole(request: Request, name: str, default: int, most: int) -> int:
    """A whole number of the query. Raises `InvalidRequest`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise InvalidRequest(name, f"must be a whole number from 0 to {most}")
    return int(text)


def _answered(answer: Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type=JSON)
