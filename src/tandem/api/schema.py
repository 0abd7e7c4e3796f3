"""What does /openapi.json say? Made from the very types that read and write the bodies."""

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from tandem.api import answers, bodies
from tandem.api.fields import foreign_fields
from tandem.api.guard import OPEN_PATHS
from tandem.api.meanings import EXAMPLES, meanings_of

_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request holds what it must not",
    401: "The API key is missing or wrong",
    403: "A web page of another origin",
    404: "No such model",
    408: "The request did not arrive in time",
    413: "The body is too large",
    415: "The body is not JSON",
    421: "The server has no such name",
    429: "Too busy; try again after Retry-After seconds",
    431: "The request head is too large",
    500: "The server failed",
    503: "The engine is not ready or failed",
}
# Only a call that carries a body can meet these.
_BODY_ERRORS = {403, 413, 415, 429}
_BODIES = (
    bodies.ChatBody,
    bodies.CompletionBody,
    bodies.TokenizeBody,
    bodies.DetokenizeBody,
)
_ANSWERS = (
    answers.ChatAnswer,
    answers.ChatChunk,
    answers.CompletionAnswer,
    answers.ModelEntry,
    answers.ModelList,
    answers.TokenizeAnswer,
    answers.DetokenizeAnswer,
    answers.StatusAnswer,
    answers.VersionAnswer,
    answers.ErrorAnswer,
)


def described(
    body: type[msgspec.Struct] | None,
    answer: type[msgspec.Struct],
    event: type[msgspec.Struct] | None = None,
) -> dict[str, Any]:
    """Route arguments that document a call: its body, its answer and the events of its stream."""
    content: dict[str, Any] = {"application/json": {"schema": _reference(answer)}}
    if event is not None:
        content["text/event-stream"] = {"schema": _server_sent(event)}
    error = {"application/json": {"schema": _reference(answers.ErrorAnswer)}}
    responses: dict[int | str, Any] = {200: {"description": "OK", "content": content}}
    for status, meaning in _ERRORS.items():
        if body is None and status in _BODY_ERRORS:
            continue
        responses[status] = {"description": meaning, "content": error}
    if answer is answers.StatusAnswer:
        responses[503] = {"description": "Not now", "content": content}
    extra: dict[str, Any] = {}
    if body is not None:
        media = {"schema": _reference(body), "example": EXAMPLES[body.__name__]}
        schema = {"application/json": media}
        extra["requestBody"] = {"required": True, "content": schema}
    return {"response_class": Response, "responses": responses, "openapi_extra": extra}


def path_parameter(name: str, route: dict[str, Any]) -> dict[str, Any]:
    """Adds a text parameter of the path to the arguments of a route."""
    parameter = {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    extra = {**route["openapi_extra"], "parameters": [parameter]}
    return {**route, "openapi_extra": extra}


def schema_maker(app: FastAPI, *, has_keys: bool) -> Callable[[], dict[str, Any]]:
    """The function that `app.openapi` becomes; it makes the schema once."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _make(app, has_keys)
        return app.openapi_schema

    return openapi


def _make(app: FastAPI, has_keys: bool) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    components = schema.setdefault("components", {})
    _, types = msgspec.json.schema_components((*_BODIES, *_ANSWERS), ref_template=_REF)
    for body in (bodies.ChatBody, bodies.CompletionBody):
        types[body.__name__]["properties"] |= foreign_fields()
    types["CompletionBody"]["properties"]["prompt"] = dict(bodies.PROMPT_SCHEMA)
    for name, type_schema in types.items():
        meanings = meanings_of(name)
        for field, field_schema in type_schema.get("properties", {}).items():
            if field in meanings:
                field_schema["description"] = meanings[field]
    components["schemas"] = types
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}]
        for path in OPEN_PATHS & schema["paths"].keys():
            for operation in schema["paths"][path].values():
                operation["security"] = []
    return schema


def _server_sent(event: type[msgspec.Struct]) -> dict[str, Any]:
    """One event of a stream: JSON as text, and at last the word [DONE]."""
    payload = {"anyOf": [_reference(event), _reference(answers.ErrorAnswer)]}
    json_text = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": payload,
    }
    data = {"anyOf": [{"const": "[DONE]"}, json_text]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _reference(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=struct.__name__)}
