"""What does each field of a call mean? The words and examples that the API schema carries."""

from collections.abc import Mapping
from typing import Any

_CHAT_MESSAGES = [{"role": "user", "content": "Hello!"}]

# By the name of a body's type; each is a whole call that works on any model with a template.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "ChatBody": {"messages": _CHAT_MESSAGES, "max_tokens": 64},
    "CompletionBody": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0},
    "TokenizeBody": {"messages": _CHAT_MESSAGES},
    "DetokenizeBody": {"tokens": [72, 105]},
}

# Fields of these names mean the same in every body; where one body differs, it is named below.
_FIELDS: Mapping[str, str] = {
    "model": "A served name. Absent: the model that is served.",
    "messages": "The conversation, oldest message first.",
    "prompt": "One text or list of token ids, or several of them.",
    "temperature": "0 to 100; 0 is greedy. Default: what the checkpoint recommends, else 1.",
    "top_p": "Above 0, up to 1. Default: what the checkpoint recommends, else 1.",
    "top_k": "0 or -1 switches it off. Default: what the checkpoint recommends, else off.",
    "min_p": "0 to 1. Default: what the checkpoint recommends, else 0.",
    "repetition_penalty": "0.001 to 100. Default: what the checkpoint recommends, else 1.",
    "presence_penalty": "-2 to 2, for tokens that the answer already has.",
    "frequency_penalty": "-2 to 2, times how often the answer already has the token.",
    "logit_bias": "Token id (as text) to a bias of -100 to 100; at most 1024 entries.",
    "seed": "64 bits. Same seed and request, same tokens. Absent: the server draws one.",
    "max_tokens": "Longest answer. What the context has left bounds it in any case.",
    "max_completion_tokens": "The same as max_tokens under its newer name.",
    "min_tokens": "End tokens and stop strings count only after so many tokens.",
    "stop": "Up to 64 strings of 1 to 1024 characters; the answer ends before the first found.",
    "stop_token_ids": "Token ids that end the answer; at most 64 with the model's own.",
    "include_stop_str_in_output": "Keeps the stop string, or the text of the token that ended it.",
    "ignore_eos": "The model's end tokens do not end the answer.",
    "skip_special_tokens": "Leaves special tokens out of the text. Default: true.",
    "n": "Answers to each prompt. Default: 1.",
    "stream": "Answers as server-sent events. Default: false.",
    "stream_options": "What the stream carries beside the answer; needs stream.",
    "priority": "Larger runs later; below 0 only where the operator allows it. Default: 0.",
    "cache_salt": "Requests share cached prefixes only under the same salt.",
    "return_token_ids": "Adds the token ids of prompt and answer.",
    "echo": "Puts the prompt before the answer. Not together with logprobs.",
    "best_of": "Must equal n.",
    "logprobs": "Log-probabilities of the answer's tokens.",
    "top_logprobs": "How many alternatives to each token, up to 20; needs logprobs.",
    "add_special_tokens": "Lets the tokenizer add its own, as a begin token. Default: true.",
    "add_generation_prompt": "Opens the assistant's turn. Default: true unless continuing.",
    "continue_final_message": "Continues the last message instead of answering it.",
    "chat_template_kwargs": "Further variables of the checkpoint's chat template.",
    "tools": "Functions the model may call.",
    "tool_choice": "'auto' (default with tools) or 'none'; others are refused.",
    "return_token_strs": "Adds each token's own text.",
    "tokens": "The ids to turn into text.",
    "include_usage": "One more event at the end counts the tokens of the call.",
    "continuous_usage_stats": "Every event counts the tokens so far.",
    "include_obfuscation": "Accepted without effect.",
}
_SPECIAL: Mapping[str, Mapping[str, str]] = {
    "ChatBody": {
        "max_tokens": "Longest answer. Default and upper bound: what the context has left.",
        "logprobs": "true adds the log-probability of each token.",
    },
    "CompletionBody": {
        "max_tokens": "Longest answer. Default: 16; what the context has left bounds it.",
        "logprobs": "Adds log-probabilities, and so many alternatives to each token, up to 20.",
    },
    "TokenizeBody": {
        "prompt": "A text; either this or messages.",
        "messages": "A conversation, put through the chat template; either this or prompt.",
        "add_special_tokens": "Lets the tokenizer add its own to a prompt. Default: true.",
        "tools": "Functions the template may show.",
    },
}


def meanings_of(body: str) -> Mapping[str, str]:
    """What the fields of a body mean, by name; further names may be among them."""
    if not body.endswith(("Body", "Options")):
        return {}
    return {**_FIELDS, **_SPECIAL.get(body, {})}
