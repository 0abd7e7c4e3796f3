"""The front door, put together: routes, layers around them, and every error in one shape."""

from http import HTTPStatus

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.answer_budget import AnswerBudget
from tandem.api.chat import chat_routes
from tandem.api.completions import completion_routes
from tandem.api.config import ApiConfig
from tandem.api.door import VERSION, FrontDoor
from tandem.api.guard import REQUEST_ID_HEADER, ApiKeys, OwnPages, RequestIds
from tandem.api.intake import Intake
from tandem.api.key_ring import KeyRing
from tandem.api.probes import probe_routes
from tandem.api.reference import reference_routes
from tandem.api.refusal import Refusal, Refused, refusal_of
from tandem.api.schema import schema_maker
from tandem.api.sse import ClientGone
from tandem.api.tokens import token_routes
from tandem.facts.errors import TandemError
from tandem.facts.serving import Generator
from tandem.text.model import TextModel

# Nobody reads it; the number is nginx's for a client that closed its connection.
_CLIENT_CLOSED_REQUEST = 499


def build_app(generator: Generator, text: TextModel, config: ApiConfig) -> FastAPI:
    """The OpenAI-shaped HTTP application over `generator`; an ASGI server runs it. Raises
    `InvalidConfiguration` for a file of keys that has none."""
    intake = Intake(config, generator.card.context_tokens)
    door = FrontDoor(generator, text, config, intake, AnswerBudget(config.answer_bytes))
    app = FastAPI(
        title="Tandem", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    for routes in (chat_routes, completion_routes, token_routes, probe_routes):
        app.include_router(routes(door))
    app.openapi = schema_maker(app, has_keys=config.has_keys)  # type: ignore[method-assign]
    app.include_router(reference_routes(app.openapi))
    # The layer added last is the outermost: an answer without a key has an id and CORS headers too.
    if config.has_keys:
        app.add_middleware(ApiKeys, ring=KeyRing(config))
    app.add_middleware(
        OwnPages, allowed_origins=config.allowed_origins, allowed_hosts=config.allowed_hosts
    )
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER],
        )
    app.add_middleware(RequestIds)
    for error, handler in (
        (Refused, _refused),
        (TandemError, _tandem_error),
        (HTTPException, _http_exception),
        (ClientGone, _client_gone),
        (Exception, _unexpected),
    ):
        app.add_exception_handler(error, handler)
    return app


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.refusal.response()


async def _tandem_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    return refusal_of(error).response()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    message = f"{request.method} {request.scope['path'][:256]}: {error.detail}"
    return Refusal(error.status_code, message, code, headers=error.headers or {}).response()


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, _: Exception) -> Response:
    """A fault of ours: the client gets an id to quote, the server's log gets the traceback."""
    request_id = request.scope.get("tandem.request_id", "")
    # The server closes the connection after a fault: who keeps connections in a pool must know.
    headers = {REQUEST_ID_HEADER: request_id, "Connection": "close"}
    return Refusal(500, "internal error", "internal_error", headers=headers).response()
