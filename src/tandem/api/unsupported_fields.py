"""Fields that other servers' bodies have and ours do not: those that cannot change an answer are
ignored, others are refused by name, never ignored in silence."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from tandem.api.errors import Refusal, Refused

# In the API schema, marks such a field: "ignored" or "refused".
SUPPORT = "x-support"


@dataclass(frozen=True, slots=True)
class OtherFields:
    """Fields of one API by name: those that are `ignored`, and those that are `refused` unless they
    are null or have one of these values, which ask for nothing beyond what every answer is."""

    ignored: frozenset[str]
    refused: Mapping[str, tuple[object, ...]]


# What is ignored changes nothing of the tokens or the text of an answer: no tokenizer that is used
# here would put spaces between special tokens.
_OPENAI = OtherFields(
    frozenset(
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
    ),
    {
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "functions": ([],),
        "function_call": (),
        "web_search_options": (),
        "reasoning_effort": (),
        "verbosity": (),
        "suffix": ("",),
        "logits_processors": (),
        "chat_template": (),
        "documents": ([],),
        "mm_processor_kwargs": (),
        "kv_transfer_params": (),
        "logprob_token_ids": (),
    },
)
# Prefixes are cached by themselves, whatever `cache_control` marks.
_ANTHROPIC = OtherFields(
    frozenset(
        {
            "metadata",
            "service_tier",
            "cache_control",
            "speed",
            "diagnostics",
            "user_profile_id",
            "workspace_id",
        }
    ),
    {
        "container": (),
        "mcp_servers": ([],),
        "context_management": ({}, {"edits": []}),
        "inference_geo": (),
    },
)
# By the name of a body's type.
_OF_BODIES: Mapping[str, OtherFields] = {
    "ChatBody": _OPENAI,
    "CompletionBody": _OPENAI,
    "MessagesBody": _ANTHROPIC,
    "MessageCountBody": _ANTHROPIC,
}


def own_fields(document: Mapping[str, object], body_type: type[Struct]) -> dict[str, object]:
    """The part of a body that `body_type` describes. Raises `Refused` naming any other field."""
    known, others = body_type.__struct_fields__, _OF_BODIES.get(body_type.__name__, _OPENAI)
    own = {}
    for name, value in document.items():
        if name in known:
            own[name] = value
        elif name not in others.ignored:
            _check_unsupported(name, value, known, others.refused)
    return own


def unsupported_fields(body_type: type[Struct]) -> dict[str, object]:
    """JSON schemas of all that a body of this type may have beside its own fields, by name. The
    values of a refused one ask for nothing."""
    others = _OF_BODIES.get(body_type.__name__)
    if others is None:
        return {}
    ignored: dict[str, object] = {name: {SUPPORT: "ignored"} for name in sorted(others.ignored)}
    refused = {
        name: {SUPPORT: "refused", "enum": [None, *neutral]}
        for name, neutral in sorted(others.refused.items())
    }
    return ignored | refused


def _check_unsupported(
    name: str, value: object, known: tuple[str, ...], refused: Mapping[str, tuple[object, ...]]
) -> None:
    if name in refused:
        if value is None or value in refused[name]:
            return
        message = f"{name} is not supported by this server"
        raise Refused(Refusal(400, message, "unsupported_parameter", name))
    close = difflib.get_close_matches(name[:64], known, n=1)
    remedy = f"; did you mean {close[0]!r}?" if close else ""
    # A hostile name may be megabytes long.
    shown = name[:64]
    message = f"unknown field {shown!r}{remedy}"
    raise Refused(Refusal(400, message, "unknown_parameter", shown))
