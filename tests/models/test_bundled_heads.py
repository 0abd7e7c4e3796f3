"""The bundled speculative heads, read by transformers' layers: they belong to the bundled model."""

import json
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import Identity
from torch.nn.functional import linear, silu
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from tandem.bench.tasks.arithmetic import arithmetic
from tandem.config.environment import BUNDLED

MAIN = BUNDLED / "tandem-mini"
MEDUSA, EAGLE = BUNDLED / "tandem-mini-medusa", BUNDLED / "tandem-mini-eagle"
MOST_BYTES = 1_000_000
TASKS = 8
# Medusa measures 0.77, EAGLE 0.89 and more; heads of other weights or read wrongly less than 0.1.
LEAST_AGREEMENT = 0.6


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MAIN, dtype=torch.float32)


@pytest.fixture(scope="module")
def passages(model):
    """Token ids of held-out arithmetic chats, where the replies start, and the features of all:
    hidden states after the last norm."""
    tokenizer = AutoTokenizer.from_pretrained(MAIN)
    rng, found = Random(3), []
    for task in [arithmetic(rng) for _ in range(TASKS)]:
        prompt = tokenizer.apply_chat_template(
            list(task.messages), add_generation_prompt=True, tokenize=False
        )
        start = len(tokenizer(prompt).input_ids)
        ids = tokenizer(prompt + task.reference["content"], return_tensors="pt").input_ids
        with torch.inference_mode():
            found.append((ids, start, model.model(ids).last_hidden_state))
    return found


def stored(folder):
    weights = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    return {name: weight.float() for name, weight in weights.items()}


def agreement(guesses, expected):
    """The share of positions at which two sequences of features have the same greedy token."""
    right = [
        (guess.argmax(-1) == logits.argmax(-1)).flatten()
        for guess, logits in zip(guesses, expected, strict=True)
    ]
    return torch.cat(right).float().mean().item()


@pytest.mark.parametrize("folder", [MEDUSA, EAGLE])
def test_a_head_is_small_and_of_the_size_of_the_model(folder):
    main, head = (json.loads((path / "config.json").read_text()) for path in (MAIN, folder))
    assert (folder / "model.safetensors").stat().st_size <= MOST_BYTES
    for key in ("hidden_size", "vocab_size"):
        assert head[key] == main[key]


@torch.inference_mode()
def test_the_first_medusa_head_foresees_the_token_after_the_next(model, passages):
    weights = stored(MEDUSA)
    guesses, expected = [], []
    for _, start, features in passages:
        block = [weights[f"blocks.0.layers.0.{part}"] for part in ("weight", "bias")]
        guessed = features + silu(linear(features, *block))
        guesses.append(model.lm_head(guessed[:, start - 1 : -1]))
        expected.append(model.lm_head(features[:, start:]))
    assert agreement(guesses, expected) > LEAST_AGREEMENT


@torch.inference_mode()
@pytest.mark.parametrize("cached", [False, True])
def test_the_eagle_layer_continues_features_also_after_a_cached_prefix(model, passages, cached):
    config = Qwen3Config(**json.loads((EAGLE / "config.json").read_text()))
    config._attn_implementation = "eager"
    weights = stored(EAGLE)
    fc = weights.pop("fc.weight")
    layer = Qwen3DecoderLayer(config, layer_idx=0).eval()
    layer.input_layernorm = Identity()
    layer.load_state_dict(
        {name.removeprefix("layers.0."): weight for name, weight in weights.items()}
    )
    guesses, expected = [], []
    for ids, start, features in passages:
        known = features.clone()
        if cached:
            known[:, : start - 1] = 0
        x = linear(torch.cat((model.model.embed_tokens(ids[:, 1:]), known[:, :-1]), -1), fc)
        tokens = x.shape[1]
        positions = torch.arange(1, tokens + 1)[None]
        mask = torch.full((tokens, tokens), -torch.inf).triu(1)[None, None]
        out = layer(
            x,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=model.model.rotary_emb(x, positions),
        )
        guessed = out[0] if isinstance(out, tuple) else out
        guesses.append(model.lm_head(guessed[:, start - 1 :]))
        expected.append(model.lm_head(features[:, start:]))
    assert agreement(guesses, expected) > LEAST_AGREEMENT
