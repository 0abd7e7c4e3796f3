"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, for operators: adapters that are served
as models of their own while the server runs."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.auth import OPERATOR
from tandem.api.errors import Refusal, Refused
from tandem.api.openapi import ApiEndpoint
from tandem.api.request_body import read_body
from tandem.api.requests import LoadAdapterBody, UnloadAdapterBody
from tandem.api.responses import AdapterAnswer
from tandem.facts.serving import AdapterModels


def adapter_endpoints(context: AppContext, adapters: AdapterModels) -> list[ApiEndpoint]:
    """Both endpoints over what `adapters` serve."""

    async def load_lora_adapter(request: Request) -> Response:
        """Serves a LoRA adapter from now on, as a model of that name. For operators."""
        check_operator(request)
        with context.holding_body(request) as held:
            body = await read_body(request, LoadAdapterBody, context.config, held)
        await adapters.load(body.lora_name, body.lora_path)
        return _answered(AdapterAnswer(lora_name=body.lora_name, status="loaded"))

    async def unload_lora_adapter(request: Request) -> Response:
        """Serves that adapter no more; what runs with it is finished. For operators."""
        check_operator(request)
        with context.holding_body(request) as held:
            body = await read_body(request, UnloadAdapterBody, context.config, held)
        await adapters.unload(body.lora_name)
        return _answered(AdapterAnswer(lora_name=body.lora_name, status="unloaded"))

    return [
        ApiEndpoint(
            "POST",
            "/v1/load_lora_adapter",
            load_lora_adapter,
            "Server",
            body=LoadAdapterBody,
            answer=AdapterAnswer,
        ),
        ApiEndpoint(
            "POST",
            "/v1/unload_lora_adapter",
            unload_lora_adapter,
            "Server",
            body=UnloadAdapterBody,
            answer=AdapterAnswer,
        ),
    ]


def check_operator(request: Request) -> None:
    """Raises `Refused` with 403 for whoever has no operator's key: a path names files of the
    server's machine."""
    if not request.scope.get(OPERATOR):
        problem = "only an operator may do this; send one of the keys in --operator-key-file"
        raise Refused(Refusal(403, problem, "operator_key_required"))


def _answered(answer: AdapterAnswer) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
