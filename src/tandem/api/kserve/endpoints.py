"""The Open Inference Protocol (KServe's version 2) over HTTP, and Triton's generate extension: what
server and models are, and calls of these. An inference call is a completion of its texts
(`completions.py`), or what an encoder makes of them (`encoder_calls.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api import app_context
from tandem.api.app_context import AppContext
from tandem.api.completions import completion_spec
from tandem.api.errors import Refusal, Refused
from tandem.api.generation import GenerationSpec, answer_sent
from tandem.api.kserve.answer_writer import AnswerForm, InferenceWriter
from tandem.api.kserve.answers import (
    VERSION,
    GenerateAnswer,
    InferAnswer,
    InferenceError,
    LivenessAnswer,
    ModelMetadata,
    ModelReadiness,
    ReadinessAnswer,
    ServerMetadata,
)
from tandem.api.kserve.bodies import GenerateBody, InferBody
from tandem.api.kserve.encoder_calls import encoder_metadata, encoder_outputs
from tandem.api.kserve.fields import (
    TEXT_INPUT,
    asked_outputs,
    completion_body,
    input_metadata,
    output_metadata,
)
from tandem.api.kserve.reading import InferenceCall, read_generate_call, read_infer_call
from tandem.api.openapi import ApiEndpoint, Handler
from tandem.api.request_body import body_of
from tandem.api.requests import CompletionBody
from tandem.facts.encoding import EncoderCard
from tandem.facts.errors import InvalidRequest

_TAG = "Open Inference Protocol"
_EXTENSIONS = ["binary_tensor_data", "parameters", "generate"]
_ID_PREFIX = "infer-"


def inference_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """All endpoints under /v2 over `context`."""
    return [
        *_server_endpoints(context),
        *_call_endpoints(context),
        # Names of models may have slashes, so that what is under a model comes first.
        *_model_endpoints(context),
    ]


def _server_endpoints(context: AppContext) -> list[ApiEndpoint]:
    async def server_metadata(_: Request) -> Response:
        """Name and version of the server, and the extensions of the protocol that it has."""
        return _json_response(
            ServerMetadata(name="tandem", version=app_context.VERSION, extensions=_EXTENSIONS)
        )

    async def server_live(_: Request) -> Response:
        """503 once the engine has died: only a restart helps. Needs no key."""
        live = not (context.generator.failed or _encoders_failed(context))
        return _json_response(LivenessAnswer(live=live), _status(live))

    async def server_ready(_: Request) -> Response:
        """503 while no request can be served. Needs no key."""
        ready = context.generator.ready
        return _json_response(ReadinessAnswer(ready=ready), _status(ready))

    return [
        _reading("/v2", server_metadata, ServerMetadata),
        _reading("/v2/health/live", server_live, LivenessAnswer),
        _reading("/v2/health/ready", server_ready, ReadinessAnswer),
    ]


def _model_endpoints(context: AppContext) -> list[ApiEndpoint]:
    async def model_metadata(request: Request) -> Response:
        """Inputs and outputs of a model. All inputs but the first are fields of a completion."""
        model = _served_model(request, context)
        card = _encoder_card(context, model)
        inputs, outputs = (
            (input_metadata(), output_metadata()) if card is None else encoder_metadata(card)
        )
        return _json_response(
            ModelMetadata(
                name=model, versions=[VERSION], platform="tandem", inputs=inputs, outputs=outputs
            )
        )

    async def model_ready(request: Request) -> Response:
        """503 while the model cannot answer."""
        model = _served_model(request, context)
        of_encoder = _encoder_card(context, model) is not None
        ready = not _encoders_failed(context) if of_encoder else context.generator.ready
        return _json_response(ModelReadiness(name=model, ready=ready), _status(ready))

    return [
        *_of_model("GET", "/ready", model_ready, ModelReadiness),
        *_of_model("GET", "", model_metadata, ModelMetadata),
    ]


def _call_endpoints(context: AppContext) -> list[ApiEndpoint]:
    config = context.config

    def spec_of(call: InferenceCall, *, as_event: bool = False) -> GenerationSpec:
        names, all_outputs = call.outputs.names, call.said.take_outputs()
        outputs = all_outputs if names is None else asked_outputs(names)
        fields = call.said.completion_fields()
        body = body_of(completion_body(call.texts, fields), CompletionBody)
        body.model = call.model
        if body.stream and len(call.texts) * (body.n or 1) > 1:
            raise InvalidRequest("stream", "needs one prompt and one answer to it (n)")
        form = AnswerForm(
            call.model,
            call.id,
            outputs,
            call.outputs,
            generates=call.generates,
            as_event=as_event and not body.stream,
        )
        return completion_spec(
            body,
            context,
            lambda ready, echoes: InferenceWriter(ready, form, echoes),
            id_prefix=_ID_PREFIX,
        )

    async def infer(request: Request) -> Response:
        """Continues the texts of `text_input`, or encodes them where the model is an encoder."""
        model = _served_model(request, context)
        with _fields_as_sent():
            if context.encoders is not None and _encoder_card(context, model) is not None:
                return await encoder_outputs(request, context, context.encoders, model)
            return await answer_sent(
                request,
                context,
                lambda held: read_infer_call(request, model, config, held, config.max_choices),
                spec_of,
            )

    async def generate(request: Request) -> Response:
        """Continues texts, with a flat body, as Triton's generate extension; answers at once."""
        model = _served_model(request, context)

        def whole_spec(call: InferenceCall) -> GenerationSpec:
            if call.said.said.get("stream"):
                raise InvalidRequest("stream", "must be false here; /generate_stream streams")
            return spec_of(call)

        with _fields_as_sent():
            return await answer_sent(
                request,
                context,
                lambda held: read_generate_call(request, model, config, held),
                whole_spec,
            )

    async def generate_stream(request: Request) -> Response:
        """The same as server-sent events: with `stream` false, one."""
        model = _served_model(request, context)

        def stream_spec(call: InferenceCall) -> GenerationSpec:
            call.said.said.setdefault("stream", True)
            return spec_of(call, as_event=True)

        with _fields_as_sent():
            return await answer_sent(
                request,
                context,
                lambda held: read_generate_call(request, model, config, held),
                stream_spec,
            )

    return [
        *_of_model("POST", "/infer", infer, InferAnswer, InferBody, streams=True, has_binary=True),
        *_of_model("POST", "/generate", generate, GenerateAnswer, GenerateBody, generates=True),
        *_of_model(
            "POST", "/generate_stream", generate_stream, GenerateAnswer, GenerateBody, streams=True
        ),
    ]


def _of_model(
    method: str,
    under: str,
    handler: Handler,
    answer: type[msgspec.Struct],
    body: type[msgspec.Struct] | None = None,
    *,
    streams: bool = False,
    has_binary: bool = False,
    generates: bool = False,
) -> list[ApiEndpoint]:
    """One endpoint under a model, and under its version."""
    return [
        ApiEndpoint(
            method,
            f"/v2/models/{place}{under}",
            handler,
            _TAG,
            body=body,
            answer=answer,
            events=(answer,) if streams else (),
            error=InferenceError,
            has_binary=has_binary,
            generates=generates,
        )
        for place in ("{model:path}/versions/{version}", "{model:path}")
    ]


def _reading(path: str, handler: Handler, answer: type[msgspec.Struct]) -> ApiEndpoint:
    return ApiEndpoint("GET", path, handler, _TAG, answer=answer, error=InferenceError)


@contextmanager
def _fields_as_sent() -> Iterator[None]:
    """What is raised within the block of a completion's prompt names the input that it came by."""
    try:
        yield
    except InvalidRequest as error:
        if error.field == "prompt":
            error.field = TEXT_INPUT
            error.args = (f"{TEXT_INPUT} {error.problem}",)
        raise


def _served_model(request: Request, context: AppContext) -> str:
    """The model that the path names. Raises `Refused` with 404 for one not served here, and for a
    version of one."""
    model: str = request.path_params["model"]
    if _encoder_card(context, model) is None:
        context.check_model(model)
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        message = f"the model {model[:128]!r} has no version {version[:32]!r}, only {VERSION!r}"
        raise Refused(Refusal(404, message, "model_not_found", "version"))
    return model


def _encoder_card(context: AppContext, model: str) -> EncoderCard | None:
    """None for what generates, though it may give embeddings elsewhere."""
    if context.encoders is None or model in context.generator.card.names:
        return None
    return context.encoders.cards.get(model)


def _encoders_failed(context: AppContext) -> bool:
    return context.encoders is not None and context.encoders.failed


def _json_response(answer: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _status(good: bool) -> int:
    return 200 if good else 503
