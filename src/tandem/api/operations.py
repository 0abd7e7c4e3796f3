"""One call as the OpenAPI document describes it, and the command line that makes it."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.api.schema_html import Schema


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


def operations_of(document: Mapping[str, Any]) -> Iterator[Operation]:
    """All calls of an OpenAPI document, in its order."""
    for path, methods in document["paths"].items():
        for method, fields in methods.items():
            guarded = bool(fields.get("security", document.get("security")))
            yield Operation(method.upper(), path, fields, guarded)


def curl(operation: Operation, base_url: str) -> str:
    """A command that makes the call; only for paths without parameters."""
    assert "{" not in operation.path
    parts = [f"curl {shlex.quote(base_url + operation.path)}"]
    if operation.guarded:
        parts.append('-H "Authorization: Bearer $TANDEM_API_KEY"')
    if operation.body:
        example = json.dumps(operation.body.get("example", {}), ensure_ascii=False)
        parts += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(example)}"]
    return " \\\n  ".join(parts)
