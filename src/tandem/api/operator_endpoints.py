"""What only operators may do over HTTP: serve LoRA adapters as models of their own, or no more, and
have the prefix cache forgotten. Under vLLM's paths."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.auth import OPERATOR
from tandem.api.errors import Refusal, Refused
from tandem.api.openapi import ApiEndpoint
from tandem.api.request_body import read_body
from tandem.api.requests import LoadAdapterBody, UnloadAdapterBody
from tandem.api.responses import AdapterAnswer, StatusAnswer
from tandem.facts.errors import InvalidRequest
from tandem.facts.serving import AdapterModels

JSON = "application/json"


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


def prefix_cache_endpoint(context: AppContext) -> ApiEndpoint:
    """POST /reset_prefix_cache, with vLLM's query."""

    async def reset_prefix_cache(request: Request) -> Response:
        """Forgets all cached KV, so that prompts are computed anew: on the devices, and with
        `reset_external=true` in host memory, on disks and in the shared pool as well. Requests
        under way go on. For operators."""
        check_operator(request)
        if _flag(request, "reset_running_requests"):
            problem = "is not supported: requests under way keep their KV"
            raise InvalidRequest("reset_running_requests", problem)
        await context.generator.reset_prefix_cache(external=_flag(request, "reset_external"))
        return Response(msgspec.json.encode(StatusAnswer(status="reset")), media_type=JSON)

    return ApiEndpoint(
        "POST",
        "/reset_prefix_cache",
        reset_prefix_cache,
        "Server",
        answer=StatusAnswer,
        query={
            "reset_external": {"type": "boolean", "default": False},
            "reset_running_requests": {"enum": [False], "default": False},
        },
    )


def _flag(request: Request, name: str) -> bool:
    """Raises `InvalidRequest`."""
    value = request.query_params.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidRequest(name, "must be true or false")
    return value == "true"


def check_operator(request: Request) -> None:
    """Raises `Refused` with 403 for whoever has no operator's key: a path names files of the
    server's machine, and what is cached is everybody's."""
    if not request.scope.get(OPERATOR):
        problem = "only an operator may do this; send one of the keys in --operator-key-file"
        raise Refused(Refusal(403, problem, "operator_key_required"))


def _answered(answer: AdapterAnswer) -> Response:
    return Response(msgspec.json.encode(answer), media_type=JSON)
