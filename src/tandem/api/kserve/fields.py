"""What an inference call may say beside its texts: the fields of a completion under their own
names, as tensors, as parameters or in the JSON object `sampling_parameters`; and the switches of
Triton's backends. Which fields there are, and of which type, `CompletionBody` alone says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import inspect

from tandem.api.kserve.answers import TensorMetadata
from tandem.api.kserve.tensors import Datatype, Tensor
from tandem.api.request_body import decode_json, nested_deeper
from tandem.api.requests import CompletionBody
from tandem.api.unsupported_fields import unsupported
from tandem.facts.errors import InvalidRequest

TEXT_INPUT = "text_input"
SAMPLING = "sampling_parameters"
OutputName = Literal["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"]
OUTPUTS: Mapping[OutputName, Datatype] = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
_EXCLUDES = "exclude_input_in_output"
_SWITCHES: Mapping[str, OutputName] = {
    "return_finish_reason": "finish_reason",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}
# What TensorRT-LLM's backend calls them.
_OTHER_NAMES = {"random_seed": "seed", "stop_words": "stop", "min_length": "min_tokens"}
# Of these, an empty text stands for none.
_WORDS = ("stop_words", "bad_words")
# Fields of a completion whose answer has no place in tensors, by the values that ask for nothing.
_WITHOUT_OUTPUT: Mapping[str, tuple[object, ...]] = {
    "logprobs": (False,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "stream_options": (),
}
# The same of what only Triton's backends have.
_TRITON: Mapping[str, tuple[object, ...]] = {
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "return_logprobs": (False,),
    "return_log_probs": (False,),
    "return_cumulative_logprob": (False,),
    "return_context_logits": (False,),
    "return_generation_logits": (False,),
    "sequence_id": (0, ""),
    "sequence_start": (False,),
    "sequence_end": (False,),
    "timeout": (0,),
}
# The last answer of a stream always says that it is the last.
_IGNORED = frozenset({"triton_enable_empty_final_response"})
_DATATYPES: tuple[tuple[type[inspect.Type], Datatype], ...] = (
    (inspect.BoolType, "BOOL"),
    (inspect.IntType, "INT64"),
    (inspect.FloatType, "FP32"),
    (inspect.StrType, "BYTES"),
)


@dataclass(frozen=True, slots=True)
class FieldTensor:
    """A field of a completion as a tensor. One that `is_list` takes several values, and with
    `takes_one` a value alone, too."""

    datatype: Datatype
    is_list: bool
    takes_one: bool


def _field_tensors() -> dict[str, FieldTensor]:
    body = inspect.type_info(CompletionBody)
    assert isinstance(body, inspect.StructType)
    found = {}
    for each in body.fields:
        kinds = _kinds(each.type)
        one = next((d for kind in kinds if (d := _datatype(kind))), None)
        lists = [
            inner
            for kind in kinds
            if isinstance(kind, inspect.ListType)
            for inner in _kinds(kind.item_type)
        ]
        several = next((d for kind in lists if (d := _datatype(kind))), None)
        if each.name not in ("model", "prompt", *_WITHOUT_OUTPUT) and (datatype := several or one):
            found[each.name] = FieldTensor(datatype, several is not None, one is not None)
    return found


def _kinds(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """The alternatives of a union, without what is said about them."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        return tuple(inner for each in kind.types for inner in _kinds(each))
    return (kind,)


def _datatype(kind: inspect.Type) -> Datatype | None:
    return next((name for each, name in _DATATYPES if isinstance(kind, each)), None)


FIELDS: Mapping[str, FieldTensor] = _field_tensors()


def input_metadata() -> list[TensorMetadata]:
    """Every input that a call may have; only the first it must."""
    switches = dict.fromkeys((_EXCLUDES, *_SWITCHES), FieldTensor("BOOL", False, True))
    return [
        TensorMetadata(name=TEXT_INPUT, datatype="BYTES", shape=[-1]),
        TensorMetadata(name=SAMPLING, datatype="BYTES", shape=[1]),
        *(
            TensorMetadata(name=name, datatype=each.datatype, shape=[-1 if each.is_list else 1])
            for name, each in {**FIELDS, **switches}.items()
        ),
    ]


def output_metadata() -> list[TensorMetadata]:
    return [
        TensorMetadata(name=name, datatype=datatype, shape=[-1])
        for name, datatype in OUTPUTS.items()
    ]


@dataclass(slots=True)
class SaidFields:
    """What a call says, by field, whichever way it says it."""

    max_nesting: int
    said: dict[str, object] = field(default_factory=dict)

    def add_tensor(self, tensor: Tensor) -> None:
        """An input. Raises `InvalidRequest`."""
        name = _OTHER_NAMES.get(tensor.name, tensor.name)
        fitting = FIELDS.get(name)
        known = (SAMPLING, _EXCLUDES, *_SWITCHES, *_WITHOUT_OUTPUT, *_TRITON)
        if fitting is None and name not in known:
            problem = f"is no input of this model; {TEXT_INPUT} is, and the fields of a completion"
            raise InvalidRequest(f"input {tensor.name[:64]!r}", problem)
        values = tensor.items() if fitting and fitting.is_list else tensor.scalar()
        self.add(tensor.name, values)

    def add_all(self, fields: Mapping[str, object]) -> None:
        for name, value in fields.items():
            self.add(name, value)

    def add(self, name: str, value: object) -> None:
        """Null says nothing. Raises `InvalidRequest`, also for what was said otherwise before."""
        if value is None or name in _IGNORED:
            return
        if name == SAMPLING:
            self._add_sampling(value)
            return
        if name in _WORDS:
            value = _words(value)
            if not value:
                return
        name = _OTHER_NAMES.get(name, name)
        fitting = FIELDS.get(name)
        if fitting is not None and fitting.datatype != "BYTES" and isinstance(value, str):
            value = _number(value)
        if fitting is not None and fitting.is_list and not fitting.takes_one:
            value = value if isinstance(value, list) else [value]
        if name in self.said and self.said[name] != value:
            raise InvalidRequest(name, "is said twice, with different values")
        self.said[name] = value

    def take_switch(self, name: str) -> bool | None:
        """A field that is not of a completion. Raises `InvalidRequest`."""
        value = self.said.pop(name, None)
        if value is not None and not isinstance(value, bool):
            raise InvalidRequest(name, "must be true or false")
        return value

    def take_outputs(self) -> tuple[OutputName, ...]:
        """Those that are given where none is asked for by its name."""
        left_out = {out for name, out in _SWITCHES.items() if self.take_switch(name) is False}
        return tuple(name for name in OUTPUTS if name not in left_out)

    def completion_fields(self) -> dict[str, object]:
        """What is left to be read as a completion. Raises `InvalidRequest` and `Refused` for what
        has no place in this protocol."""
        excludes = self.take_switch(_EXCLUDES)
        if excludes is not None:
            self.add("echo", not excludes)
        for name in ("prompt", "model"):
            if name in self.said:
                raise unsupported(name, f"is not taken here: the path and {TEXT_INPUT} say it")
        for name, neutral in (*_WITHOUT_OUTPUT.items(), *_TRITON.items()):
            if name in self.said and not any(_same(self.said[name], each) for each in neutral):
                why = "is not supported by this server"
                if name in _WITHOUT_OUTPUT:
                    why = "has no output in this protocol; /v1/completions has"
                elif name == "timeout":
                    why = "is not supported; say deadline_s, in seconds"
                raise unsupported(name, why)
        return {
            name: value
            for name, value in self.said.items()
            if name not in _WITHOUT_OUTPUT and name not in _TRITON
        }

    def _add_sampling(self, value: object) -> None:
        text = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not isinstance(text, str):
            raise InvalidRequest(SAMPLING, "must be a JSON object in a text")
        try:
            fields: Any = decode_json(text.encode())
        except ValueError as error:
            raise InvalidRequest(SAMPLING, f"is not JSON: {str(error)[:200]}") from error
        if not isinstance(fields, dict) or nested_deeper(fields, self.max_nesting):
            problem = f"must be a JSON object, nested at most {self.max_nesting} levels deep"
            raise InvalidRequest(SAMPLING, problem)
        if SAMPLING in fields:
            raise InvalidRequest(SAMPLING, "must not hold themselves")
        self.add_all(fields)


def _number(text: str) -> object:
    """As clients of Triton's vLLM backend send numbers; a text that is none stays one."""
    try:
        value = decode_json(text.encode())
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _words(value: object) -> object:
    given = value if isinstance(value, list) else [value]
    return [each for each in given if each != ""]


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) is isinstance(neutral, bool)


def asked_outputs(names: list[str]) -> tuple[OutputName, ...]:
    """Raises `InvalidRequest` for one that the model does not give."""
    for name in names:
        if name not in OUTPUTS:
            problem = f"is no output of this model; it has {', '.join(OUTPUTS)}"
            raise InvalidRequest(f"output {name[:64]!r}", problem)
    return tuple(name for name in OUTPUTS if name in names)


def completion_body(texts: list[str], fields: Mapping[str, object]) -> dict[str, object]:
    """A completion of these prompts in JSON's types."""
    return {**fields, "prompt": texts[0] if len(texts) == 1 else texts}
