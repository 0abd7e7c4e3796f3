"""POST /tokenize and POST /detokenize: a text or a chat as token ids, and back."""

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.openapi import ApiEndpoint
from tandem.api.prompts import chat_prompt, check_tokens, encode
from tandem.api.request_body import read_body
from tandem.api.requests import DetokenizeBody, TokenizeBody
from tandem.api.responses import DetokenizeAnswer, TokenizeAnswer
from tandem.api.whole_response import CHUNK_BYTES, HeldResponse, WholeResponse
from tandem.facts.errors import InvalidRequest

_COUNTED_TOKENS = 64 << 10


def token_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """Both token endpoints over `context`. They work before the engine is ready."""

    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of a conversation under the chat template."""
        with context.holding_body(request) as held:
            body = await read_body(request, TokenizeBody, context.config, held)
            context.check_model(body.model)
            if (body.prompt is None) == (body.messages is None):
                raise InvalidRequest("prompt", "or messages must be given, and not both")
            work = partial(_tokenized, body, context)
            content = await context.intake.run_off_loop(request, held.count, work, held.account)
        return _whole(content, context)

    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        with context.holding_body(request) as held:
            body = await read_body(request, DetokenizeBody, context.config, held)
            context.check_model(body.model)
            work = partial(_detokenized, body, context)
            content = await context.intake.run_off_loop(request, held.count, work, held.account)
        return _whole(content, context)

    return [
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


def _whole(content: bytes, context: AppContext) -> Response:
    """`content` as it is, counted until the client has it."""

    async def make(held: HeldResponse) -> list[bytes]:
        held.grow(len(content))
        return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]

    return WholeResponse(context.response_budget, make)


def _tokenized(body: TokenizeBody, context: AppContext) -> bytes:
    text, context_tokens = context.text, context.generator.card.context_tokens
    # Texts longer than the context may be counted too, to a degree.
    limit_tokens = max(_COUNTED_TOKENS, 2 * context_tokens)
    if body.prompt is not None:
        specials = body.add_special_tokens is not False
        tokens = encode(body.prompt, text, limit_tokens, add_special_tokens=specials)
    else:
        tokens = chat_prompt(
            body,
            body.tools or [],
            text,
            limit_tokens,
            parse_special_tokens=context.config.parse_special_tokens,
            max_nesting=context.config.max_nesting,
        )
    answer = TokenizeAnswer(tokens=list(tokens), count=len(tokens), max_model_len=context_tokens)
    if body.return_token_strs:
        answer.token_strs = [text.tokenizer.token_name(token) for token in tokens]
    return msgspec.json.encode(answer)


def _detokenized(body: DetokenizeBody, context: AppContext) -> bytes:
    check_tokens("tokens", body.tokens, context.generator.card)
    text = context.text.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return msgspec.json.encode(DetokenizeAnswer(prompt=text))
