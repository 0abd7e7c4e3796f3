"""Request bodies of the calls that encoders answer, and their answers: vectors, relevance, classes.

A field that is null counts as absent.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tandem.api.body_fields import Count, ModelBody, NonNegative, TokenId, means
from tandem.api.other_fields import OtherFields

_ENCODERS = OtherFields(
    frozenset({"user", "metadata", "service_tier", "input_type", "request_id"}),
    {
        "mm_processor_kwargs": ({},),
        "chat_template": (),
        "softmax": (True,),
        "use_activation": (True,),
    },
)
_TRUNCATE = means("Texts are cut at so many tokens, special ones included; -1: at the context.")


class EncoderBody(ModelBody, kw_only=True, forbid_unknown_fields=True):
    """What all of these calls share. Without `model` the first encoder answers."""

    other_fields: ClassVar[OtherFields] = _ENCODERS

    truncate_prompt_tokens: Annotated[int | None, _TRUNCATE] = None
    priority: Annotated[
        NonNegative | None, means("Its texts wait for all those of a lower number. Default: 0.")
    ] = None


class EmbeddingBody(EncoderBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings"""

    input: Annotated[
        str | list[str | TokenId | list[TokenId]],
        means("A text, texts, or token ids of one text or of several."),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, means("base64: float32, the lowest byte first.")
    ] = None
    dimensions: Annotated[
        Count | None, means("The first so many numbers of each vector, which then has length 1.")
    ] = None


class RerankDocument(Struct, kw_only=True):
    """A document, which may have further fields."""

    text: str


class RerankBody(EncoderBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/rerank"""

    query: str
    documents: Annotated[
        list[str | RerankDocument], Meta(min_length=1, description="Texts, or objects with one.")
    ]
    top_n: Annotated[Count | None, means("Only so many, the most relevant.")] = None
    return_documents: Annotated[
        bool | None, means("false leaves the documents out of the answer. Default: true.")
    ] = None


class ScoreBody(EncoderBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/score"""

    text_1: Annotated[str | list[str], means("One text for all of text_2, or as many.")]
    text_2: str | list[str]


class ClassifyBody(EncoderBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/classify"""

    input: Annotated[str | list[str], means("A text, or texts.")]


class EncoderUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, kw_only=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingAnswer(Struct, kw_only=True):
    data: list[Embedding]
    model: str
    usage: EncoderUsage
    object: Literal["list"] = "list"


class RankedDocument(Struct, kw_only=True):
    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class RerankAnswer(Struct, kw_only=True):
    id: str
    model: str
    usage: EncoderUsage
    results: list[RankedDocument]


class Score(Struct, kw_only=True):
    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreAnswer(Struct, kw_only=True):
    id: str
    created: int
    model: str
    data: list[Score]
    usage: EncoderUsage
    object: Literal["list"] = "list"


class TextClass(Struct, kw_only=True):
    """The likeliest label, and the share or score of each, in the order of the model's labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(Struct, kw_only=True):
    id: str
    created: int
    model: str
    data: list[TextClass]
    usage: EncoderUsage
    object: Literal["list"] = "list"
