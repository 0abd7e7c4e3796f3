"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's Messages API. A call becomes a
chat (`messages_translation.py`), and its answer Anthropic's (`messages_writer.py`)."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.chat import chat_spec
from tandem.api.generation import GenerationSpec, create_answer
from tandem.api.messages_requests import MessageCountBody, MessagesBody
from tandem.api.messages_responses import (
    MESSAGE_EVENTS,
    MessageAnswer,
    MessageError,
    MessageTokens,
)
from tandem.api.messages_translation import chat_of, conversation_of, fields_as_sent
from tandem.api.messages_writer import MessagesWriter
from tandem.api.openapi import ApiEndpoint
from tandem.api.prompts import chat_prompt
from tandem.api.request_body import read_body
from tandem.api.tokenization import counted_limit
from tandem.api.tool_choice import tool_use


def messages_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """Both endpoints of Anthropic's API over `context`. Tokens are counted before the engine is
    ready, too."""

    def spec_of(body: MessagesBody) -> GenerationSpec:
        shows_thinking = body.thinking is None or body.thinking.display != "omitted"
        return chat_spec(
            chat_of(body),
            context,
            lambda call: MessagesWriter(call, shows_thinking=shows_thinking),
            id_prefix="msg_",
        )

    async def create_message(request: Request) -> Response:
        """Continues a conversation, in Anthropic's words."""
        with fields_as_sent():
            return await create_answer(request, context, MessagesBody, spec_of)

    async def count_message_tokens(request: Request) -> Response:
        """How many tokens the prompt of a conversation has."""
        with fields_as_sent(), context.holding_body(request) as held:
            body = await read_body(request, MessageCountBody, context.config, held)
            context.check_model(body.model)
            count = await held.run_off_loop(request, lambda: _prompt_tokens(body, context))
        answer = msgspec.json.encode(MessageTokens(input_tokens=count))
        return Response(answer, media_type="application/json")

    return [
        ApiEndpoint(
            "POST",
            "/v1/messages",
            create_message,
            "Anthropic",
            body=MessagesBody,
            answer=MessageAnswer,
            events=MESSAGE_EVENTS,
            error=MessageError,
        ),
        ApiEndpoint(
            "POST",
            "/v1/messages/count_tokens",
            count_message_tokens,
            "Anthropic",
            body=MessageCountBody,
            answer=MessageTokens,
            error=MessageError,
        ),
    ]


def _prompt_tokens(body: MessageCountBody, context: AppContext) -> int:
    chat, limit_tokens = conversation_of(body), counted_limit(context.generator.card)
    offered = tool_use(chat, context.text).offered
    return len(chat_prompt(chat, offered, context.text, limit_tokens, context.config))
