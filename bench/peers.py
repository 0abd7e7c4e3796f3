"""The same weights and the same requests through `transformers` generate, in the same run."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from figures import Figure
from limits import Summary, summarised
from model import HALF_BILLION, Rig, load
from tandem.kernels.faces import Kernels
from tandem.kernels.packed import Storage
from traffic import CONCURRENT, MIXED, SINGLE, answers, our_rate, prompt

ROUNDS = 3
Peers = dict[str, Qwen2ForCausalLM]
Rigs = dict[Storage, Rig]


def peer_model(dtype: torch.dtype) -> Qwen2ForCausalLM:
    """The half-billion shape with random weights, made by the peer itself: always the same."""
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
        rms_norm_eps=HALF_BILLION.norm.eps,
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


def same_answer(model: Qwen2ForCausalLM, rig: Rig) -> bool:
    """Whether both sides say the same tokens, greedily, in float32."""
    ids = torch.tensor([prompt(0, SINGLE[0])])
    with torch.inference_mode():
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=SINGLE[1],
            max_new_tokens=SINGLE[1],
            do_sample=False,
            pad_token_id=0,
        )
    return bool(theirs[0, SINGLE[0] :].tolist() == answers(rig, [SINGLE])["0"])


def peer_figures(kernels: Kernels, storages: list[Storage]) -> list[Figure]:
    """Ours in each storage against the faster of the peer's precisions, in alternating runs."""
    peers = {"float32": peer_model(torch.float32), "bfloat16": peer_model(torch.bfloat16)}
    with tempfile.TemporaryDirectory() as folder:
        peers["float32"].save_pretrained(folder)
        rigs = {
            storage: Rig.around(
                load(HALF_BILLION, storage, kernels, Path(folder)), CONCURRENT, 1024
            )
            for storage in storages
        }
    if not same_answer(peers["float32"], rigs["float32"]):
        raise RuntimeError("both sides have the same weights but say different tokens")
    padded = f"{CONCURRENT} mixed requests (theirs one padded batch)"
    return [
        *compare(Contest("batch 1", [SINGLE], "≥ 1.5"), peers, rigs),
        *compare(Contest(padded, MIXED, "≥ 4"), peers, rigs),
        *queue_figures(peers, rigs),
    ]


@dataclass(frozen=True)
class Contest:
    """Requests that both sides answer."""

    name: str
    lengths: list[tuple[int, int]]
    goal: str


def compare(contest: Contest, peers: Peers, rigs: Rigs) -> list[Figure]:
    theirs: dict[str, list[float]] = {precision: [] for precision in peers}
    ours: dict[Storage, list[float]] = {storage: [] for storage in rigs}
    for _ in range(1 + ROUNDS):
        for precision, model in peers.items():
            theirs[precision].append(peer_rate(model, contest.lengths))
        for storage, rig in rigs.items():
            ours[storage].append(our_rate(rig, contest.lengths))
    # The first round warms both sides up.
    rates = {precision: summarised(rounds[1:]).median for precision, rounds in theirs.items()}
    best = max(rates, key=lambda precision: rates[precision])
    return [
        figure(contest, storage, summarised(rounds[1:]), (best, rates[best]))
        for storage, rounds in ours.items()
    ]


def queue_figures(peers: Peers, rigs: Rigs) -> list[Figure]:
    """The same requests when the peer takes them one after the other, as its `generate` does for
    callers who do not know of each other. One round: it is long, and both sides are warm."""
    answer_tokens = sum(answer for _, answer in MIXED)
    rates = {}
    for precision, model in peers.items():
        start = time.perf_counter()
        for lengths in MIXED:
            peer_rate(model, [lengths])
        rates[precision] = answer_tokens / (time.perf_counter() - start)
    best = max(rates, key=lambda precision: rates[precision])
    name = f"{CONCURRENT} mixed requests (theirs one after the other)"
    contest = Contest(name, MIXED, "≥ 4")
    return [
        figure(contest, storage, Summary(our_rate(rig, MIXED), 0.0), (best, rates[best]))
        for storage, rig in rigs.items()
    ]


def figure(contest: Contest, storage: Storage, ours: Summary, peer: tuple[str, float]) -> Figure:
    precision, rate = peer
    return Figure(
        f"{contest.name}, {storage}",
        ours.median,
        "tok/s",
        ours.spread,
        rate,
        f"tok/s transformers {precision}",
        contest.goal,
    )
