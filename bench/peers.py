"""The same weights and the same requests through `transformers` generate, in the same run."""

import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from figures import Figure
from model import HALF_BILLION, Rig, load
from tandem.kernels.faces import Kernels
from tandem.kernels.linear.contract import Storage
from traffic import CONCURRENT, MIXED, SINGLE, our_rate, prompt


def peer_model(dtype: torch.dtype) -> Qwen2ForCausalLM:
    """The half-billion shape with random weights, made by the peer itself."""
    torch.manual_seed(0)
    attention = HALF_BILLION.attention
    config = Qwen2Config(
        vocab_size=HALF_BILLION.vocabulary_tokens,
        hidden_size=HALF_BILLION.hidden_features,
        intermediate_size=HALF_BILLION.feed_forward_features,
        num_hidden_layers=HALF_BILLION.layers,
        num_attention_heads=attention.heads,
        num_key_value_heads=attention.kv_heads,
        max_position_embeddings=HALF_BILLION.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": HALF_BILLION.rope.theta},
        rms_norm_eps=HALF_BILLION.rms_eps,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).to(dtype).eval()


@torch.inference_mode()
def peer_rate(model: Qwen2ForCausalLM, lengths: list[tuple[int, int]]) -> float:
    """Useful tokens a second of one padded batch: a static batch runs until its longest answer is
    done, and what it generates beyond the shorter ones is of no use."""
    longest = max(length for length, _ in lengths)
    rows = [prompt(index, length) for index, (length, _) in enumerate(lengths)]
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    most = max(answer for _, answer in lengths)
    start = time.perf_counter()
    model.generate(
        ids,
        attention_mask=mask,
        min_new_tokens=most,
        max_new_tokens=most,
        do_sample=False,
        pad_token_id=0,
    )
    return sum(answer for _, answer in lengths) / (time.perf_counter() - start)


def peer_figures(kernels: Kernels, storages: list[Storage]) -> list[Figure]:
    """Each precision against the peer in the same precision."""
    figures = []
    for storage in storages:
        dtype = torch.bfloat16 if storage == "bfloat16" else torch.float32
        with tempfile.TemporaryDirectory() as folder:
            model = peer_model(dtype)
            model.save_pretrained(folder)
            single = [peer_rate(model, [SINGLE]) for _ in range(3)]
            mixed = [peer_rate(model, MIXED) for _ in range(2)]
            del model
            decoder = load(HALF_BILLION, storage, kernels, Path(folder))
        rig = Rig.around(decoder, CONCURRENT, 1024)
        for name, lengths, theirs, goal, repetitions in (
            ("batch 1", [SINGLE], single, "≥ 1.5", 3),
            (f"{CONCURRENT} concurrent, mixed lengths", MIXED, mixed, "≥ 4", 2),
        ):
            ours = [our_rate(rig, lengths) for _ in range(repetitions)]
            figures.append(
                Figure(
                    f"against transformers, {name}, {storage}",
                    max(ours),
                    "tok/s",
                    (max(ours) - min(ours)) / 2,
                    max(theirs),
                    "tok/s transformers",
                    goal,
                )
            )
    return figures
