"""GET /docs: the reference page for people, made of the OpenAPI document.

It loads nothing from anywhere: no scripts, no fonts, no styles but its own. Every text of the
document is escaped here.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tandem.api.foreign_fields import SUPPORT

Schema = Mapping[str, Any]

# A bound beyond it only says how numbers are stored.
_TELLING_BOUND = 1 << 30
_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
}


def schema_html(name: str, schema: Schema) -> str:
    """The description and the fields of one named schema, under its anchor."""
    own = {n: f for n, f in schema.get("properties", {}).items() if SUPPORT not in f}
    required = schema.get("required", ())
    ordered = sorted(own, key=lambda field: field not in required)
    rows = [_row(field, own[field], field in required) for field in ordered]
    meant = any("description" in field for field in own.values())
    parts = [f'<div id="{escape(name)}">']
    if "description" in schema:
        parts.append(f"<p>{escape(schema['description'])}</p>")
    parts += [table_html(("field", "type", "", "meaning")[: 4 if meant else 3], rows)]
    parts += [_foreign_html(schema, support) for support in ("ignored", "refused")]
    return "".join([*parts, "</div>"])


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of safe cells; cells beyond the heads are left out."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in row[: len(heads)]) + "</tr>" for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def type_html(schema: Schema, *, nullable: bool = True) -> str:
    """The type in words. Null is left out unless `nullable`: in a request it means absent."""
    if "$ref" in schema:
        return reference_html(schema["$ref"])
    if "const" in schema:
        return _code(schema["const"])
    if "enum" in schema:
        return " or ".join(_code(v) for v in schema["enum"] if nullable or v is not None)
    if "anyOf" in schema:
        options = [type_html(option, nullable=nullable) for option in schema["anyOf"]]
        return " or ".join(option for option in dict.fromkeys(options) if option)
    kind = str(schema.get("type", "anything"))
    if kind == "null":
        return "null" if nullable else ""
    if kind == "array":
        item = type_html(schema.get("items", {}), nullable=nullable)
        return f"list of ({item})" if " or " in item else f"list of {item}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_html(schema['additionalProperties'], nullable=nullable)}"
    bounds = [
        text.format(schema[key])
        for key, text in _BOUNDS.items()
        if key in schema and abs(schema[key]) <= _TELLING_BOUND
    ]
    return escape(" ".join([kind, ", ".join(bounds)]).strip())


def reference_html(reference: str) -> str:
    """A link to the anchor of a named schema."""
    name = escape(reference.rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


def references_html(schema: Schema) -> str:
    """Links to all schemas that an answer may hold, however deep they are named."""
    found = re.findall(r'"\$ref": "([^"]+)"', json.dumps(schema))
    return " or ".join(reference_html(reference) for reference in dict.fromkeys(found))


def _row(name: str, schema: Schema, required: bool) -> tuple[str, ...]:
    default = schema.get("default")
    presence = "<i>optional</i>" if default is None else f"<i>default</i> {_code(default)}"
    return (
        f"<code>{escape(name)}</code>",
        type_html(schema, nullable="default" not in schema),
        "<b>required</b>" if required else presence,
        escape(schema.get("description", "")),
    )


def _foreign_html(schema: Schema, support: str) -> str:
    names = [n for n, f in schema.get("properties", {}).items() if f.get(SUPPORT) == support]
    if not names:
        return ""
    listed = ", ".join(f"<code>{escape(name)}</code>" for name in names)
    title = {
        "ignored": "Accepted without effect",
        "refused": "Not supported: a 400 unless the value asks for nothing",
    }[support]
    return f"<details><summary>{title} ({len(names)})</summary><p>{listed}</p></details>"


def _code(value: object) -> str:
    return f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"


_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_ERROR_SCHEMA = "ErrorAnswer"


def reference_route(openapi: Callable[[], dict[str, Any]]) -> Route:
    """The page over the document that `openapi` gives."""

    async def show_reference(request: Request) -> Response:
        page = reference_page(openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers=_POLICY)

    return Route("/docs", show_reference)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as the document describes it. `guarded`: calls need a key."""

    method: str
    path: str
    fields: Mapping[str, Any]
    guarded: bool

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"{self.method} {self.path}".lower()).strip("-")

    @property
    def group(self) -> str:
        return str((self.fields.get("tags") or ["Other"])[0])

    @property
    def body(self) -> Schema:
        """The media type object of the JSON body; empty for a call without one."""
        content: Schema = self.fields.get("requestBody", {}).get("content", {})
        media: Schema = content.get("application/json", {})
        return media

    @property
    def body_schema(self) -> str:
        return str(self.body.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def reference_page(document: Mapping[str, Any], base_url: str) -> str:
    """The whole page; `base_url` stands in the examples."""
    operations = list(_operations_of(document))
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
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{_contents(groups)}"
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
        parts += ["<h4>Example</h4>", f"<pre>{escape(_curl(operation, base_url))}</pre>"]
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


def _operations_of(document: Mapping[str, Any]) -> Iterator[Operation]:
    """All calls of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method, fields in methods.items():
            guarded = bool(fields.get("security", document.get("security")))
            yield Operation(method.upper(), path, fields, guarded)


def _curl(operation: Operation, base_url: str) -> str:
    """A command that makes the call; only for paths without parameters."""
    assert "{" not in operation.path
    parts = [f"curl {shlex.quote(base_url + operation.path)}"]
    if operation.guarded:
        parts.append('-H "Authorization: Bearer $TANDEM_API_KEY"')
    if operation.body:
        example = json.dumps(operation.body.get("example", {}), ensure_ascii=False)
        parts += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(example)}"]
    return " \\\n  ".join(parts)
