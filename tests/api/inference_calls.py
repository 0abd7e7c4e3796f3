"""Calls of the Open Inference Protocol as clients of it make them over HTTP: bodies with values as
JSON or as bytes."""

import json
import struct
from typing import Any

INFER = "/v2/models/tiny/infer"


def tensor(name: str, datatype: str, *values: Any, shape: list[int] | None = None) -> dict:
    shape = [len(values)] if shape is None else shape
    return {"name": name, "datatype": datatype, "shape": shape, "data": list(values)}


def texts(*values: str) -> dict:
    return tensor("text_input", "BYTES", *values)


def raw_texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in values)


def binary_body(body: dict, *raw: bytes) -> tuple[dict[str, str], bytes]:
    """Headers and body of a call whose inputs have these values behind the JSON."""
    inputs = [
        {name: value for name, value in each.items() if name != "data"}
        | {"parameters": {"binary_data_size": len(values)}}
        for each, values in zip(body["inputs"], raw, strict=True)
    ]
    encoded = json.dumps(body | {"inputs": inputs}).encode()
    headers = {"Inference-Header-Content-Length": str(len(encoded))}
    return headers, encoded + b"".join(raw)


def columns(answer: dict) -> dict[str, list]:
    """The outputs of an answer in JSON, by name."""
    return {each["name"]: each["data"] for each in answer["outputs"]}


def events(text: str) -> list[dict]:
    return [json.loads(each.removeprefix("data: ")) for each in text.split("\n\n") if each]
