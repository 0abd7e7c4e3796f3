"""GET /docs: the reference page for people, which `page.html` makes of the OpenAPI document.

It loads nothing from anywhere: no scripts, no fonts, no styles but its own. The template escapes
every text of the document; what is marked as safe in it was escaped here.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tandem.api.unsupported_fields import SUPPORT

Schema = Mapping[str, Any]

_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
# The shape of errors, and those that calls of other APIs have.
_ERROR_SCHEMA = "ErrorAnswer"
_OTHER_ERRORS = {
    "MessageError": "of Anthropic's API",
    "InferenceError": "of the Open Inference Protocol",
}
_ERROR_SCHEMAS = (_ERROR_SCHEMA, *_OTHER_ERRORS)
# A bound beyond it only says how numbers are stored.
_TELLING_BOUND = 1 << 30
_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
}


def reference_route(openapi: Callable[[], dict[str, Any]]) -> Route:
    """The page over the document that `openapi` gives."""

    async def show_reference(request: Request) -> Response:
        page = reference_page(openapi(), str(request.base_url).rstrip("/"))
        return HTMLResponse(page, headers=_POLICY)

    return Route("/docs", show_reference)


def reference_page(document: Mapping[str, Any], base_url: str) -> str:
    """The whole page; `base_url` stands in the examples."""
    operations = list(_operations_of(document))
    groups: dict[str, list[Operation]] = {}
    for operation in operations:
        groups.setdefault(operation.group, []).append(operation)
    errors: dict[str, str] = {}
    for operation in operations:
        for status in operation.errors:
            errors.setdefault(status, operation.fields["responses"][status]["description"])
    return _template().render(
        title=f"{document['info']['title']} API",
        version=document["info"]["version"],
        base_url=base_url,
        needs_key=any(operation.guarded for operation in operations),
        groups=groups,
        errors=dict(sorted(errors.items())),
        error_schema=_ERROR_SCHEMA,
        other_errors=_OTHER_ERRORS,
        schemas=document["components"]["schemas"],
        # The first call with a body shows it.
        shown_above={each.body_schema: each.anchor for each in reversed(operations)},
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (
        code_html,
        unsupported_names,
        documented_fields,
        reference_html,
        references_html,
        type_html,
    )
    environment.globals |= {function.__name__: function for function in shown}
    return environment.get_template("page.html")


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
        return _json_content(self.fields.get("requestBody", {}))

    @property
    def body_schema(self) -> str:
        return _schema_name(self.body)

    @property
    def errors(self) -> list[str]:
        """The statuses whose body is that of every error of this API."""
        bodies = {status: _json_content(each) for status, each in self.fields["responses"].items()}
        return [status for status, body in bodies.items() if _schema_name(body) in _ERROR_SCHEMAS]

    def curl(self, base_url: str) -> str:
        """A command that makes the call; only for paths without parameters."""
        assert "{" not in self.path
        parts = [f"curl {shlex.quote(base_url + self.path)}"]
        if self.guarded:
            parts.append('-H "Authorization: Bearer $TANDEM_API_KEY"')
        if self.body:
            example = json.dumps(self.body.get("example", {}), ensure_ascii=False)
            parts += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(example)}"]
        return " \\\n  ".join(parts)


def _operations_of(document: Mapping[str, Any]) -> Iterator[Operation]:
    """All calls of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method, fields in methods.items():
            guarded = bool(fields.get("security", document.get("security")))
            yield Operation(method.upper(), path, fields, guarded)


def _json_content(holder: Schema) -> Schema:
    """The media type object of the JSON of a body or response; empty where there is none."""
    content: Schema = holder.get("content", {}).get("application/json", {})
    return content


def _schema_name(media: Schema) -> str:
    return str(media.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def documented_fields(schema: Schema) -> list[tuple[str, Schema]]:
    """The fields that mean something here, by name, the required ones first."""
    required = schema.get("required", ())
    fields = schema.get("properties", {}).items()
    own = [(name, field) for name, field in fields if SUPPORT not in field]
    return sorted(own, key=lambda entry: entry[0] not in required)


def unsupported_names(schema: Schema, support: str) -> list[str]:
    """The fields that are accepted without effect ("ignored") or "refused"."""
    fields = schema.get("properties", {}).items()
    return [name for name, field in fields if field.get(SUPPORT) == support]


def type_html(schema: Schema, *, nullable: bool = True) -> str:
    """The type in words. Null is left out unless `nullable`."""
    if "$ref" in schema:
        return reference_html(schema["$ref"])
    if "const" in schema:
        return code_html(schema["const"])
    if "enum" in schema:
        return " or ".join(code_html(v) for v in schema["enum"] if nullable or v is not None)
    if "anyOf" in schema:
        options = [type_html(option, nullable=nullable) for option in schema["anyOf"]]
        return " or ".join(option for option in dict.fromkeys(options) if option)
    kind = str(schema.get("type", "anything"))
    if kind == "null":
        return "null" if nullable else ""
    if kind == "array" and "prefixItems" in schema:
        places = (type_html(each, nullable=nullable) for each in schema["prefixItems"])
        return f"[{', '.join(places)}]"
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


def code_html(value: object) -> str:
    return f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"
