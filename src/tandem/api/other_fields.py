"""Fields that other servers' bodies have and ours do not, by API. Each kind of body says which of
these lists is its own (`ModelBody.other_fields`); `unsupported_fields.py` goes by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OtherFields:
    """Fields by name: those that are `ignored`, and those that are `refused` unless they are null
    or have one of these values, which ask for nothing beyond what every answer is. `codes`: by
    which a client knows the refusal of a field that it can do without."""

    ignored: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, more: "OtherFields") -> "OtherFields":
        return OtherFields(
            self.ignored | more.ignored,
            {**self.refused, **more.refused},
            {**self.codes, **more.codes},
        )


# What is ignored changes nothing of the tokens or the text of an answer: no tokenizer that is used
# here would put spaces between special tokens, there is no medium but text, and how many tokens an
# event of a stream has is the server's to say.
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
            "stream_interval",
            "media_io_kwargs",
            "mm_processor_kwargs",
            "return_mm_kwargs",
            "return_token_offsets",
        }
    ),
    {
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "web_search_options": (),
        "reasoning_effort": (),
        "include_reasoning": (True,),
        "thinking_token_budget": (-1,),
        "verbosity": ("medium",),
        "suffix": ("",),
        "echo": (False,),
        "add_special_tokens": (False,),
        "truncation_side": ("left",),
        "watermarking": (False,),
        "logits_processors": ([],),
        "repetition_detection": (
            {},
            {"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0},
        ),
        "chat_template": (),
        "documents": ([],),
        "prompt_embeds": ([],),
        "kv_transfer_params": ({},),
        "ec_transfer_params": ({},),
        "vllm_xargs": ({},),
        "logprob_token_ids": ([],),
        "return_prompt_text": (False,),
        "routed_experts_prompt_start": (0,),
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
        "thread": (),
    },
    # Anthropic's tool runner asks for a thread first, and then sends whole conversations.
    {"thread": "thread_unsupported_request"},
)
