"""Texts and pairs of texts as tokens of an encoder: with the special tokens and token types that
its tokenizer gives them, and cut where they are too long.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tandem.facts.encoder import EncodedText
from tandem.facts.errors import InvalidRequest
from tandem.text.tokenizer import Tokenizer

# A text, or two of which the second is judged by the first: a query and a document.
TextInput = str | tuple[str, str]


def encode_inputs(
    tokenizer: Tokenizer,
    inputs: Sequence[TextInput],
    limit_tokens: int,
    *,
    truncate: bool = False,
    field: str = "input",
) -> list[EncodedText]:
    """All inputs in their order, each of at most `limit_tokens` tokens, special ones included.

    Longer ones lose their end if `truncate`; of a pair the longer text loses first, until both are
    equally long. Without it they raise `InvalidRequest` naming `field`, as inputs without any token
    do.
    """
    core = tokenizer.core
    texts = [text for each in inputs for text in _texts_of(each)]
    # Of the library's calls only those for batches let other threads run meanwhile.
    encodings = iter(core.encode_batch_fast(texts, add_special_tokens=False))
    return [
        _encoded(core, each, encodings, (limit_tokens, truncate), f"{field}[{index}]")
        for index, each in enumerate(inputs)
    ]


def _texts_of(each: TextInput) -> tuple[str, ...]:
    return (each,) if isinstance(each, str) else each


def _encoded(
    core: Any,
    each: TextInput,
    encodings: Iterator[Any],
    limit: tuple[int, bool],
    field: str,
) -> EncodedText:
    limit_tokens, truncate = limit
    parts = [next(encodings) for _ in _texts_of(each)]
    room_tokens = limit_tokens - core.num_special_tokens_to_add(len(parts) == 2)
    lengths = [len(part) for part in parts]
    if sum(lengths) > room_tokens:
        if not truncate or room_tokens < 0:
            tokens = sum(lengths) + limit_tokens - room_tokens
            raise InvalidRequest(
                field, f"has {tokens} tokens; the model reads at most {limit_tokens} at once"
            )
        for part, length in zip(parts, shortened(lengths, room_tokens), strict=True):
            part.truncate(length)
    whole = core.post_process(*parts, add_special_tokens=True)
    if not whole.ids:
        raise InvalidRequest(field, "holds no text that makes a token")
    return EncodedText(tuple(whole.ids), tuple(whole.type_ids))


def shortened(lengths: Sequence[int], room_tokens: int) -> list[int]:
    """How much stays of one or two texts that are together too long: the shorter of two keeps up to
    half of the room, the longer has the rest."""
    if len(lengths) == 1:
        return [room_tokens]
    first, second = lengths
    shorter = min(first, second, room_tokens // 2)
    kept = [shorter, room_tokens - shorter]
    return kept if first <= second else kept[::-1]
