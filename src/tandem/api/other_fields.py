"""Fields that other servers' bodies have and ours do not, by API. Each kind of body says which of
these lists is its own (`ModelBody.other_fields`); `unsupported_fields.py` goes by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OtherFields:
    """Fields by name: those that are `ignored`, and those that are `refused` unless they are null
    or have one of these values, which ask for nothing beyond what every answer is."""

    ignored: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def __or__(self, more: "OtherFields") -> "OtherFields":
        return OtherFields(self.ignored | more.ignored, {**self.refused, **more.refused})


# What is ignored changes nothing of the tokens or the text of an answer: no tokenizer that is used
# here would put spaces between special tokens.
OPENAI = OtherFields(
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
OPENAI_RESPONSES = OPENAI | OtherFields(
    # The first is of calls of built-in tools, of which there are none.
    frozenset({"max_tool_calls", "prompt_cache_options"}),
    {
        "background": (False,),
        "background_options": (),
        "conversation": (),
        "prompt": (),
        "moderation": (),
        "context_management": ([],),
        "access_programs": (),
        "image": (),
        "personality": (),
    },
)
# Prefixes are cached by themselves, whatever `cache_control` marks.
ANTHROPIC = OtherFields(
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
