"""Connects batches with the server that answers their requests: its very endpoints, without the
layers that ask a stranger who he is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from starlette.applications import Starlette
from starlette.middleware import Middleware

from tandem.api.access_log import AccessLog, LineSink
from tandem.api.app_context import AppContext
from tandem.api.auth import RequestIds
from tandem.api.batches.batches_api import batch_endpoints
from tandem.api.batches.bodies import Endpoint
from tandem.api.batches.files_api import file_endpoints
from tandem.api.batches.line_call import LineCaller
from tandem.api.batches.lines import LineRules
from tandem.api.batches.records import BatchRecord
from tandem.api.batches.runner import BatchRunner, BatchServer
from tandem.api.encoding import card_of
from tandem.api.errors import Refused
from tandem.api.key_ring import KeyRing
from tandem.api.openapi import ApiEndpoint
from tandem.api.server_load import ServerLoad
from tandem.api.tracing import CallTracer, Tracing

_EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Callees:
    """What answers requests of batches: the `endpoints` of the server, and what makes answers of
    what they raise (`errors`). Who may come in has a key on one of the `rings`. Calls of whoever
    waits are counted by `load`; each call goes to the `log` and to the `tracer`, where there is
    one."""

    endpoints: Sequence[ApiEndpoint]
    rings: Sequence[KeyRing]
    load: ServerLoad
    errors: Mapping[Any, Any]
    log: LineSink | None = None
    tracer: CallTracer | None = None

    def admits(self, tenant: str, digest: str) -> bool:
        """Whether whoever had this key, of this tenant, would still come in."""
        ring, *others = self.rings
        return ring.admits(tenant, digest) or any(
            not other.is_open and other.admits("", digest) for other in others
        )


def connect_batches(
    runner: BatchRunner, context: AppContext, callees: Callees
) -> list[ApiEndpoint]:
    """From now on `runner` may run. Gives the endpoints of files and batches."""
    served = [
        each
        for each in callees.endpoints
        if each.method == "POST" and each.path in get_args(Endpoint)
    ]
    layers, content_bytes = list[Middleware](), context.config.log_content_bytes
    if callees.tracer is not None:
        named = {each.handler: each.path for each in served}
        layers.append(Middleware(Tracing, tracer=callees.tracer, paths=named))
    if callees.log is not None:
        layers.append(Middleware(AccessLog, sink=callees.log, content_bytes=content_bytes))
    app = Starlette(
        routes=[each.route for each in served],
        middleware=[*layers, Middleware(RequestIds)],
        exception_handlers=callees.errors,
    )

    def rules_of(record: BatchRecord) -> LineRules:
        return LineRules(
            record.endpoint,
            runner.store.config.lines,
            context.intake.body_bytes,
            partial(_model_problem, context, record.endpoint),
        )

    caller = LineCaller(app, callees.admits)
    runner.connect(BatchServer(caller, rules_of, lambda: callees.load.quiet_s))
    paths = frozenset(each.path for each in served)
    return [*file_endpoints(context, runner.store), *batch_endpoints(context, runner, paths)]


def _model_problem(context: AppContext, endpoint: str, model: str) -> str | None:
    try:
        if endpoint == _EMBEDDINGS and context.encoders is not None:
            card_of(context, context.encoders, model)
        else:
            context.check_model(model)
    except Refused as refused:
        return refused.refusal.message
    return None
