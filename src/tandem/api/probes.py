"""GET: what is served here, and how is it doing? Models, health, readiness, metrics, version."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.answers import ModelEntry, ModelList, StatusAnswer, VersionAnswer
from tandem.api.door import VERSION, FrontDoor
from tandem.api.schema import described, path_parameter
from tandem.api.tokens import json_response

_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


def probe_routes(door: FrontDoor) -> APIRouter:
    """The reading endpoints over `door`. `/health` says alive, `/ready` says may take requests."""
    router = APIRouter(tags=["Server"])

    @router.get("/v1/models", **described(None, ModelList))
    async def list_models() -> Response:
        """The served names, with the sizes of the model behind them."""
        entries = [_entry(door, name) for name in door.generator.card.names]
        return json_response(ModelList(data=entries))

    # Served names may contain slashes.
    @router.get("/v1/models/{model:path}", **path_parameter("model", described(None, ModelEntry)))
    async def retrieve_model(request: Request) -> Response:
        """One served name; it may contain slashes."""
        name: str = request.path_params["model"]
        door.check_model(name)
        return json_response(_entry(door, name))

    @router.get("/health", **described(None, StatusAnswer))
    async def health() -> Response:
        """503 once the engine has died: only a restart helps. For liveness probes."""
        healthy = not door.generator.failed
        return json_response(StatusAnswer(status="ok" if healthy else "failed"), _status(healthy))

    @router.get("/ready", **described(None, StatusAnswer))
    async def ready() -> Response:
        """503 while no request can be served. For readiness probes and load balancers."""
        is_ready = door.generator.ready
        answer = StatusAnswer(status="ready" if is_ready else "not ready")
        return json_response(answer, _status(is_ready))

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def metrics() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(door.generator.metrics_text(), headers={"Content-Type": _EXPOSITION})

    @router.get("/version", **described(None, VersionAnswer))
    async def show_version() -> Response:
        """The version of this server."""
        return json_response(VersionAnswer(version=VERSION))

    return router


def _entry(door: FrontDoor, name: str) -> ModelEntry:
    card = door.generator.card
    return ModelEntry(
        id=name,
        created=card.created_s,
        max_model_len=card.context_tokens,
        vocabulary_tokens=card.vocabulary_tokens,
    )


def _status(good: bool) -> int:
    return 200 if good else 503
