"""POST /tokenize and POST /detokenize: a text or a chat as token ids, and back. GET
/tokenizer_info: what clients need that render chats themselves."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.openapi import ApiEndpoint
from tandem.api.prompts import Tokens, chat_prompt, check_tokens
from tandem.api.request_body import read_body
from tandem.api.requests import DetokenizeBody, TokenizeBody
from tandem.api.responses import (
    AddedToken,
    DetokenizeAnswer,
    TokenizeAnswer,
    TokenizerInfoAnswer,
)
from tandem.api.whole_response import CHUNK_BYTES, HeldResponse, WholeResponse
from tandem.facts.errors import InvalidRequest
from tandem.facts.serving import ModelCard
from tandem.text.tokenizer import SPECIAL_TOKEN_KEYS

Body = TypeVar("Body", TokenizeBody, DetokenizeBody)
_COUNTED_TOKENS = 64 << 10


def token_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """The token endpoints over `context`. They work before the engine is ready."""

    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of a conversation under the chat template."""
        return await _answer(request, context, TokenizeBody, _tokenized)

    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        return await _answer(request, context, DetokenizeBody, _detokenized)

    async def tokenizer_info(_: Request) -> Response:
        """The chat template and the special tokens, as in the model's tokenizer_config.json."""
        answer = _tokenizer_info(context)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    return [
        ApiEndpoint("GET", "/tokenizer_info", tokenizer_info, "Tokens", answer=TokenizerInfoAnswer),
        ApiEndpoint(
            "POST", "/tokenize", tokenize, "Tokens", body=TokenizeBody, answer=TokenizeAnswer
        ),
        ApiEndpoint(
            "POST",
            "/detokenize",
            detokenize,
            "Tokens",
            body=DetokenizeBody,
            answer=DetokenizeAnswer,
        ),
    ]


def counted_limit(card: ModelCard) -> int:
    """How many tokens are counted at most: more than the context holds, to a degree."""
    return max(_COUNTED_TOKENS, 2 * card.context_tokens)


async def _answer(
    request: Request,
    context: AppContext,
    body_type: type[Body],
    answer_of: Callable[[Body, AppContext], msgspec.Struct],
) -> Response:
    """Reads the body and answers it, counted until the client has it."""
    with context.holding_body(request) as body_held:
        body = await read_body(request, body_type, context.config, body_held)
        context.check_model(body.model)
        content = await body_held.run_off_loop(
            request, lambda: msgspec.json.encode(answer_of(body, context))
        )

    async def make(held: HeldResponse) -> list[bytes]:
        held.grow(len(content))
        return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]

    return WholeResponse(context.response_budget, make)


def _tokenized(body: TokenizeBody, context: AppContext) -> TokenizeAnswer:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt", "or messages must be given, and not both")
    text, context_tokens = context.text, context.generator.card.context_tokens
    limit_tokens = counted_limit(context.generator.card)
    if body.prompt is not None:
        specials = body.add_special_tokens is not False
        encode = text.tokenizer.encode_within
        tokens: Tokens = encode(body.prompt, limit_tokens, add_special_tokens=specials)
    else:
        tokens = chat_prompt(body, body.tools or [], text, limit_tokens, context.config)
    answer = TokenizeAnswer(tokens=list(tokens), count=len(tokens), max_model_len=context_tokens)
    if body.return_token_strs:
        answer.token_strs = [text.tokenizer.token_name(token) for token in tokens]
    return answer


def _detokenized(body: DetokenizeBody, context: AppContext) -> DetokenizeAnswer:
    check_tokens("tokens", body.tokens, context.generator.card)
    text = context.text.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return DetokenizeAnswer(prompt=text)


def _tokenizer_info(context: AppContext) -> TokenizerInfoAnswer:
    text = context.text
    added = text.tokenizer.core.get_added_tokens_decoder()
    special = text.tokenizer.special_tokens
    return TokenizerInfoAnswer(
        tokenizer_class=text.tokenizer.class_name,
        chat_template=text.default_template,
        **{name: special.get(name) for name in SPECIAL_TOKEN_KEYS},
        added_tokens_decoder={
            str(i): AddedToken(content=token.content, special=token.special)
            for i, token in sorted(added.items())
        },
        model_max_length=context.generator.card.context_tokens,
    )
