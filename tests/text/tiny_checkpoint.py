"""A checkpoint directory without weights: a byte-level tokenizer trained here, with a template."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('the system message must come first') }}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + call.function.arguments | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_WORDS = "the quick brown fox jumps over the lazy dog and hello world again one two three "
VOCABULARY = 400


def byte_level_tokenizer(more_tags: Sequence[str] = ()) -> Tokenizer:
    """Every byte is a token, so that characters outside ASCII are split over several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_WORDS] * 20 + ["日本語 中文 🎉🚀 naïve"], trainer)
    tokenizer.add_tokens(
        [AddedToken(tag, special=False) for tag in ("<tool_call>", "</tool_call>", *more_tags)]
    )
    return tokenizer


def write_checkpoint(
    directory: Path, more_tags: Sequence[str] = (), **tokenizer_config: object
) -> Path:
    """A directory that `TextModel.load` accepts; further tags are tokens, keywords change
    tokenizer_config.json."""
    byte_level_tokenizer(more_tags).save(str(directory / "tokenizer.json"))
    config = {
        "bos_token": "<|endoftext|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": TEMPLATE,
    } | tokenizer_config
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    generation = {"eos_token_id": [0, 2], "temperature": 0.7, "top_k": 20, "do_sample": True}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory
