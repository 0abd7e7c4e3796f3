"""GET endpoints: models, health, readiness, metrics and version."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import VERSION, AppContext
from tandem.api.openapi import ApiEndpoint
from tandem.api.responses import ModelEntry, ModelList, StatusAnswer, VersionAnswer

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


def probe_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """The endpoints that only read. `/health` says alive, `/ready` says may take requests."""

    async def list_models(_: Request) -> Response:
        """The served names, with the sizes of the model behind them."""
        entries = [_entry(context, name) for name in context.generator.card.names]
        return _json_response(ModelList(data=entries))

    async def retrieve_model(request: Request) -> Response:
        """One served name; it may contain slashes."""
        name: str = request.path_params["model"]
        context.check_model(name)
        return _json_response(_entry(context, name))

    async def health(_: Request) -> Response:
        """503 once the engine has died: only a restart helps. For liveness probes."""
        healthy = not context.generator.failed
        return _json_response(StatusAnswer(status="ok" if healthy else "failed"), _status(healthy))

    async def ready(_: Request) -> Response:
        """503 while no request can be served. For readiness probes and load balancers."""
        is_ready = context.generator.ready
        answer = StatusAnswer(status="ready" if is_ready else "not ready")
        return _json_response(answer, _status(is_ready))

    async def metrics(_: Request) -> Response:
        """Metrics in the Prometheus text format."""
        return Response(context.generator.metrics_text(), headers={"Content-Type": _EXPOSITION})

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
            path_parameters=("model",),
        ),
        ApiEndpoint("GET", "/health", health, "Server", answer=StatusAnswer),
        ApiEndpoint("GET", "/ready", ready, "Server", answer=StatusAnswer),
        ApiEndpoint("GET", "/metrics", metrics, "Server"),
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
    )


def _status(good: bool) -> int:
    return 200 if good else 503
