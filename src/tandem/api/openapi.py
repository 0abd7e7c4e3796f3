"""Endpoints of the HTTP API, and the OpenAPI document made of them and of the very types that read
and write the bodies."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import getdoc
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tandem.api import requests, responses
from tandem.api.auth import OPEN_PATHS
from tandem.api.kserve.answers import LivenessAnswer, ModelReadiness, ReadinessAnswer
from tandem.api.messages_requests import MessageCountBody
from tandem.api.responses_body import ConversationBody
from tandem.api.schema_rules import SchemaLimits, apply_rules
from tandem.api.unsupported_fields import unsupported_fields

_OPENAPI_VERSION = "3.1.0"
_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request holds what it must not",
    401: "The API key is missing or wrong",
    403: "A web page of another origin, or a caller who is no operator",
    404: "No such model, response, file or batch",
    408: "The request did not arrive in time",
    413: "The body is too large",
    415: "The body is not JSON",
    421: "The server has no such name",
    429: "Too busy; try again after Retry-After seconds",
    431: "The request head is too large",
    500: "The server failed",
    503: "The engine is not ready or failed, or the server is full",
}
# Only a call that may carry a body can meet these.
_BODY_ERRORS = {403, 413, 415, 429}
# These say with status 503 that it is not so.
_PROBES = (responses.StatusAnswer, LivenessAnswer, ReadinessAnswer, ModelReadiness)
_BINARY = "application/octet-stream"
Handler = Callable[[Request], Awaitable[Response]]
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One method of one path: the handler of its calls, and what the document says of them beside
    the handler's name and docstring.

    `path` is Starlette's, which may take parameters. `body` is the type of the JSON body, None
    for calls without one; `form` that of a `multipart/form-data`; `answer` that of the answer,
    None where it is a text of one of `text_types`; `events` those of a streamed answer's events,
    and `error` that of a refusal, in the stream as well. `query` has the JSON schemas of the
    parameters behind the path, by name. In both directions bytes may follow JSON where
    `has_binary`. `generates` says that calls do, though their answers never stream.
    """

    method: str
    path: str
    handler: Handler
    tag: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    events: Sequence[type[msgspec.Struct]] = ()
    error: type[msgspec.Struct] = responses.ErrorAnswer
    text_types: Sequence[str] = ("text/plain",)
    form: type[msgspec.Struct] | None = None
    query: Mapping[str, Document] = field(default_factory=dict)
    has_binary: bool = False
    generates: bool = False

    @property
    def is_load(self) -> bool:
        """Whether its calls generate, as those do whose answers may stream."""
        return self.generates or bool(self.events)

    @property
    def route(self) -> Route:
        return Route(self.path, self.handler, methods=[self.method])


def openapi_maker(
    title: str,
    version: str,
    endpoints: Sequence[ApiEndpoint],
    limits: SchemaLimits,
    *,
    has_keys: bool,
) -> Callable[[], Document]:
    """A function that gives the document, which is made when it is first asked for."""

    @cache
    def openapi() -> Document:
        document: Document = {
            "openapi": _OPENAPI_VERSION,
            "info": {"title": title, "version": version},
            "paths": {},
            "components": {"schemas": _schemas(endpoints, limits)},
        }
        for endpoint in endpoints:
            operations = document["paths"].setdefault(endpoint.route.path_format, {})
            operations[endpoint.method.lower()] = _operation(endpoint)
        if has_keys:
            _require_keys(document)
        return document

    return openapi


def document_route(openapi: Callable[[], Document]) -> Route:
    """GET /openapi.json. Under a prefix that the application is mounted at, clients are told so."""

    async def show_document(request: Request) -> Response:
        document, prefix = openapi(), request.scope.get("root_path", "").rstrip("/")
        return JSONResponse({**document, "servers": [{"url": prefix}]} if prefix else document)

    return Route("/openapi.json", show_document)


def _operation(endpoint: ApiEndpoint) -> Document:
    name = getattr(endpoint.handler, "__name__", "")
    operation: Document = {
        "tags": [endpoint.tag],
        "summary": name.replace("_", " ").title(),
        "description": getdoc(endpoint.handler) or "",
        "operationId": _operation_id(name, endpoint),
    }
    parameters = [_path_parameter(each) for each in endpoint.route.param_convertors]
    parameters += [{"name": n, "in": "query", "schema": s} for n, s in endpoint.query.items()]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        example = requests.EXAMPLES[endpoint.body.__name__]
        media = {"schema": _reference(endpoint.body), "example": example}
        content: Document = {"application/json": media}
        if endpoint.has_binary:
            content[_BINARY] = {}
        operation["requestBody"] = {"required": True, "content": content}
    if endpoint.form is not None:
        form = {"multipart/form-data": {"schema": _reference(endpoint.form)}}
        operation["requestBody"] = {"required": True, "content": form}
    operation["responses"] = _responses(endpoint)
    return operation


def _operation_id(name: str, endpoint: ApiEndpoint) -> str:
    words = f"{name}{endpoint.route.path_format}"
    letters = "".join(each if each.isalnum() or each == "_" else "_" for each in words)
    return f"{letters}_{endpoint.method.lower()}"


def _responses(endpoint: ApiEndpoint) -> Document:
    error = {"application/json": {"schema": _reference(endpoint.error)}}
    if endpoint.answer is None:
        texts: Document = {kind: {} for kind in endpoint.text_types}
        whole: Document = {"200": {"description": "Successful Response", "content": texts}}
        if endpoint.route.param_convertors:
            whole["404"] = {"description": "There is none of that name", "content": error}
        return whole
    content: Document = {"application/json": {"schema": _reference(endpoint.answer)}}
    if endpoint.has_binary:
        content[_BINARY] = {}
    if endpoint.events:
        content["text/event-stream"] = {"schema": _server_sent(endpoint)}
    answers: Document = {"200": {"description": "OK", "content": content}}
    for status, meaning in _ERRORS.items():
        if endpoint.method == "POST" or status not in _BODY_ERRORS:
            answers[str(status)] = {"description": meaning, "content": error}
    if endpoint.answer in _PROBES:
        answers["503"] = {"description": "Not now", "content": content}
    return answers


def _path_parameter(name: str) -> Document:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _schemas(endpoints: Sequence[ApiEndpoint], limits: SchemaLimits) -> Document:
    """Of all bodies and answers, by name."""
    read = [kind for each in endpoints for kind in (each.body, each.form) if kind is not None]
    answers = [each.answer for each in endpoints if each.answer is not None]
    written = [kind for each in endpoints for kind in (*each.events, each.error)]
    named = dict.fromkeys((*read, *answers, *written))
    _, types = msgspec.json.schema_components(named, ref_template=_REF)
    for body in read:
        if issubclass(body, requests.GenerationBody | ConversationBody | MessageCountBody):
            types[body.__name__]["properties"] |= unsupported_fields(body)
    apply_rules(types, limits)
    return types


def _require_keys(document: Document) -> None:
    document["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "anthropicKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    # Either will do.
    document["security"] = [{"key": []}, {"anthropicKey": []}]
    for path in OPEN_PATHS & document["paths"].keys():
        for operation in document["paths"][path].values():
            operation["security"] = []


def _server_sent(endpoint: ApiEndpoint) -> Document:
    """One event of a stream: JSON as text, and at last the word [DONE] where events have no names
    that tell."""
    payload = {"anyOf": [_reference(each) for each in (*endpoint.events, endpoint.error)]}
    json_text = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": payload,
    }
    done = [{"const": "[DONE]"}] if endpoint.error is responses.ErrorAnswer else []
    data = {"anyOf": [*done, json_text]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _reference(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=struct.__name__)}
