"""Answers of the Open Inference Protocol, and of the generate extension beside it."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

# A model here has one version, which nobody need name.
VERSION = "1"


class InferenceError(Struct, kw_only=True):
    """Any refused call."""

    error: str


class LivenessAnswer(Struct, kw_only=True):
    live: bool


class ReadinessAnswer(Struct, kw_only=True):
    ready: bool


class ModelReadiness(Struct, kw_only=True):
    name: str
    ready: bool


class ServerMetadata(Struct, kw_only=True):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Struct, kw_only=True):
    """In a shape -1 stands for any number."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Struct, kw_only=True):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(Struct, kw_only=True):
    """Its values stand in `data`, or as bytes behind the JSON: then `parameters` say how many."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class InferAnswer(Struct, kw_only=True):
    """POST /v2/models/{model}/infer"""

    model_name: str
    model_version: str = VERSION
    id: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    outputs: list[OutputTensor]


class GenerateAnswer(Struct, kw_only=True):
    """POST /v2/models/{model}/generate: the outputs under their own names, as lists where there are
    several answers. An event of a stream has what came since the last; how it ended, the last."""

    model_name: str
    model_version: str = VERSION
    id: str | UnsetType = UNSET
    text_output: str | list[str] | UnsetType = UNSET
    finish_reason: str | list[str] | UnsetType = UNSET
    num_input_tokens: int | list[int] | UnsetType = UNSET
    num_output_tokens: int | list[int] | UnsetType = UNSET
