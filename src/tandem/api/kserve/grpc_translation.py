"""Messages of gRPC in the words of HTTP and back: a request as JSON with the values of its tensors
behind it, an answer out of the same. Raises `InvalidRequest` for what no message may hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tandem.api.kserve.answers import InferAnswer, ModelMetadata, OutputTensor
from tandem.api.kserve.grpc_messages import ModelInferResponse, ModelMetadataResponse
from tandem.api.kserve.reading import BINARY_TYPE, HEADER_LENGTH
from tandem.api.kserve.tensors import (
    DATATYPES,
    raw_numbers,
    raw_texts,
    tensor_of_bytes,
)
from tandem.facts.errors import InvalidRequest

# Where each type has its values in a message that does not hold them as bytes.
_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def infer_body(request: Any) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of the same call over HTTP, whose answer has its values as bytes."""
    values = [bytes(raw) for raw in request.raw_input_contents]
    if values and any(each.HasField("contents") for each in request.inputs):
        raise InvalidRequest("raw_input_contents", "must not be beside contents of an input")
    if values and len(values) != len(request.inputs):
        problem = f"has {len(values)} entries, and there are {len(request.inputs)} inputs"
        raise InvalidRequest("raw_input_contents", problem)
    if not values:
        values = [_raw_of(each) for each in request.inputs]
    document: dict[str, Any] = {
        "id": request.id or None,
        "parameters": {**_parameters(request.parameters), "binary_data_output": True},
        "inputs": [
            {
                "name": each.name,
                "datatype": each.datatype,
                "shape": list(each.shape),
                "parameters": {**_parameters(each.parameters), "binary_data_size": len(raw)},
            }
            for each, raw in zip(request.inputs, values, strict=True)
        ],
    }
    if request.outputs:
        document["outputs"] = [
            {"name": each.name, "parameters": _parameters(each.parameters)}
            for each in request.outputs
        ]
    encoded = msgspec.json.encode(document)
    length = (HEADER_LENGTH.lower().encode(), b"%d" % len(encoded))
    return [length, (b"content-type", BINARY_TYPE.encode())], b"".join((encoded, *values))


def infer_response(
    headers: Mapping[str, str], body: bytes, *, as_bytes: bool, parameters: Mapping[str, Any]
) -> Any:
    """The message of an answer over HTTP, its values `as_bytes` or as contents of the tensors."""
    json_bytes = int(headers.get(HEADER_LENGTH.lower(), len(body)))
    answer = msgspec.json.decode(body[:json_bytes], type=InferAnswer)
    said = {} if answer.parameters is msgspec.UNSET else answer.parameters
    response = ModelInferResponse(
        model_name=answer.model_name,
        model_version=answer.model_version,
        id="" if answer.id is msgspec.UNSET else answer.id,
    )
    for name, value in {**parameters, **said}.items():
        _set_parameter(response.parameters[name], value)
    at = json_bytes
    for tensor in answer.outputs:
        raw = b""
        if tensor.data is msgspec.UNSET:
            assert tensor.parameters is not msgspec.UNSET
            size = int(tensor.parameters["binary_data_size"])
            raw, at = body[at : at + size], at + size
        else:
            raw = _raw(tensor.name, tensor.datatype, tensor.data)
        _add_output(response, tensor, raw, as_bytes=as_bytes)
    return response


def metadata_response(metadata: ModelMetadata) -> Any:
    response = ModelMetadataResponse(
        name=metadata.name, versions=metadata.versions, platform=metadata.platform
    )
    for tensors, own in ((response.inputs, metadata.inputs), (response.outputs, metadata.outputs)):
        for each in own:
            tensors.add(name=each.name, datatype=each.datatype, shape=each.shape)
    return response


def _raw_of(tensor: Any) -> bytes:
    """The values of an input that has them as contents."""
    name, datatype = tensor.name[:64], tensor.datatype
    set_fields = [each.name for each, _ in tensor.contents.ListFields()]
    if datatype not in _CONTENTS:
        if datatype in DATATYPES:
            raise InvalidRequest(name, f"is {datatype}, which must be in raw_input_contents")
        # The application says which types there are.
        return b""
    wanted = _CONTENTS[datatype]
    if set_fields not in ([], [wanted]):
        raise InvalidRequest(name, f"is {datatype}, whose values must be in {wanted}")
    return _raw(name, datatype, getattr(tensor.contents, wanted))


def _raw(name: str, datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return raw_texts(each.encode() if isinstance(each, str) else each for each in values)
    return raw_numbers(name, datatype, list(values))


def _add_output(response: Any, tensor: OutputTensor, raw: bytes, *, as_bytes: bool) -> None:
    output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if as_bytes:
        response.raw_output_contents.append(raw)
        return
    values: Sequence[Any] = tensor_of_bytes(tensor.name, tensor.datatype, tensor.shape, raw).values
    if tensor.datatype == "BYTES":
        values = [str(each).encode() for each in values]
    getattr(output.contents, _CONTENTS[tensor.datatype]).extend(values)


def _parameters(parameters: Any) -> dict[str, Any]:
    return {
        name: getattr(value, kind)
        for name, value in parameters.items()
        if (kind := value.WhichOneof("parameter_choice"))
    }


def _set_parameter(parameter: Any, value: object) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)
