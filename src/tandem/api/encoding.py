"""The calls that encoders answer: POST /v1/embeddings, /v1/rerank, /v1/score and /v1/classify.

Relevance is what a model with one label says of a pair of texts, or the cosine of the vectors of
both where a model has no labels.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.clock_and_entropy import fresh_id, unix_time_s
from tandem.api.encoding_bodies import (
    ClassifyAnswer,
    ClassifyBody,
    Embedding,
    EmbeddingAnswer,
    EmbeddingBody,
    EncoderBody,
    EncoderUsage,
    RankedDocument,
    RerankAnswer,
    RerankBody,
    RerankDocument,
    Score,
    ScoreAnswer,
    ScoreBody,
    TextClass,
)
from tandem.api.errors import Refusal, Refused
from tandem.api.intake import HeldBytes
from tandem.api.openapi import ApiEndpoint, Handler
from tandem.api.request_body import read_body
from tandem.api.whole_response import CHUNK_BYTES, HeldResponse, WholeResponse
from tandem.facts.encoder import EncodedText
from tandem.facts.encoding import EncoderCard, EncoderInput, Encoders, Numbers, Wanted
from tandem.facts.errors import InvalidRequest
from tandem.facts.slo import IN_BACKGROUND

Body = TypeVar("Body", bound=EncoderBody)
# Of one call. More than any client's library sends together.
MOST_TEXTS = 4096
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """What the texts of a call became, and how many tokens they have."""

    numbers: list[Numbers]
    tokens: int

    @property
    def usage(self) -> EncoderUsage:
        return EncoderUsage(prompt_tokens=self.tokens, total_tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Texts, and what is judged by each, under the names that the client has for both."""

    first_field: str
    firsts: Sequence[str]
    second_field: str
    seconds: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the encoder `card`, while its body is held."""

    request: Request
    context: AppContext
    encoders: Encoders
    held: HeldBytes
    card: EncoderCard

    async def read(
        self, body: EncoderBody, inputs: Sequence[EncoderInput], field: str
    ) -> list[EncodedText]:
        """The inputs, which the client calls `field`, as tokens."""
        if not inputs:
            raise InvalidRequest(field, "must not be empty")
        if len(inputs) > MOST_TEXTS:
            raise InvalidRequest(field, f"has {len(inputs)} texts, more than {MOST_TEXTS}")
        card, cut = self.card, body.truncate_prompt_tokens
        if cut is not None and not (cut == -1 or 1 <= cut <= card.context_tokens):
            problem = f"must be -1 or 1 to {card.context_tokens}"
            raise InvalidRequest("truncate_prompt_tokens", problem)
        limit_tokens = card.context_tokens if cut in (None, -1) else cut
        read, truncate = self.encoders.read, cut is not None
        return await self.held.run_off_loop(
            self.request,
            lambda: read(card.name, inputs, limit_tokens, truncate=truncate, field=field),
        )

    async def encode(
        self, body: EncoderBody, texts: Sequence[EncodedText], wanted: Wanted
    ) -> _Encoded:
        caller = self.context.caller_of(self.request)
        numbers = await self.encoders.encode(
            self.card.name,
            texts,
            wanted,
            priority=IN_BACKGROUND if caller.background else body.priority or 0,
            timeout_s=caller.deadline_s,
        )
        return _Encoded(numbers, sum(len(text.token_ids) for text in texts))

    async def relevance(self, body: EncoderBody, pairs: _Pairs) -> tuple[list[float], EncoderUsage]:
        """Of the second text of each pair to the first."""
        head = self.card.head
        if head is not None:
            if len(head.labels) != 1:
                problem = f"{self.card.name!r} has {len(head.labels)} labels; relevance needs one"
                raise InvalidRequest("model", problem)
            together = list(zip(pairs.firsts, pairs.seconds, strict=True))
            texts = await self.read(body, together, pairs.second_field)
            encoded = await self.encode(body, texts, "scores")
            shares = 1 / (1 + np.exp(-np.concatenate(encoded.numbers).astype(np.float64)))
            return shares.tolist(), encoded.usage
        firsts = list(dict.fromkeys(pairs.firsts))
        texts = await self.read(body, firsts, pairs.first_field)
        texts += await self.read(body, pairs.seconds, pairs.second_field)
        encoded = await self.encode(body, texts, "vector")
        vectors = _of_length_one(np.stack(encoded.numbers))
        place = {first: at for at, first in enumerate(firsts)}
        near = vectors[[place[first] for first in pairs.firsts]] * vectors[len(firsts) :]
        return near.sum(axis=1).tolist(), encoded.usage


async def read_call(
    request: Request,
    context: AppContext,
    encoders: Encoders,
    held: HeldBytes,
    body_type: type[Body],
) -> tuple[_Call, Body]:
    """The call and its body. Raises `Refused` also where no encoder has the name."""
    body = await read_body(request, body_type, context.config, held)
    return encoder_call(request, context, encoders, held, body.model), body


def encoder_call(
    request: Request,
    context: AppContext,
    encoders: Encoders,
    held: HeldBytes,
    model: str | None,
) -> _Call:
    """A call of this encoder, whose body was read. Raises `Refused` where none has the name."""
    return _Call(request, context, encoders, held, card_of(context, encoders, model))


def card_of(context: AppContext, encoders: Encoders, model: str | None) -> EncoderCard:
    """The encoder of this name, or the first. Raises `Refused` where there is none."""
    cards, names = encoders.cards, context.generator.card.names
    if model is None:
        card = next(iter(cards.values()), None)
    else:
        card = cards.get(names[0] if model in names else model)
    if card is None:
        known = ", ".join(cards)
        message = f"no encoder is called {(model or '')[:128]!r}; this server has {known}"
        raise Refused(Refusal(404, message, "model_not_found", "model"))
    return card


def encoder_endpoints(context: AppContext, encoders: Encoders) -> list[ApiEndpoint]:
    """All calls of `encoders`."""

    async def create_embeddings(request: Request) -> Response:
        """A vector for each text."""
        with context.holding_body(request) as held:
            call, body = await read_call(request, context, encoders, held, EmbeddingBody)
            _check_dimensions(body, call.card)
            texts = await call.read(body, _embedded_inputs(body), "input")
            encoded = await call.encode(body, texts, "vector")
            return await whole(request, held, lambda: _embeddings(body, call.card, encoded))

    async def rerank(request: Request) -> Response:
        """Documents by their relevance to a query, the most relevant first."""
        with context.holding_body(request) as held:
            call, body = await read_call(request, context, encoders, held, RerankBody)
            documents = [_document_text(each) for each in body.documents]
            pairs = _Pairs("query", [body.query] * len(documents), "documents", documents)
            scores, usage = await call.relevance(body, pairs)
            return await whole(
                request, held, lambda: _ranked(body, call.card, documents, scores, usage)
            )

    async def score(request: Request) -> Response:
        """How relevant each second text is to its first."""
        with context.holding_body(request) as held:
            call, body = await read_call(request, context, encoders, held, ScoreBody)
            scores, usage = await call.relevance(body, _pairs(body))
            answer = ScoreAnswer(
                id=fresh_id("score-"),
                created=unix_time_s(),
                model=call.card.name,
                data=[Score(index=at, score=each) for at, each in enumerate(scores)],
                usage=usage,
            )
            return await whole(request, held, lambda: answer)

    async def classify(request: Request) -> Response:
        """The label of each text, with the share of every label."""
        with context.holding_body(request) as held:
            call, body = await read_call(request, context, encoders, held, ClassifyBody)
            if call.card.head is None:
                raise InvalidRequest("model", f"{call.card.name!r} has no labels")
            inputs = [body.input] if isinstance(body.input, str) else body.input
            texts = await call.read(body, inputs, "input")
            encoded = await call.encode(body, texts, "scores")
            return await whole(request, held, lambda: _classes(call.card, encoded))

    async def whole(
        request: Request, held: HeldBytes, answer_of: Callable[[], msgspec.Struct]
    ) -> Response:
        """Made off the loop where it is large, and counted until the client has it."""
        content = await held.run_off_loop(request, lambda: msgspec.json.encode(answer_of()))

        async def make(response: HeldResponse) -> list[bytes]:
            response.grow(len(content))
            return [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]

        return WholeResponse(context.response_budget, make)

    def endpoint(
        path: str, handler: Handler, body: type[msgspec.Struct], answer: type[msgspec.Struct]
    ) -> ApiEndpoint:
        return ApiEndpoint("POST", path, handler, "Encoders", body=body, answer=answer)

    return [
        endpoint("/v1/embeddings", create_embeddings, EmbeddingBody, EmbeddingAnswer),
        endpoint("/v1/rerank", rerank, RerankBody, RerankAnswer),
        endpoint("/v1/score", score, ScoreBody, ScoreAnswer),
        endpoint("/v1/classify", classify, ClassifyBody, ClassifyAnswer),
    ]


def _embedded_inputs(body: EmbeddingBody) -> list[EncoderInput]:
    """Raises `InvalidRequest` for texts and tokens in one list."""
    given = body.input
    if isinstance(given, str):
        return [given]
    kinds = {type(each) for each in given}
    if len(kinds) > 1:
        raise InvalidRequest("input", "must be texts or token ids, not both")
    if kinds == {int}:
        return [[each for each in given if isinstance(each, int)]]
    return [each for each in given if not isinstance(each, int)]


def _check_dimensions(body: EmbeddingBody, card: EncoderCard) -> None:
    if body.dimensions is not None and body.dimensions > card.features:
        problem = f"must be at most {card.features}, which the model's vectors have"
        raise InvalidRequest("dimensions", problem)


def _embeddings(body: EmbeddingBody, card: EncoderCard, encoded: _Encoded) -> EmbeddingAnswer:
    vectors = encoded.numbers
    if body.dimensions is not None:
        cut = np.stack(vectors)[:, : body.dimensions]
        vectors = list(_of_length_one(cut).astype(np.float32))
    shown: list[list[float] | str] = [
        base64.b64encode(each.astype("<f4").tobytes()).decode()
        if body.encoding_format == "base64"
        else each.tolist()
        for each in vectors
    ]
    data = [Embedding(index=at, embedding=each) for at, each in enumerate(shown)]
    return EmbeddingAnswer(data=data, model=card.name, usage=encoded.usage)


def _ranked(
    body: RerankBody,
    card: EncoderCard,
    documents: Sequence[str],
    scores: Sequence[float],
    usage: EncoderUsage,
) -> RerankAnswer:
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[: body.top_n]
    results = [RankedDocument(index=at, relevance_score=scores[at]) for at in order]
    if body.return_documents is not False:
        for each in results:
            each.document = {"text": documents[each.index]}
    return RerankAnswer(id=fresh_id("rerank-"), model=card.name, usage=usage, results=results)


def _classes(card: EncoderCard, encoded: _Encoded) -> ClassifyAnswer:
    head = card.head
    assert head is not None
    scores = np.stack(encoded.numbers).astype(np.float64)
    if head.problem == "single_label_classification":
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
    elif head.problem == "multi_label_classification":
        shares = 1 / (1 + np.exp(-scores))
    else:
        shares = scores
    data = [
        TextClass(
            index=at,
            label=head.labels[int(of_text.argmax())],
            probs=of_text.tolist(),
            num_classes=len(head.labels),
        )
        for at, of_text in enumerate(shares)
    ]
    return ClassifyAnswer(
        id=fresh_id("classify-"),
        created=unix_time_s(),
        model=card.name,
        data=data,
        usage=encoded.usage,
    )


def _pairs(body: ScoreBody) -> _Pairs:
    firsts = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    seconds = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        problem = f"must be one text or as many as text_2 has: {len(seconds)}"
        raise InvalidRequest("text_1", problem)
    return _Pairs("text_1", firsts, "text_2", seconds)


def _document_text(document: str | RerankDocument) -> str:
    return document if isinstance(document, str) else document.text


def _of_length_one(vectors: Numbers) -> Float64:
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    found: Float64 = wide / np.maximum(lengths, 1e-12)
    return found
