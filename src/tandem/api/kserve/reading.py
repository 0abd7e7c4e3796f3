"""An inference call as it was sent, read and checked: JSON, with values as bytes behind it where
its header says so, or the flat body of the generate extension."""

from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from tandem.api.config import ApiConfig
from tandem.api.errors import Refusal, Refused
from tandem.api.intake import HeldBytes
from tandem.api.kserve.bodies import GenerateBody, InferBody, InputTensor
from tandem.api.kserve.fields import TEXT_INPUT, SaidFields
from tandem.api.kserve.tensors import Tensor, tensor_of_bytes, tensor_of_json
from tandem.api.request_body import body_bytes, body_of, parse_document
from tandem.api.unsupported_fields import unsupported
from tandem.facts.errors import InvalidRequest

# How long the JSON is, where bytes follow it.
HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"
_BINARY_SIZE, _BINARY_DATA, _BINARY_OUTPUT = "binary_data_size", "binary_data", "binary_data_output"
# Clients of this protocol mostly send none.
_MEDIA_TYPES = ("", "application/json", BINARY_TYPE)


@dataclass(frozen=True, slots=True)
class AskedOutputs:
    """The outputs that a call names (None: none, so all), and those that are wanted as bytes; with
    `all_binary` every one that `not_binary` has not."""

    names: list[str] | None = None
    binary: frozenset[str] = frozenset()
    not_binary: frozenset[str] = frozenset()
    all_binary: bool = False

    def as_bytes(self, name: str) -> bool:
        return name in self.binary or (self.all_binary and name not in self.not_binary)


@dataclass(slots=True)
class InferenceCall:
    """What a call says, whichever form it has. `generates` is that of the generate extension."""

    model: str
    said: SaidFields
    texts: list[str] = field(default_factory=list)
    id: str | None = None
    outputs: AskedOutputs = field(default_factory=AskedOutputs)
    generates: bool = False


async def read_infer_call(
    request: Request, model: str, config: ApiConfig, held: HeldBytes, most_texts: int
) -> InferenceCall:
    """A call of POST …/infer. Raises `Refused` and `InvalidRequest`."""
    _check_media_type(request)
    data = await body_bytes(request, config, held)
    json_bytes = _json_bytes(request, len(data))
    call = InferenceCall(model, SaidFields(config.max_nesting))
    await held.run_off_loop(
        request, lambda: _fill_from_infer(call, data, json_bytes, config, most_texts)
    )
    return call


async def read_generate_call(
    request: Request, model: str, config: ApiConfig, held: HeldBytes
) -> InferenceCall:
    """A call of POST …/generate. Raises `Refused` and `InvalidRequest`."""
    _check_media_type(request)
    data = await body_bytes(request, config, held)
    call = InferenceCall(model, SaidFields(config.max_nesting), generates=True)
    await held.run_off_loop(request, lambda: _fill_from_generate(call, data, config))
    return call


def _check_media_type(request: Request) -> None:
    """JSON or bytes, or nothing said: a web page that says nothing names its origin, for which it
    is refused. Raises `Refused` with 415."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in _MEDIA_TYPES:
        problem = f"the body must be declared as application/json or {BINARY_TYPE}, or not at all"
        raise Refused(Refusal(415, problem, "unsupported_media_type"))


def _json_bytes(request: Request, body_bytes: int) -> int:
    written = request.headers.get(HEADER_LENGTH)
    if written is None:
        return body_bytes
    length = int(written) if written.isascii() and written.isdecimal() and len(written) < 19 else -1
    if not 0 < length <= body_bytes:
        problem = f"must be 1 to {body_bytes}, as many as the body has bytes"
        raise InvalidRequest(HEADER_LENGTH, problem)
    return length


def _fill_from_infer(
    call: InferenceCall, data: bytes, json_bytes: int, config: ApiConfig, most_texts: int
) -> None:
    document = parse_document(data[:json_bytes], config.max_nesting)
    body = body_of(document, InferBody)
    parameters = dict(body.parameters or {})
    all_binary = _flag(parameters, _BINARY_OUTPUT, "parameters")
    call.id = body.id
    call.outputs = _asked_outputs(body, all_binary=all_binary)
    for tensor in _tensors(body.inputs, memoryview(data)[json_bytes:]):
        if tensor.name == TEXT_INPUT:
            call.texts = tensor.texts(most_texts)
        else:
            call.said.add_tensor(tensor)
    if not call.texts:
        raise InvalidRequest(TEXT_INPUT, "is missing from the inputs")
    call.said.add_all(parameters)


def _fill_from_generate(call: InferenceCall, data: bytes, config: ApiConfig) -> None:
    document = parse_document(data, config.max_nesting)
    body = body_of(document, GenerateBody)
    if body.model not in (None, call.model):
        raise InvalidRequest("model", "is not that of the path")
    call.id = body.id
    call.texts = [body.text_input] if isinstance(body.text_input, str) else body.text_input
    own = ("model", "id", TEXT_INPUT, "parameters")
    call.said.add_all({name: value for name, value in document.items() if name not in own})
    call.said.add_all(body.parameters or {})


def _tensors(inputs: list[InputTensor], behind: memoryview) -> list[Tensor]:
    tensors, at, seen = [], 0, set()
    for each in inputs:
        name = each.name
        if name in seen:
            raise InvalidRequest(f"input {name[:64]!r}", "is there twice")
        seen.add(name)
        parameters = dict(each.parameters or {})
        size = parameters.pop(_BINARY_SIZE, None)
        _check_none(parameters, f"input {name[:64]!r}")
        if (size is None) == (each.data is None):
            problem = f"must have either data or the parameter {_BINARY_SIZE}"
            raise InvalidRequest(name[:64], problem)
        if each.data is not None:
            tensors.append(tensor_of_json(name[:64], each.datatype, each.shape, each.data))
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidRequest(name[:64], f"has a {_BINARY_SIZE} that is no number of bytes")
        if at + size > len(behind):
            problem = f"has a {_BINARY_SIZE} of {size}, and {len(behind) - at} bytes follow"
            raise InvalidRequest(name[:64], problem)
        raw = bytes(behind[at : at + size])
        tensors.append(tensor_of_bytes(name[:64], each.datatype, each.shape, raw))
        at += size
    if at != len(behind):
        raise InvalidRequest("inputs", f"have {at} bytes, and {len(behind)} follow the JSON")
    return tensors


def _asked_outputs(body: InferBody, *, all_binary: bool) -> AskedOutputs:
    binary: set[str] = set()
    not_binary: set[str] = set()
    for each in body.outputs or ():
        parameters = dict(each.parameters or {})
        where = f"output {each.name[:64]!r}"
        if _BINARY_DATA in parameters:
            wants = _flag(parameters, _BINARY_DATA, where)
            (binary if wants else not_binary).add(each.name)
        _check_none(parameters, where)
    names = [each.name for each in body.outputs] if body.outputs else None
    return AskedOutputs(names, frozenset(binary), frozenset(not_binary), all_binary)


def _flag(parameters: dict[str, Any], name: str, where: str) -> bool:
    value = parameters.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(where, f"have a {name} that is neither true nor false")
    return bool(value)


def _check_none(parameters: dict[str, Any], where: str) -> None:
    for name, value in parameters.items():
        if value is not None:
            raise unsupported(f"{where}: parameter {name[:64]!r}", "is not supported")
