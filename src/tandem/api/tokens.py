"""POST /tokenize and /detokenize: what the tokenizer makes of a text, and back."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.answers import DetokenizeAnswer, TokenizeAnswer
from tandem.api.bodies import DetokenizeBody, TokenizeBody
from tandem.api.door import FrontDoor
from tandem.api.prompts import chat_prompt, check_tokens, encode
from tandem.api.reading import read_body
from tandem.api.schema import described
from tandem.facts.errors import InvalidRequest


def token_routes(door: FrontDoor) -> APIRouter:
    """Both token endpoints over `door`. They work before the engine is ready."""
    router = APIRouter(tags=["Tokens"])

    @router.post("/tokenize", **described(TokenizeBody, TokenizeAnswer))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of a conversation under the chat template."""
        body = await read_body(request, TokenizeBody, door.config)
        door.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("prompt", "or messages must be given, and not both")
        if body.prompt is not None:
            specials = body.add_special_tokens is not False
            tokens = await encode(body.prompt, door.text, add_special_tokens=specials)
        else:
            tokens = await chat_prompt(body, body.tools or [], door.text)
        answer = TokenizeAnswer(
            tokens=list(tokens),
            count=len(tokens),
            max_model_len=door.generator.card.context_tokens,
        )
        if body.return_token_strs:
            answer.token_strs = [door.text.tokenizer.token_name(token) for token in tokens]
        return json_response(answer)

    @router.post("/detokenize", **described(DetokenizeBody, DetokenizeAnswer))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        body = await read_body(request, DetokenizeBody, door.config)
        door.check_model(body.model)
        check_tokens("tokens", body.tokens, door.generator.card)
        text = door.text.tokenizer.decode(body.tokens, skip_special_tokens=False)
        return json_response(DetokenizeAnswer(prompt=text))

    return router


def json_response(answer: msgspec.Struct, status: int = 200) -> Response:
    """A plain JSON answer."""
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
