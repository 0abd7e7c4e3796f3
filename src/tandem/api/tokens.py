"""POST /tokenize and /detokenize: what the tokenizer makes of a text, and back."""

from functools import partial

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.answer_budget import HeldAnswer
from tandem.api.answers import DetokenizeAnswer, TokenizeAnswer
from tandem.api.bodies import DetokenizeBody, TokenizeBody
from tandem.api.door import FrontDoor
from tandem.api.prompts import chat_prompt, check_tokens, encode
from tandem.api.reading import read_body
from tandem.api.schema import described
from tandem.api.whole_answer import CHUNK_BYTES, WholeAnswer
from tandem.facts.errors import InvalidRequest

_COUNTED_TOKENS = 64 << 10


def token_routes(door: FrontDoor) -> APIRouter:
    """Both token endpoints over `door`. They work before the engine is ready."""
    router = APIRouter(tags=["Tokens"])

    @router.post("/tokenize", **described(TokenizeBody, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of a conversation under the chat template."""
        with door.holding(request) as held:
            body = await read_body(request, TokenizeBody, door.config, held)
            door.check_model(body.model)
            if (body.prompt is None) == (body.messages is None):
                raise InvalidRequest("prompt", "or messages must be given, and not both")
            work = partial(_tokenized, body, door)
            content = await door.intake.run(request, held.count, work, held.account)
        return _ready(content, door)

    @router.post("/detokenize", **described(DetokenizeBody, DetokenizeAnswer))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        with door.holding(request) as held:
            body = await read_body(request, DetokenizeBody, door.config, held)
            door.check_model(body.model)
            work = partial(_detokenized, body, door)
            content = await door.intake.run(request, held.count, work, held.account)
        return _ready(content, door)

    return router


def json_response(answer: msgspec.Struct, status: int = 200) -> Response:
    """A plain JSON answer."""
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


def _ready(content: bytes, door: FrontDoor) -> Response:
    """`content` as it is, counted until the client has it."""

    async def make(held: HeldAnswer) -> list[bytes]:
        held.grow(len(content))
        return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]

    return WholeAnswer(door.answers, make)


def _tokenized(body: TokenizeBody, door: FrontDoor) -> bytes:
    text, context_tokens = door.text, door.generator.card.context_tokens
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
            parse_special_tokens=door.config.parse_special_tokens,
            max_nesting=door.config.max_nesting,
        )
    answer = TokenizeAnswer(tokens=list(tokens), count=len(tokens), max_model_len=context_tokens)
    if body.return_token_strs:
        answer.token_strs = [text.tokenizer.token_name(token) for token in tokens]
    return msgspec.json.encode(answer)


def _detokenized(body: DetokenizeBody, door: FrontDoor) -> bytes:
    check_tokens("tokens", body.tokens, door.generator.card)
    text = door.text.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return msgspec.json.encode(DetokenizeAnswer(prompt=text))
