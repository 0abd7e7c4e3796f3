"""Writes deltas and answers as tensors of the Open Inference Protocol, or as the flat object of the
generate extension. An answer has no choices but columns: the texts of all, how they ended, and
their numbers of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from tandem.api.call import Call, Scaled, StreamUsage
from tandem.api.choice import ChoiceDelta
from tandem.api.errors import Refusal
from tandem.api.kserve.answers import GenerateAnswer, InferAnswer, OutputTensor
from tandem.api.kserve.fields import OUTPUTS, OutputName
from tandem.api.kserve.reading import BINARY_TYPE, HEADER_LENGTH, AskedOutputs
from tandem.api.kserve.tensors import raw_numbers, raw_texts
from tandem.api.responses import Usage
from tandem.api.whole_response import CHAR_BYTES, AnswerFrame, Transcript

# On each answer of a stream, as Triton says it.
FINAL = "triton_final_response"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is written: for which name of a model, with which id and outputs. One that
    `generates` is that of the generate extension; `as_event` is the only event of a stream."""

    model: str
    id: str | None
    outputs: tuple[OutputName, ...]
    asked: AskedOutputs
    generates: bool
    as_event: bool


@dataclass(slots=True)
class _Columns:
    """What there is to be written, each list in the order of the choices. Texts are JSON without
    quotes, in pieces."""

    texts: list[list[bytes]] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)


class InferenceWriter:
    """One answer; `echoes` open the text of each prompt's choices. Streams have one choice."""

    def __init__(self, call: Call, form: AnswerForm, echoes: Sequence[str]) -> None:
        self._call = call
        self._form = form
        self._echoes = [_encode(echo)[1:-1] for echo in echoes]
        self._columns = _Columns()
        self._streamed_tokens: int | None = None

    def delta_event(
        self, delta: ChoiceDelta, usage: StreamUsage, scaling: Scaled = UNSET
    ) -> bytes | None:
        is_first = self._streamed_tokens is None
        self._streamed_tokens = (self._streamed_tokens or 0) + len(delta.tokens)
        echo = self._echoes[0] if is_first else b""
        if not echo and self._call.is_silent(delta):
            return None
        columns = _Columns(texts=[[echo, _encode(delta.text)[1:-1]]])
        names: tuple[OutputName, ...] = ("text_output",)
        if delta.finish_reason is not None:
            columns.finish_reasons.append(delta.finish_reason)
            columns.input_tokens.append(len(self._call.prompts[0]))
            columns.output_tokens.append(self._streamed_tokens)
            names = self._form.outputs
        outputs = [name for name in names if name in self._form.outputs]
        is_last = delta.finish_reason is not None
        return _event(self._object(columns, outputs, [1], {FINAL: is_last}))

    def stream_end(self, usage: Usage, *, includes_usage: bool) -> bytes:
        return b""

    def error_event(self, refusal: Refusal) -> bytes:
        return _event(refusal.inference_body())

    @property
    def logprobs_lists(self) -> Sequence[str]:
        return ()

    @property
    def shared_bytes(self) -> int:
        return CHAR_BYTES * sum(map(len, self._echoes))

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        return ()

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        return 0

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        prompt = self._call.prompt_number(transcript.choice)
        columns = self._columns
        columns.texts.append([self._echoes[prompt], *transcript.text.pieces()])
        columns.finish_reasons.append(transcript.finish_reason or "abort")
        columns.input_tokens.append(len(self._call.prompts[prompt]))
        columns.output_tokens.append(transcript.token_count)
        return []

    def answer_frame(self, usage: Usage, scaling: Scaled = UNSET) -> AnswerFrame:
        call, form, columns = self._call, self._form, self._columns
        count, prompts, n = len(columns.texts), len(call.prompts), call.body.n or 1
        # Where answers are several to a prompt, and none was left out.
        shape = [prompts, n] if n > 1 and count == prompts * n else [count]
        behind: list[bytes] = []
        encoded = self._object(columns, form.outputs, shape, {}, behind)
        if form.as_event:
            call.headers["Content-Type"] = "text/event-stream"
            return [_event(encoded)], []
        if behind:
            call.headers["Content-Type"] = BINARY_TYPE
            call.headers[HEADER_LENGTH] = str(len(encoded))
        return [encoded, *behind], []

    def _object(
        self,
        columns: _Columns,
        outputs: Sequence[OutputName],
        shape: list[int],
        parameters: dict[str, Any],
        behind: list[bytes] | None = None,
    ) -> bytes:
        """As JSON; values that are wanted as bytes go `behind` it, if they may."""
        answer_id = UNSET if self._form.id is None else self._form.id
        if self._form.generates:
            values = {name: _alone(_values(columns, name)) for name in outputs}
            # Texts are JSON already, which its types cannot say.
            return _encode(GenerateAnswer(model_name=self._form.model, id=answer_id, **values))
        tensors = []
        for name in outputs:
            tensor = OutputTensor(name=name, datatype=OUTPUTS[name], shape=shape)
            if behind is not None and self._form.asked.as_bytes(name):
                raw = _raw(columns, name)
                tensor.parameters = {"binary_data_size": len(raw)}
                behind.append(raw)
            else:
                tensor.data = _values(columns, name)
            tensors.append(tensor)
        answer = InferAnswer(model_name=self._form.model, id=answer_id, outputs=tensors)
        if parameters:
            answer.parameters = parameters
        return _encode(answer)


def _values(columns: _Columns, name: OutputName) -> list[Any]:
    if name == "text_output":
        return [Raw(b"".join((b'"', *pieces, b'"'))) for pieces in columns.texts]
    if name == "finish_reason":
        return columns.finish_reasons
    return columns.input_tokens if name == "num_input_tokens" else columns.output_tokens


def _raw(columns: _Columns, name: OutputName) -> bytes:
    if name == "text_output":
        return raw_texts(b"".join(map(_utf8, pieces)) for pieces in columns.texts)
    values = _values(columns, name)
    if name == "finish_reason":
        return raw_texts(each.encode() for each in values)
    return raw_numbers(name, OUTPUTS[name], values)


def _utf8(piece: bytes) -> bytes:
    """A piece of JSON text as the text itself."""
    text: str = msgspec.json.decode(b'"%b"' % piece)
    return text.encode()


def _alone(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _event(encoded: bytes) -> bytes:
    return b"data: %b\n\n" % encoded
