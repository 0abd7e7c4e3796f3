"""Request bodies of the Open Inference Protocol, and of the generate extension beside it.

A field that is null counts as absent.
"""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from tandem.api.body_fields import NonNegative, means
from tandem.api.kserve.tensors import Datatype
from tandem.api.other_fields import OtherFields
from tandem.api.requests import GenerationBody

_SAMPLING = means("Fields of a completion as a JSON object in a text, as Triton's vLLM backend.")
_EXCLUDES = means("false: each prompt stands before its answer. Default: true.")
_Words = str | list[str] | None
_BAD_WORDS = means("Words that the answer must not have; an empty one is none.")
_FINISH = means("false: leaves out how each answer ended.")
_Dimension = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_COUNT = means("false: leaves out how many tokens.")


class InputTensor(Struct, kw_only=True, forbid_unknown_fields=True):
    """Values of one name."""

    name: Annotated[
        str, means("text_input, sampling_parameters, or any plain field of a completion.")
    ]
    shape: Annotated[list[_Dimension], Meta(max_length=8)]
    datatype: Datatype
    parameters: Annotated[
        dict[str, Any] | None,
        means("binary_data_size: so many bytes behind the JSON are its values."),
    ] = None
    data: Annotated[list[Any] | None, means("Its values, flat or nested as the shape.")] = None


class RequestedOutput(Struct, kw_only=True, forbid_unknown_fields=True):
    """An output that is wanted."""

    name: str
    parameters: Annotated[
        dict[str, Any] | None, means("binary_data: its values stand behind the JSON, as bytes.")
    ] = None


class InferBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v2/models/{model}/infer"""

    other_fields: ClassVar[OtherFields] = OtherFields()

    id: Annotated[str | None, means("The answer repeats it.")] = None
    parameters: Annotated[
        dict[str, Any] | None,
        means(
            "Fields of a completion, and binary_data_output: all outputs as bytes unless they say "
            "otherwise."
        ),
    ] = None
    inputs: Annotated[list[InputTensor], Meta(min_length=1, description="text_input, and others.")]
    outputs: Annotated[list[RequestedOutput] | None, means("Default: all outputs.")] = None


class GenerateBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v2/models/{model}/generate"""

    text_input: Annotated[
        str | Annotated[list[str], Meta(min_length=1)], means("A prompt, or several.")
    ]
    id: Annotated[str | None, means("The answer repeats it.")] = None
    parameters: Annotated[
        dict[str, Any] | None, means("Further fields, as they may stand beside it, too.")
    ] = None
    sampling_parameters: Annotated[str | None, _SAMPLING] = None
    max_tokens: Annotated[
        NonNegative | None,
        means("Longest answer. Default: 16; what the context has left bounds it."),
    ] = None
    echo: Annotated[bool | None, means("true: as exclude_input_in_output false.")] = None
    add_special_tokens: Annotated[
        bool | None, means("Lets the tokenizer add its own, as a begin token. Default: true.")
    ] = None
    # TensorRT-LLM's clients send one as a text alone.
    bad_words: Annotated[_Words, _BAD_WORDS] = None  # type: ignore[assignment]
    stop_words: Annotated[_Words, means("As stop; an empty one is none.")] = None
    random_seed: Annotated[int | None, means("As seed.")] = None
    min_length: Annotated[NonNegative | None, means("As min_tokens.")] = None
    exclude_input_in_output: Annotated[bool | None, _EXCLUDES] = None
    return_finish_reason: Annotated[bool | None, _FINISH] = None
    return_num_input_tokens: Annotated[bool | None, _COUNT] = None
    return_num_output_tokens: Annotated[bool | None, _COUNT] = None
