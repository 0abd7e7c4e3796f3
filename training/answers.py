"""Answers of the main model to prompts of its training data, which speculative heads learn from.

    python training/answers.py --teacher FOLDER --out answers.pt --minutes 8

A head is of use where it foresees the model's words, and those are less varied than the data's.
Half of the answers are greedy, half are sampled.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from chat import ASSISTANT
from check import load_exported
from data import Encoder, chat_parts, english_parts, tool_parts
from model import Decoder

# Prompts of the same length are answered together, without padding or a mask, as soon as there are
# so many of them that they and their answers have about as many tokens as this.
GROUP_TOKENS = 3072
USUAL_ANSWER_TOKENS = 80
# What prompts are drawn from, and how often; free speech is the hardest to foresee.
DRAWS = {tool_parts: 0.4, chat_parts: 0.3, english_parts: 0.3}
MOST_PROMPT_TOKENS = 640
MOST_ANSWER_TOKENS = 200
TEMPERATURES = (0.0, 0.8)
END_OF_TURN = "<|im_end|>"


@dataclass(frozen=True)
class Passages:
    """Rows of equal length: their tokens, which of them the model said, and its features of them.

    `ids` and `said` are [rows, tokens], `features` [rows, tokens, hidden].
    """

    ids: Tensor
    said: Tensor
    features: Tensor


def draw_prompt(rng: Random, encoder: Encoder) -> list[int]:
    """The tokens of a conversation of the training data, up to one of the assistant's turns."""
    (draw,) = rng.choices(list(DRAWS), list(DRAWS.values()))
    parts = draw(rng)
    openings = [i for i, part in enumerate(parts) if part.text == ASSISTANT]
    return encoder.encode(parts[: rng.choice(openings) + 1])[0]


def prompt_groups(rng: Random, encoder: Encoder) -> Iterator[Tensor]:
    """Endless [rows, prompt tokens], each of prompts that happen to be of one length."""
    waiting: defaultdict[int, list[list[int]]] = defaultdict(list)
    while True:
        prompt = draw_prompt(rng, encoder)
        if len(prompt) > MOST_PROMPT_TOKENS:
            continue
        group = waiting[len(prompt)]
        group.append(prompt)
        if len(group) * (len(prompt) + USUAL_ANSWER_TOKENS) >= GROUP_TOKENS:
            yield torch.tensor(group)
            group.clear()


@torch.inference_mode()
def answer(
    teacher: Decoder, prompts_BT: Tensor, end: int | None, temperature: float = 0.0
) -> Passages:
    """Prompts with the model's answers; a row that ended early is filled up with `end`, unsaid."""
    assert end is not None, "the tokenizer has no end of a turn"
    past: list[list[Tensor]] = [[] for _ in teacher.layers]
    step = prompts_BT
    alive = torch.ones(len(step), dtype=torch.bool)
    ids, said, features = [step], [torch.zeros_like(step, dtype=torch.bool)], [teacher(step, past)]
    for _ in range(MOST_ANSWER_TOKENS):
        logits = teacher.logits(features[-1][:, -1])
        if temperature:
            chosen = torch.multinomial(torch.softmax(logits / temperature, -1), 1)
        else:
            chosen = logits.argmax(-1, keepdim=True)
        step = chosen.where(alive[:, None], torch.tensor(end))
        ids.append(step)
        said.append(alive[:, None])
        features.append(teacher(step, past))
        alive = alive & (step[:, 0] != end)
        if not alive.any():
            break
    return Passages(torch.cat(ids, 1), torch.cat(said, 1), torch.cat(features, 1))


def save_answers(passages: list[Passages], path: Path) -> None:
    torch.save([(group.ids, group.said, group.features) for group in passages], path)


def load_answers(path: Path) -> list[Passages]:
    return [Passages(*group) for group in torch.load(path, weights_only=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="the exported main model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.from_file(str(options.teacher / "tokenizer.json"))
    teacher, end = load_exported(options.teacher), tokenizer.token_to_id(END_OF_TURN)
    started = time.monotonic()
    passages: list[Passages] = []
    for prompts in prompt_groups(Random(options.seed), Encoder(tokenizer)):
        temperature = TEMPERATURES[len(passages) % len(TEMPERATURES)]
        answered = answer(teacher, prompts, end, temperature)
        # Half the memory, and no more exact than what a head is fed with need be.
        passages.append(replace(answered, features=answered.features.bfloat16()))
        if time.monotonic() - started > options.minutes * 60:
            break
    save_answers(passages, options.out)
    tokens = sum(int(group.said.sum()) for group in passages)
    print(f"{len(passages)} groups, {tokens} tokens said")


if __name__ == "__main__":
    main()
