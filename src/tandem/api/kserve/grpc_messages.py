"""Messages of the Open Inference Protocol over gRPC, as protobuf classes.

A table of names, numbers and types is all there is: no generated code, which would tie the versions
of protobuf that Tandem runs with to the one that generated it. The classes have a pool of their
own, so that a client's generated ones may live beside them.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "inference"
SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"
_FILE = "tandem_inference.proto"
_PARAMETERS = "parameters map InferParameter"
# Fields by message, each "name type [message]" by its number; a type that ends in * is repeated.
_MESSAGES: Final[dict[str, dict[int, str]]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {1: "live bool"},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {1: "ready bool"},
    "ModelReadyRequest": {1: "name string", 2: "version string"},
    "ModelReadyResponse": {1: "ready bool"},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {1: "name string", 2: "version string", 3: "extensions string*"},
    "ModelMetadataRequest": {1: "name string", 2: "version string"},
    "ModelMetadataResponse": {
        1: "name string",
        2: "versions string*",
        3: "platform string",
        4: "inputs message* ModelMetadataResponse.TensorMetadata",
        5: "outputs message* ModelMetadataResponse.TensorMetadata",
    },
    "ModelMetadataResponse.TensorMetadata": {
        1: "name string",
        2: "datatype string",
        3: "shape int64*",
    },
    "InferParameter": {
        1: "bool_param bool",
        2: "int64_param int64",
        3: "string_param string",
        4: "double_param double",
        5: "uint64_param uint64",
    },
    "InferTensorContents": {
        1: "bool_contents bool*",
        2: "int_contents int32*",
        3: "int64_contents int64*",
        4: "uint_contents uint32*",
        5: "uint64_contents uint64*",
        6: "fp32_contents float*",
        7: "fp64_contents double*",
        8: "bytes_contents bytes*",
    },
    "ModelInferRequest": {
        1: "model_name string",
        2: "model_version string",
        3: "id string",
        4: _PARAMETERS,
        5: "inputs message* ModelInferRequest.InferInputTensor",
        6: "outputs message* ModelInferRequest.InferRequestedOutputTensor",
        7: "raw_input_contents bytes*",
    },
    "ModelInferRequest.InferInputTensor": {
        1: "name string",
        2: "datatype string",
        3: "shape int64*",
        4: _PARAMETERS,
        5: "contents message InferTensorContents",
    },
    "ModelInferRequest.InferRequestedOutputTensor": {1: "name string", 2: _PARAMETERS},
    "ModelInferResponse": {
        1: "model_name string",
        2: "model_version string",
        3: "id string",
        4: _PARAMETERS,
        5: "outputs message* ModelInferResponse.InferOutputTensor",
        6: "raw_output_contents bytes*",
    },
    "ModelInferResponse.InferOutputTensor": {
        1: "name string",
        2: "datatype string",
        3: "shape int64*",
        4: _PARAMETERS,
        5: "contents message InferTensorContents",
    },
    "ModelStreamInferResponse": {
        1: "error_message string",
        2: "infer_response message ModelInferResponse",
    },
}
# Of its fields one alone is set.
_ONE_OF: Final = {"InferParameter": "parameter_choice"}
_Field = descriptor_pb2.FieldDescriptorProto


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=PACKAGE, syntax="proto3")
    made: dict[str, Any] = {}
    for name, fields in _MESSAGES.items():
        outer, _, own = name.rpartition(".")
        message = (made[outer].nested_type if outer else file.message_type).add(name=own)
        made[name] = message
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for number, said in fields.items():
            _add_field(message, name, number, said)
    return file


def _add_field(message: Any, owner: str, number: int, said: str) -> None:
    name, kind, *of = said.split()
    repeated = kind.endswith("*") or kind == "map"
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", 1, "key string")
        _add_field(entry, "", 2, f"value message {of[0]}")
        kind, of = "message", [f"{owner}.{entry.name}"]
    field.type = getattr(_Field, f"TYPE_{kind.removesuffix('*').upper()}")
    if of:
        field.type_name = f".{PACKAGE}.{of[0]}"
    if owner in _ONE_OF:
        field.oneof_index = 0


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message_class(name: str) -> Any:
    """The class of a message of the protocol."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ModelInferRequest = message_class("ModelInferRequest")
ModelInferResponse = message_class("ModelInferResponse")
ModelMetadataResponse = message_class("ModelMetadataResponse")
ModelReadyResponse = message_class("ModelReadyResponse")
ModelStreamInferResponse = message_class("ModelStreamInferResponse")
ServerLiveResponse = message_class("ServerLiveResponse")
ServerMetadataResponse = message_class("ServerMetadataResponse")
ServerReadyResponse = message_class("ServerReadyResponse")
