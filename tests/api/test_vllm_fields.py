"""Every field that vLLM's bodies have, one by one: it is supported, cannot change an answer, passes
at its neutral value, or is refused by name."""

from dataclasses import replace

import pytest

from tests.api.test_refusals import CHAT, CHAT_PATH, PROMPT, PROMPT_PATH, error_of

# What vLLM takes of both calls, at its defaults.
OF_BOTH = {
    "frequency_penalty": None,
    "logit_bias": None,
    "n": 1,
    "presence_penalty": None,
    "seed": None,
    "stop": [],
    "stream": False,
    "stream_options": None,
    "temperature": None,
    "top_p": None,
    "user": None,
    "use_beam_search": False,
    "top_k": None,
    "min_p": None,
    "repetition_penalty": None,
    "watermarking": None,
    "length_penalty": 1.0,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "allowed_token_ids": None,
    "prompt_logprobs": None,
    "logprob_token_ids": None,
    "bad_words": [],
    "response_format": None,
    "structured_outputs": None,
    "priority": 0,
    "request_id": "0123456789abcdef",
    "session_id": None,
    "return_tokens_as_token_ids": None,
    "return_token_ids": None,
    "routed_experts_prompt_start": 0,
    "return_token_offsets": False,
    "return_mm_kwargs": True,
    "cache_salt": None,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "vllm_xargs": None,
    "repetition_detection": None,
    "thinking_token_budget": None,
    "stream_interval": None,
    # Of earlier versions.
    "best_of": None,
    "guided_json": None,
    "guided_regex": None,
    "guided_choice": None,
    "guided_grammar": None,
    "guided_decoding_backend": None,
    "guided_whitespace_pattern": None,
    "logits_processors": None,
}
OF_CHATS = OF_BOTH | {
    "logprobs": False,
    "top_logprobs": 0,
    "max_tokens": None,
    "max_completion_tokens": None,
    "tools": None,
    "tool_choice": "none",
    "reasoning_effort": None,
    "include_reasoning": True,
    "parallel_tool_calls": True,
    "echo": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "documents": None,
    "chat_template": None,
    "chat_template_kwargs": None,
    "media_io_kwargs": None,
    "mm_processor_kwargs": None,
    "return_prompt_text": None,
}
OF_COMPLETIONS = OF_BOTH | {
    "echo": False,
    "logprobs": None,
    "max_tokens": 16,
    "suffix": None,
    "prompt_embeds": None,
    "add_special_tokens": True,
}
# What OpenAI has beside them.
OPENAIS = {
    "audio": None,
    "function_call": "none",
    "functions": [],
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "prediction": None,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
    "verbosity": "medium",
    "web_search_options": None,
}
# Other values that ask for nothing, or cannot change what is answered.
WITHOUT_EFFECT = [
    {"thinking_token_budget": -1},
    {"watermarking": False},
    {"truncation_side": "left"},
    {"logits_processors": []},
    {"kv_transfer_params": {}, "ec_transfer_params": {}, "vllm_xargs": {}},
    {"repetition_detection": {}},
    {"stream_interval": 10},
    {"media_io_kwargs": {"video": {"num_frames": 4}}, "mm_processor_kwargs": {"fps": 1}},
    {"return_mm_kwargs": False, "return_token_offsets": True},
    {"session_id": "agent-7"},
    {"reasoning_effort": "none"},
    {"reasoning_effort": "high"},
    {
        "structured_outputs": {
            "regex": "[a-z ]+",
            "json": None,
            "structural_tag": None,
            "disable_fallback": False,
            "disable_additional_properties": False,
        }
    },
]
# Of both calls, unless only one of them could mean it.
REFUSED = {
    "watermarking": True,
    "truncation_side": "right",
    "logprob_token_ids": [1],
    "kv_transfer_params": {"do_remote_decode": True},
    "ec_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
    "repetition_detection": {"max_pattern_size": 5, "min_count": 3},
    "thinking_token_budget": 100,
    "routed_experts_prompt_start": 1,
    "logits_processors": ["a.b"],
    "function_call": {"name": "f"},
    "verbosity": "low",
}
REFUSED_IN_CHATS = REFUSED | {
    "include_reasoning": False,
    "echo": True,
    "add_special_tokens": True,
    "documents": [{"text": "x"}],
    "chat_template": "{{ messages }}",
    "return_prompt_text": True,
}
REFUSED_IN_COMPLETIONS = REFUSED | {
    "suffix": "x",
    "prompt_embeds": ["x"],
    "reasoning_effort": "low",
}
CALLS = {
    "chat": (CHAT_PATH, CHAT, OF_CHATS, REFUSED_IN_CHATS),
    "completion": (PROMPT_PATH, PROMPT, OF_COMPLETIONS, REFUSED_IN_COMPLETIONS),
}


@pytest.mark.parametrize("call", CALLS)
def test_defaults_say_nothing(http, generator, call):
    path, body, defaults, _ = CALLS[call]
    generator.script.answer = "hello"
    plain = http.post(path, json=body | {"temperature": 0})
    spelled = http.post(path, json=body | defaults | OPENAIS | {"temperature": 0})
    assert spelled.status_code == 200, spelled.text
    assert spelled.json()["choices"] == plain.json()["choices"]
    # The server draws one where none is named.
    one, other = (replace(request.sampling, seed=0) for request in generator.requests)
    assert one == other


def test_each_default_alone_passes(http):
    for path, body, defaults, _ in CALLS.values():
        for name, value in (defaults | OPENAIS).items():
            answer = http.post(path, json=body | {"max_tokens": 1, name: value})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("fields", WITHOUT_EFFECT)
def test_what_cannot_change_an_answer_passes(http, generator, fields):
    generator.script.answer = "hello"
    answer = http.post(CHAT_PATH, json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_supported_is_refused_by_name(http, call):
    path, body, _, refused = CALLS[call]
    for name, value in refused.items():
        error = error_of(http.post(path, json=body | {name: value}), 400)
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        # As JSON has it, false is no number and 1 is not true.
        {"include_reasoning": 1},
        {"echo": 0},
        {"routed_experts_prompt_start": False},
        {"reasoning_effort": "huge"},
        {"structured_outputs": {"regex": "a", "structural_tag": "{}"}},
        {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
        {"session_id": "ü"},
        {"session_id": "one", "agent": {"session": "other"}},
    ],
)
def test_values_that_mean_nothing_are_refused(http, fields):
    (name, *_) = fields
    assert error_of(http.post(CHAT_PATH, json=CHAT | fields), 400)["param"].startswith(name)


def test_the_session_of_vllm_is_that_of_an_agent(http, generator):
    for fields in ({"session_id": "s"}, {"session_id": "s", "agent": {"session": "s"}}):
        http.post(CHAT_PATH, json=CHAT | fields)
        assert generator.callers[-1].session == "s"
