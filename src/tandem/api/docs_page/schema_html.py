"""JSON schemas as HTML: types in words with links, and one table a schema.

Every text of the schema is escaped here; what these functions return is safe HTML.
"""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

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
