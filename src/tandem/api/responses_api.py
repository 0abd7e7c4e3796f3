"""The Responses API: /v1/responses and what belongs to it. A response is a chat in other words,
which the server remembers (`response_store.py`) unless it is told not to."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tandem.api.app_context import AppContext
from tandem.api.auth import BACKGROUND, KEY, TENANT, account_of
from tandem.api.errors import Refusal, Refused
from tandem.api.generation import GenerationSpec, create_answer
from tandem.api.logprobs import TokenJson
from tandem.api.openapi import ApiEndpoint
from tandem.api.paging import page_query
from tandem.api.request_body import read_body
from tandem.api.response_call import ResponseCall, prompt_tokens
from tandem.api.response_history import named_items, past_of
from tandem.api.response_items import (
    InputItemList,
    InputTokens,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
)
from tandem.api.response_store import ResponseGone, StoredResponse
from tandem.api.response_translation import in_own_words
from tandem.api.responses_body import ConversationBody, InputItem, InputPart, ResponsesBody
from tandem.api.whole_response import CHUNK_BYTES, HeldResponse, WholeResponse
from tandem.facts.errors import InvalidRequest

Result = TypeVar("Result")
_TAG = "Responses"
_ITEMS_DEFAULT, _ITEMS_LIMIT = 20, 100


def responses_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """All endpoints of the Responses API over `context`."""
    token_json, store = TokenJson(context.text.token_bytes), context.response_store

    async def create_response(request: Request) -> Response:
        """Goes on from a conversation: items in, the model's items out."""
        owner = owner_of(request.scope)

        def spec_of(sent: ResponsesBody) -> GenerationSpec:
            if request.scope.get(BACKGROUND):
                # Thousands of a batch would take the places of those that conversations go on from.
                sent.store = False
            return ResponseCall(sent, owner, context, token_json).spec()

        try:
            return await create_answer(request, context, ResponsesBody, spec_of, remembers=True)
        except InvalidRequest as error:
            raise in_own_words(error) from error

    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the prompt of a response would have."""
        with context.holding_body(request) as held:
            sent = await read_body(request, ConversationBody, context.config, held)
            context.check_model(sent.model)
            past = past_of(sent, owner_of(request.scope), context)
            held.hold_bytes(past.size_bytes)
            try:
                count = await held.run_off_loop(request, lambda: prompt_tokens(sent, past, context))
            except InvalidRequest as error:
                raise in_own_words(error) from error
        return _json(InputTokens(input_tokens=count))

    async def retrieve_response(request: Request) -> Response:
        """A stored response. It cannot be streamed again."""
        if request.query_params.get("stream", "false").lower() not in ("false", "0", ""):
            raise InvalidRequest("stream", "is not supported for stored responses")
        return whole(found(request).response)

    async def delete_response(request: Request) -> Response:
        """Forgets a stored response; what goes on from it can then not go on."""
        stored = found(request)
        store.delete(stored.owner, stored.response_id)
        return _json(ResponseDeleted(id=stored.response_id))

    async def list_input_items(request: Request) -> Response:
        """What a stored response was asked, without what it goes on from; the newest item first
        unless `order` is asc. `limit` and `after` page."""
        stored = found(request)
        query = request.query_params
        content = await context.intake.run_off_loop(
            request,
            stored.size_bytes,
            lambda: msgspec.json.encode(_listed(stored, query.get)),
            account_of(request.scope),
        )
        return whole(content)

    def found(request: Request) -> StoredResponse:
        name: str = request.path_params["response_id"]
        try:
            return store.find(owner_of(request.scope), name)
        except ResponseGone as error:
            problem = f"no response {name[:64]!r} is stored here, or not any more"
            raise Refused(Refusal(404, problem, "response_not_found", "response_id")) from error

    def whole(content: bytes) -> Response:
        """Sent as fast as the client reads, and counted until then."""

        async def make(held: HeldResponse) -> list[bytes]:
            held.grow(len(content))
            return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]

        return WholeResponse(context.response_budget, make)

    path = "/v1/responses"
    one, items = f"{path}/{{response_id}}", f"{path}/{{response_id}}/input_items"
    count_path = f"{path}/input_tokens"
    return [
        ApiEndpoint(
            "POST",
            path,
            create_response,
            _TAG,
            body=ResponsesBody,
            answer=ResponseObject,
            events=(ResponseEvent,),
        ),
        ApiEndpoint(
            "POST", count_path, count_input_tokens, _TAG, body=ConversationBody, answer=InputTokens
        ),
        ApiEndpoint("GET", one, retrieve_response, _TAG, answer=ResponseObject),
        ApiEndpoint("DELETE", one, delete_response, _TAG, answer=ResponseDeleted),
        ApiEndpoint(
            "GET",
            items,
            list_input_items,
            _TAG,
            answer=InputItemList,
            query=page_query(_ITEMS_LIMIT),
        ),
    ]


def owner_of(scope: Scope) -> str:
    """Whose responses a call may use: its tenant's, or its key's. Without keys all are one."""
    owner: str = scope.get(TENANT) or scope.get(KEY) or ""
    return owner


def _listed(stored: StoredResponse, query: Callable[[str, str], str]) -> InputItemList:
    """One page of the items, each with a name. Raises `InvalidRequest`."""
    items = named_items(stored)
    for item in items:
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            item.content = [InputPart(type=kind, text=item.content)]
    order = query("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", "must be asc or desc")
    limit = query("limit", str(_ITEMS_DEFAULT))
    if not limit.isdecimal() or len(limit) > 3 or not 1 <= int(limit) <= _ITEMS_LIMIT:
        raise InvalidRequest("limit", f"must be a number from 1 to {_ITEMS_LIMIT}")
    if order == "desc":
        items.reverse()
    return _page(items, query("after", ""), int(limit))


def _page(items: Sequence[InputItem], after: str, limit: int) -> InputItemList:
    names = [each.id for each in items]
    if after and after not in names:
        raise InvalidRequest("after", f"is none of the items: {after[:64]!r}")
    begin = names.index(after) + 1 if after else 0
    page = list(items[begin : begin + limit])
    return InputItemList(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=begin + limit < len(items),
    )


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
