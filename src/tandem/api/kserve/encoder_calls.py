"""An encoder as a model of the Open Inference Protocol: texts in, their vectors out, or the scores
of its labels where it has any."""

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.encoding import MOST_TEXTS, encoder_call
from tandem.api.encoding_bodies import EncoderBody
from tandem.api.kserve.answers import InferAnswer, OutputTensor, TensorMetadata
from tandem.api.kserve.fields import TEXT_INPUT
from tandem.api.kserve.reading import BINARY_TYPE, HEADER_LENGTH, InferenceCall, read_infer_call
from tandem.api.request_body import body_of
from tandem.api.whole_response import CHUNK_BYTES, HeldResponse, WholeResponse
from tandem.facts.encoding import EncoderCard, Encoders, Numbers, Wanted
from tandem.facts.errors import InvalidRequest

_WANTED: Mapping[str, Wanted] = {"scores": "scores", "embedding": "vector"}


def encoder_metadata(card: EncoderCard) -> tuple[list[TensorMetadata], list[TensorMetadata]]:
    """Its inputs, of which it must have the first, and its outputs."""
    texts = TensorMetadata(name=TEXT_INPUT, datatype="BYTES", shape=[-1])
    numbers = [
        TensorMetadata(name=name, datatype="INT64", shape=[1])
        for name in ("truncate_prompt_tokens", "priority")
    ]
    outputs = [
        TensorMetadata(name=name, datatype="FP32", shape=[-1, columns])
        for name, columns in _columns(card).items()
    ]
    return [texts, *numbers], outputs


async def encoder_outputs(
    request: Request, context: AppContext, encoders: Encoders, model: str
) -> Response:
    """The answer to a call of this encoder. Raises `Refused` and `TandemError`."""
    with context.holding_body(request) as held:
        sent = await read_infer_call(request, model, context.config, held, MOST_TEXTS)
        call = encoder_call(request, context, encoders, held, model)
        body, names = _encoder_body(sent), _asked_outputs(sent, call.card)
        texts = await call.read(body, sent.texts, TEXT_INPUT)
        found = {name: (await call.encode(body, texts, _WANTED[name])).numbers for name in names}
        head, values = await held.run_off_loop(request, lambda: _written(sent, found))

    async def make(response: HeldResponse) -> list[bytes]:
        response.grow(len(head) + len(values))
        content = memoryview(head + values)
        return [bytes(content[at : at + CHUNK_BYTES]) for at in range(0, len(content), CHUNK_BYTES)]

    binary = {HEADER_LENGTH: str(len(head)), "Content-Type": BINARY_TYPE} if values else {}
    return WholeResponse(context.response_budget, make, lambda: binary)


def _columns(card: EncoderCard) -> dict[str, int]:
    """Its outputs, with how many numbers each has for a text."""
    scores = {} if card.head is None else {"scores": len(card.head.labels)}
    return {**scores, "embedding": card.features}


def _asked_outputs(sent: InferenceCall, card: EncoderCard) -> list[str]:
    """Those that the call names, or the first: each is computed on its own."""
    known = list(_columns(card))
    names = sent.outputs.names or known[:1]
    for name in names:
        if name not in known:
            problem = f"is no output of this model; it has {', '.join(known)}"
            raise InvalidRequest(f"output {name[:64]!r}", problem)
    return [name for name in known if name in names]


def _encoder_body(sent: InferenceCall) -> EncoderBody:
    if "model" in sent.said.said:
        raise InvalidRequest("model", "is said by the path")
    return body_of(sent.said.said, EncoderBody)


def _written(sent: InferenceCall, found: Mapping[str, list[Numbers]]) -> tuple[bytes, bytes]:
    """The JSON of the answer, and the bytes behind it."""
    outputs, behind = [], b""
    for name, numbers in found.items():
        rows = np.stack(numbers).astype("<f4")
        tensor = OutputTensor(name=name, datatype="FP32", shape=list(rows.shape))
        if sent.outputs.as_bytes(name):
            tensor.parameters = {"binary_data_size": rows.nbytes}
            behind += rows.tobytes()
        else:
            tensor.data = rows.ravel().tolist()
        outputs.append(tensor)
    answer_id = UNSET if sent.id is None else sent.id
    answer = InferAnswer(model_name=sent.model, id=answer_id, outputs=outputs)
    return msgspec.json.encode(answer), behind
