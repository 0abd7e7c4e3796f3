"""Fields that other servers' bodies have and ours do not: those that cannot change an answer are
ignored, others are refused by name, never ignored in silence."""

import difflib
from collections.abc import Mapping

from msgspec import Struct

from tandem.api.errors import Refusal, Refused

# In the API schema, marks such a field: "ignored" or "refused".
SUPPORT = "x-support"

# Fields that change nothing of the tokens or the text of an answer: no tokenizer that is used here
# would put spaces between special tokens.
_IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "guided_decoding_backend",
        "spaces_between_special_tokens",
    }
)

_REFUSED = frozenset(
    {
        "audio",
        "modalities",
        "prediction",
        "functions",
        "function_call",
        "web_search_options",
        "reasoning_effort",
        "verbosity",
        "suffix",
        "logits_processors",
        "chat_template",
        "documents",
        "mm_processor_kwargs",
        "kv_transfer_params",
        "logprob_token_ids",
    }
)
# Values that ask for nothing beyond what every answer is.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "modalities": (["text"],),
    "suffix": ("",),
    "functions": ([],),
    "documents": ([],),
}


def own_fields(document: Mapping[str, object], body_type: type[Struct]) -> dict[str, object]:
    """The part of a body that `body_type` describes. Raises `Refused` naming any other field."""
    known = body_type.__struct_fields__
    own = {}
    for name, value in document.items():
        if name in known:
            own[name] = value
        elif name not in _IGNORED:
            _check_unsupported(name, value, known)
    return own


def unsupported_fields() -> dict[str, object]:
    """JSON schemas of all these fields, by name. The values of a refused one ask for nothing."""
    ignored: dict[str, object] = {name: {SUPPORT: "ignored"} for name in sorted(_IGNORED)}
    refused = {
        name: {SUPPORT: "refused", "enum": [None, *_NEUTRAL.get(name, ())]}
        for name in sorted(_REFUSED)
    }
    return ignored | refused


def _check_unsupported(name: str, value: object, known: tuple[str, ...]) -> None:
    if name in _REFUSED:
        if value is None or value in _NEUTRAL.get(name, ()):
            return
        message = f"{name} is not supported by this server"
        raise Refused(Refusal(400, message, "unsupported_parameter", name))
    close = difflib.get_close_matches(name[:64], known, n=1)
    remedy = f"; did you mean {close[0]!r}?" if close else ""
    # A hostile name may be megabytes long.
    shown = name[:64]
    message = f"unknown field {shown!r}{remedy}"
    raise Refused(Refusal(400, message, "unknown_parameter", shown))
