"""The HTTP application: endpoints, the middleware around them, every error as an answer; and the
endpoints that only read: models, health, readiness, metrics and version."""

from collections.abc import Mapping
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from tandem.api.access_log import AccessLog, LineSink, LostLines
from tandem.api.app_context import VERSION, AppContext
from tandem.api.auth import (
    REQUEST_ID_HEADER,
    ApiKeys,
    OriginCheck,
    RequestIds,
    operator_ring,
)
from tandem.api.batches.connect import Callees, connect_batches
from tandem.api.batches.metrics import batch_families
from tandem.api.batches.runner import BatchRunner
from tandem.api.call_metrics import CallMetrics
from tandem.api.chat import chat_endpoints
from tandem.api.completions import completion_endpoints
from tandem.api.config import ApiConfig
from tandem.api.docs_page.page import reference_route
from tandem.api.encoding import MOST_TEXTS, encoder_endpoints
from tandem.api.errors import REQUEST_ID, Refusal, Refused, error_response, refusal_of
from tandem.api.http_metrics import HttpCounting, HttpMetrics
from tandem.api.intake import Intake
from tandem.api.key_ring import KeyRing
from tandem.api.kserve.endpoints import inference_endpoints
from tandem.api.messages import messages_endpoints
from tandem.api.metrics_page import PAGE_TYPES, metrics_page
from tandem.api.openapi import ApiEndpoint, document_route, openapi_maker
from tandem.api.operator_endpoints import adapter_endpoints, prefix_cache_endpoint
from tandem.api.page.files import page_routes
from tandem.api.page.observed import observed_endpoints
from tandem.api.rate_limit_headers import NAMES as RATE_LIMIT_HEADERS
from tandem.api.response_cache import ResponseCache
from tandem.api.response_store import ResponseStore
from tandem.api.responses import (
    LoadAnswer,
    ModelEntry,
    ModelList,
    StatusAnswer,
    VersionAnswer,
)
from tandem.api.responses_api import responses_endpoints
from tandem.api.schema_rules import SchemaLimits
from tandem.api.server_load import ServerLoad
from tandem.api.streaming import ClientGone
from tandem.api.tokenization import token_endpoints
from tandem.api.tracing import CallTracer, LostSpans, Tracing
from tandem.api.whole_response import ResponseBudget
from tandem.facts.adapter import ServedAdapter
from tandem.facts.encoding import EncoderCard, Encoders
from tandem.facts.errors import TandemError
from tandem.facts.overview import Observed, Operated
from tandem.facts.serving import AdapterModels, Generator
from tandem.text.model import TextModel

# Nobody reads it; the number is nginx's for a client that closed its connection.
_CLIENT_CLOSED_REQUEST = 499


def build_app(
    generator: Generator,
    text: TextModel,
    config: ApiConfig,
    log: LineSink | None = None,
    ring: KeyRing | None = None,
    cache: ResponseCache | None = None,
    adapters: AdapterModels | None = None,
    load: ServerLoad | None = None,
    encoders: Encoders | None = None,
    batches: BatchRunner | None = None,
    observed: Observed | None = None,
    operated: Operated | None = None,
    tracer: CallTracer | None = None,
) -> Starlette:
    """The HTTP application over `generator`, in the shapes of OpenAI's and of Anthropic's API and
    of the Open Inference Protocol; an ASGI server runs it. A `log` gets a line for each call;
    `ring` and `cache` are those of `config`, for whoever changes them later; `adapters` are served
    as models of their own (None: there can be none); `load` counts calls; `encoders` are served
    beside the model; `batches` run their requests through the same endpoints (None: there are
    none). The page shows what is `observed`, whose workers can be `operated` (None: cannot). Spans
    of calls go to the `tracer`, if there is one.
    Raises `InvalidConfiguration` for a file of keys that has none."""
    intake = Intake(config, generator.card.context_tokens)
    load, ring = load or ServerLoad(), ring or KeyRing(config)
    operators = operator_ring(config)
    context = AppContext(
        generator,
        text,
        config,
        intake,
        ResponseBudget(config.answer_bytes),
        cache or ResponseCache(config.response_cache, generator.card.names[0]),
        ResponseStore(config.response_store, generator.card.names[0]),
        CallMetrics(generator.card.names[0]),
        adapters,
        encoders,
    )
    http_metrics = HttpMetrics()
    endpoints: list[ApiEndpoint] = [
        *chat_endpoints(context),
        *responses_endpoints(context),
        *completion_endpoints(context),
        *messages_endpoints(context),
        *token_endpoints(context),
        *inference_endpoints(context),
        *probe_endpoints(context, load, http_metrics, log, batches, tracer),
        prefix_cache_endpoint(context),
        *(adapter_endpoints(context, adapters) if adapters is not None else ()),
        *(encoder_endpoints(context, encoders) if encoders is not None else ()),
        *(observed_endpoints(context, observed, operated) if observed is not None else ()),
    ]
    if batches is not None:
        callees = Callees(endpoints, (ring, operators), load, _ERRORS, log, tracer)
        endpoints += connect_batches(batches, context, callees)
    paths = {each.handler: each.route.path_format for each in endpoints}
    limits = _schema_limits(context)
    openapi = openapi_maker("Tandem", VERSION, endpoints, limits, has_keys=config.has_keys)
    routes = [load.counting(each.route) if each.is_load else each.route for each in endpoints]
    app = Starlette(
        routes=[*routes, document_route(openapi), reference_route(openapi), *page_routes()],
        middleware=[
            Middleware(HttpCounting, metrics=http_metrics, paths=paths),
            *([] if tracer is None else [Middleware(Tracing, tracer=tracer, paths=paths)]),
            *_middleware(config, log, ring, operators),
        ],
        exception_handlers=_ERRORS,
    )
    app.router.redirect_slashes = False
    return app


def _schema_limits(context: AppContext) -> SchemaLimits:
    card, encoders = context.generator.card, context.encoders
    cards = [] if encoders is None else list(encoders.cards.values())
    return SchemaLimits(
        vocabulary_tokens=card.vocabulary_tokens,
        end_tokens=len(card.end_token_ids),
        max_choices=context.config.max_choices,
        max_scaling_samples=context.config.max_scaling_samples,
        empty_prompts=bool(context.text.tokenizer.encode("", add_special_tokens=True)),
        encoder_context_tokens=max((each.context_tokens for each in cards), default=0),
        encoder_vocabulary_tokens=max((each.vocabulary_tokens for each in cards), default=0),
        encoder_features=max((each.features for each in cards), default=0),
        most_texts=MOST_TEXTS,
    )


def _middleware(
    config: ApiConfig, log: LineSink | None, ring: KeyRing, operators: KeyRing
) -> list[Middleware]:
    """The outermost first: an answer without a key has an id and CORS headers too."""
    layers, content_bytes = list[Middleware](), config.log_content_bytes
    if log is not None:
        layers.append(Middleware(AccessLog, sink=log, content_bytes=content_bytes))
    layers.append(Middleware(RequestIds))
    if config.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=config.allowed_origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=[REQUEST_ID_HEADER, "Retry-After", *RATE_LIMIT_HEADERS],
            )
        )
    layers.append(
        Middleware(
            OriginCheck, allowed_origins=config.allowed_origins, allowed_hosts=config.allowed_hosts
        )
    )
    layers.append(Middleware(ApiKeys, ring=ring, operators=operators))
    return layers


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error_response(request.scope, error.refusal)


async def _tandem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    return error_response(request.scope, refusal_of(error))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    message = f"{request.method} {request.scope['path'][:256]}: {error.detail}"
    headers = dict(error.headers or {})
    if "Allow" in headers:
        headers["Allow"] = _allowed_methods(request)
    refusal = Refusal(error.status_code, message, code, headers=headers)
    return error_response(request.scope, refusal)


def _allowed_methods(request: Request) -> str:
    """Of all endpoints of a path: each has a route of its own, and knows of its method alone."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    found = [
        route.methods or () for route in routes if route.matches(request.scope)[0] != Match.NONE
    ]
    return ", ".join(sorted(method for methods in found for method in methods))


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, _: Exception) -> Response:
    """A fault of ours: the client gets an id to quote, the server's log gets the traceback."""
    request_id = request.scope.get(REQUEST_ID, "")
    # The server closes the connection after a fault: who keeps connections in a pool must know.
    headers = {REQUEST_ID_HEADER: request_id, "Connection": "close"}
    refusal = Refusal(500, "internal error", "internal_error", headers=headers)
    return error_response(request.scope, refusal)


_ERRORS: Mapping[Any, Any] = {
    Refused: _refused,
    TandemError: _tandem_error,
    HTTPException: _http_exception,
    ClientGone: _client_gone,
    Exception: _unexpected,
}


def probe_endpoints(
    context: AppContext,
    load: ServerLoad,
    http_metrics: HttpMetrics,
    log: LineSink | None = None,
    batches: BatchRunner | None = None,
    tracer: CallTracer | None = None,
) -> list[ApiEndpoint]:
    """The endpoints that only read. `/health` says alive, `/ready` says may take requests."""
    model_name = context.generator.card.names[0]
    lost_lines = None if log is None else LostLines(log, model_name)
    lost_spans = None if tracer is None else LostSpans(tracer, model_name)

    async def list_models(_: Request) -> Response:
        """The served names, with the sizes of the model behind them, adapters and encoders."""
        entries = [_entry(context, name) for name in context.generator.card.names]
        if context.adapters is not None:
            entries += [_adapter_entry(context, each) for each in context.adapters.served.values()]
        if context.encoders is not None:
            served = context.generator.card.names
            cards = context.encoders.cards
            entries += [_encoder_entry(cards[name]) for name in cards if name not in served]
        return _json_response(ModelList(data=entries))

    async def retrieve_model(request: Request) -> Response:
        """One served name; it may contain slashes."""
        name: str = request.path_params["model"]
        encoders = {} if context.encoders is None else context.encoders.cards
        if name not in context.generator.card.names and (card := encoders.get(name)):
            return _json_response(_encoder_entry(card))
        context.check_model(name)
        entry = _entry(context, name)
        if name not in context.generator.card.names and context.adapters is not None:
            found = context.adapters.named(name)
            entry = entry if found is None else _adapter_entry(context, found)
        return _json_response(entry)

    async def health(_: Request) -> Response:
        """503 once the engine has died: only a restart helps. For liveness probes."""
        broken = context.encoders is not None and context.encoders.failed
        healthy = not (context.generator.failed or broken)
        return _json_response(StatusAnswer(status="ok" if healthy else "failed"), _status(healthy))

    async def ping(request: Request) -> Response:
        """As /health, under the name that SageMaker asks for."""
        return await health(request)

    async def ready(_: Request) -> Response:
        """503 while no request can be served. For readiness probes and load balancers."""
        is_ready = context.generator.ready
        answer = StatusAnswer(status="ready" if is_ready else "not ready")
        return _json_response(answer, _status(is_ready))

    async def metrics(request: Request) -> Response:
        """Metrics in the Prometheus text format, or in OpenMetrics where `Accept` prefers that."""
        families = chain(
            context.generator.metric_families(),
            context.calls.families(),
            context.response_cache.metric_families(),
            context.response_store.metric_families(),
            () if context.encoders is None else context.encoders.metric_families(),
            () if batches is None else batch_families(batches, model_name),
            () if lost_lines is None else lost_lines.collect(),
            () if lost_spans is None else lost_spans.collect(),
        )
        text, content_type = metrics_page(
            families,
            prefix=context.config.metrics_prefix,
            accept=request.headers.get("Accept", ""),
            others=http_metrics.families(),
        )
        return Response(text, headers={"Content-Type": content_type, "Vary": "Accept"})

    async def server_load(_: Request) -> Response:
        """How many generating calls are being answered here, those included that wait."""
        return _json_response(LoadAnswer(server_load=load.calls))

    async def show_version(_: Request) -> Response:
        """The version of this server."""
        return _json_response(VersionAnswer(version=VERSION))

    return [
        ApiEndpoint("GET", "/v1/models", list_models, "Server", answer=ModelList),
        # Served names may contain slashes.
        ApiEndpoint(
            "GET",
            "/v1/models/{model:path}",
            retrieve_model,
            "Server",
            answer=ModelEntry,
        ),
        ApiEndpoint("GET", "/health", health, "Server", answer=StatusAnswer),
        ApiEndpoint("GET", "/ping", ping, "Server", answer=StatusAnswer),
        ApiEndpoint("GET", "/ready", ready, "Server", answer=StatusAnswer),
        ApiEndpoint("GET", "/metrics", metrics, "Server", text_types=PAGE_TYPES),
        ApiEndpoint("GET", "/load", server_load, "Server", answer=LoadAnswer),
        ApiEndpoint("GET", "/version", show_version, "Server", answer=VersionAnswer),
    ]


def _json_response(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _entry(context: AppContext, name: str) -> ModelEntry:
    card = context.generator.card
    return ModelEntry(
        id=name,
        created=card.created_s,
        max_model_len=card.context_tokens,
        vocabulary_tokens=card.vocabulary_tokens,
        root=card.names[0],
    )


def _adapter_entry(context: AppContext, served: ServedAdapter) -> ModelEntry:
    entry = _entry(context, served.name)
    entry.created = served.created_s
    # A path of the server is not for clients.
    entry.root = Path(served.adapter.path).name
    entry.parent = context.generator.card.names[0]
    return entry


def _encoder_entry(card: EncoderCard) -> ModelEntry:
    return ModelEntry(
        id=card.name,
        created=card.created_s,
        max_model_len=card.context_tokens,
        vocabulary_tokens=card.vocabulary_tokens,
        root=card.name,
    )


def _status(good: bool) -> int:
    return 200 if good else 503
