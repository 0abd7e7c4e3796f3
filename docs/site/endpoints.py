"""A page of the HTTP API, out of the OpenAPI document that every server gives."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tandem.api.docs_page.page import documented_fields, type_html, unsupported_names
from tandem.config.environment import BUNDLED_MODEL
from tandem.text.model import TextModel
from tests.api.every_endpoint import build_whole_app

Schema = Mapping[str, Any]
HEAD = """\
# HTTP endpoints

Every call with the fields of its body, out of the OpenAPI document (`/openapi.json` of a server,
which shows the same at `/docs`). Adapters, encoders and batches are there where the server has
some. How they are used: [](../api.md). In a request, a field that is null counts as absent, and an
unknown field is refused.
"""


def endpoints_page() -> str:
    """Calls by subject, then the schemas that several of them name."""
    document = _document()
    schemas = document["components"]["schemas"]
    text, shown = HEAD, set[str]()
    subject = ""
    for method, path, operation in _operations(document):
        if operation["tags"][0] != subject:
            subject = operation["tags"][0]
            text += f"\n## {subject}\n"
        text += f"\n### {method} {path}\n\n{_text(operation['description'])}\n"
        for parameter in operation.get("parameters", ()):
            place = f"in the {parameter['in']}"
            text += f"\n`{parameter['name']}` {place}: {type_html(parameter['schema'])}\n"
        body = _named(operation.get("requestBody", {}))
        if body and body not in shown:
            shown.add(body)
            text += f'\n<a id="{body}"></a>\n\n{_fields(schemas[body])}'
        elif body:
            text += f"\nBody: {_link(body)}\n"
        if answer := _named(operation["responses"]["200"]):
            text += f"\nAnswer: {_link(answer)}\n"
    text += "\n## Schemas\n"
    for name, schema in schemas.items():
        if name not in shown:
            text += f'\n<a id="{name}"></a>\n\n### {name}\n\n'
            text += f"{_text(schema.get('description', ''))}\n\n{_fields(schema)}"
    return text


def _document() -> dict[str, Any]:
    """Of an application that has everything; nothing listens."""
    with tempfile.TemporaryDirectory() as folder:
        app = build_whole_app(TextModel.load(BUNDLED_MODEL), Path(folder))
        document: dict[str, Any] = TestClient(app).get("/openapi.json").json()
    return document


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """By subject, in the document's order."""
    found = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    subjects = list(dict.fromkeys(each["tags"][0] for _, _, each in found))
    yield from sorted(found, key=lambda entry: subjects.index(entry[2]["tags"][0]))


def _fields(schema: Schema) -> str:
    rows = ""
    for name, field in documented_fields(schema):
        needed = "**required**" if name in schema.get("required", ()) else _default(field)
        kind = type_html(field, nullable="default" not in field).replace("|", "&#124;")
        rows += f"| `{name}` | {kind} | {needed} | {_text(field.get('description', ''))} |\n"
    text = f"| field | type | | meaning |\n|---|---|---|---|\n{rows}\n" if rows else ""
    for support, meaning in (
        ("ignored", "Accepted without effect"),
        ("refused", "Not supported: a 400 unless the value asks for nothing"),
    ):
        if names := unsupported_names(schema, support):
            text += f"{meaning}: {', '.join(f'`{name}`' for name in names)}.\n\n"
    return text


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _named(holder: Schema) -> str:
    """The schema of a body or an answer."""
    content = holder.get("content", {})
    media = content.get("application/json") or content.get("multipart/form-data") or {}
    return str(media.get("schema", {}).get("$ref", "")).rpartition("/")[2]


def _link(name: str) -> str:
    return type_html({"$ref": f"#/components/schemas/{name}"})


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
