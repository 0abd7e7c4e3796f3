"""GET /docs: the API for people, one page made of the OpenAPI document.

It loads nothing from anywhere: no scripts, no fonts, no styles but its own.
"""

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from tandem.api.operations import Operation, curl, operations_of
from tandem.api.reference_style import STYLE
from tandem.api.schema_html import (
    Schema,
    reference_html,
    references_html,
    schema_html,
    table_html,
    type_html,
)

_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_ERROR_SCHEMA = "ErrorAnswer"


def reference_routes(openapi: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page over the document that `openapi` gives."""
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def show_reference(request: Request) -> HTMLResponse:
        page = reference_page(openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers=_POLICY)

    return router


def reference_page(document: Mapping[str, Any], base_url: str) -> str:
    """The whole page; `base_url` stands in the examples."""
    operations = list(operations_of(document))
    schemas: Mapping[str, Schema] = document["components"]["schemas"]
    groups: dict[str, list[Operation]] = {}
    for operation in operations:
        groups.setdefault(operation.group, []).append(operation)
    shown = {operation.body_schema for operation in operations}
    title = f"{document['info']['title']} API"
    sections = [
        f"<h2>{escape(group)}</h2>"
        + "".join(_operation_html(operation, schemas, base_url) for operation in members)
        for group, members in groups.items()
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{_contents(groups)}"
        f"<main><h1>{escape(title)} <small>{escape(document['info']['version'])}</small></h1>"
        f"{_opening(base_url, guarded=any(o.guarded for o in operations))}{''.join(sections)}"
        f'<h2 id="errors">Errors</h2>{_errors_html(operations)}'
        f'<h2 id="schemas">Schemas</h2>'
        + "".join(
            f"<section><h3>{escape(name)}</h3>{schema_html(name, schema)}</section>"
            for name, schema in schemas.items()
            if name not in shown
        )
        + "</main></body></html>"
    )


def _opening(base_url: str, *, guarded: bool) -> str:
    key = "Calls need a key: <code>Authorization: Bearer KEY</code>." if guarded else ""
    return (
        f"<p>OpenAI clients use the base URL <code>{escape(base_url)}/v1</code>. {key} In a "
        "request, a field that is null counts as absent, and an unknown field is refused. For "
        f'programs: <a href="openapi.json">openapi.json</a>.</p>'
    )


def _contents(groups: Mapping[str, list[Operation]]) -> str:
    parts = []
    for group, members in groups.items():
        links = "".join(
            f'<li><a href="#{o.anchor}">{_method_html(o)} {escape(o.path)}</a></li>'
            for o in members
        )
        parts.append(f"<b>{escape(group)}</b><ul>{links}</ul>")
    more = '<ul><li><a href="#errors">Errors</a></li><li><a href="#schemas">Schemas</a></li></ul>'
    return f"<nav>{''.join(parts)}{more}</nav>"


def _operation_html(operation: Operation, schemas: Mapping[str, Schema], base_url: str) -> str:
    parts = [
        f'<section id="{operation.anchor}"><h3>{_method_html(operation)} '
        f"<code>{escape(operation.path)}</code></h3>",
        f"<p>{escape(operation.fields.get('description', ''))}</p>",
    ]
    if operation.body_schema:
        parts += [
            "<h4>Request</h4>",
            schema_html(operation.body_schema, _bodies(schemas, operation)),
        ]
    if parameters := operation.fields.get("parameters"):
        rows = [
            (
                f"<code>{escape(p['name'])}</code>",
                type_html(p["schema"]),
                f"in the {escape(p['in'])}",
            )
            for p in parameters
        ]
        parts += ["<h4>Request</h4>", table_html(("parameter", "type", ""), rows)]
    parts += ["<h4>Answer</h4>", _answers_html(operation)]
    if "{" not in operation.path:
        parts += ["<h4>Example</h4>", f"<pre>{escape(curl(operation, base_url))}</pre>"]
    return "".join([*parts, "</section>"])


def _bodies(schemas: Mapping[str, Schema], operation: Operation) -> Schema:
    # The schema's own description only repeats the method and path that stand above it.
    return {k: v for k, v in schemas[operation.body_schema].items() if k != "description"}


def _answers_html(operation: Operation) -> str:
    rows, errors = [], []
    for status, answer in operation.fields["responses"].items():
        kinds = [
            f"{escape(media)}: {references_html(content.get('schema', {}))}".rstrip(": ")
            for media, content in answer.get("content", {}).items()
        ]
        if any(_ERROR_SCHEMA in kind and "event-stream" not in kind for kind in kinds):
            errors.append(escape(str(status)))
            continue
        rows.append(
            (escape(str(status)), escape(answer.get("description", "")), "<br>".join(kinds))
        )
    line = f'<p><a href="#errors">Errors</a>: {", ".join(errors)}</p>' if errors else ""
    return table_html(("status", "", "content"), rows) + line


def _errors_html(operations: list[Operation]) -> str:
    meanings: dict[str, str] = {}
    for operation in operations:
        for status, answer in operation.fields["responses"].items():
            if _ERROR_SCHEMA in json.dumps(answer.get("content", {}).get("application/json")):
                meanings.setdefault(str(status), str(answer["description"]))
    rows = [(escape(status), escape(meanings[status])) for status in sorted(meanings)]
    link = reference_html(_ERROR_SCHEMA)
    return f"<p>Every error has the same body, {link}.</p>" + table_html(
        ("status", "meaning"), rows
    )


def _method_html(operation: Operation) -> str:
    return f'<span class="{operation.method.lower()}">{escape(operation.method)}</span>'
