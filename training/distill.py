"""Teaches the draft model to speak like the main one, within a given number of minutes.

    python training/distill.py --teacher FOLDER/model.pt --tokenizer T.json --out FOLDER

The draft learns the main model's distribution at every position the main model was trained on,
which is what speculation pays for: how often both draw the same next token.
"""

import argparse
import math
import time
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from data import Encoder
from model import DRAFT, MAIN, Decoder
from neighbours import add_neighbour_heads
from optimizers import fast_products, optimizers_for
from train import (
    LOG_STEPS,
    Batch,
    Courtesy,
    chat_batch,
    rate_factor,
    recall_batch,
    save,
)

# A draft of two layers is spared the longest lists.
CURRICULUM_SHARE = 0.74
COURTESY_STEPS = 5
# Lists are one of four skills; most of what a draft is for are the others.
RECALL_STEPS = 2


def load_stored(path: Path) -> Decoder:
    """The main model with its weights rounded as they are shipped."""
    teacher = Decoder(MAIN)
    weights = torch.load(path, weights_only=True)
    teacher.load_state_dict({name: weight.bfloat16().float() for name, weight in weights.items()})
    return teacher.eval().requires_grad_(False)


def distil_loss(teacher: Decoder, draft: Decoder, batch: Batch) -> tuple[torch.Tensor, float]:
    """Weighted KL of the draft from the teacher, and how often their greedy tokens agree."""
    with fast_products():
        with torch.no_grad():
            aims = teacher.logits(teacher(batch.ids).flatten(0, 1)[batch.positions]).float()
        tries = draft.logits(draft(batch.ids).flatten(0, 1)[batch.positions]).float()
    divergence = functional.kl_div(
        tries.log_softmax(-1), aims.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    loss = (divergence * batch.weights).sum() / batch.weights.sum()
    return loss, (tries.argmax(-1) == aims.argmax(-1)).float().mean().item()


class Distiller:
    """One run: both models, the optimizers, data and the clock."""

    def __init__(self, teacher: Decoder, encoder: Encoder, seconds: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.teacher, self.encoder, self.rng = teacher, encoder, Random(seed)
        self.draft = Decoder(DRAFT)
        add_neighbour_heads(self.draft)
        self.optimizers = optimizers_for(self.draft)
        self.started, self.seconds, self.steps = time.monotonic(), seconds, 0

    @property
    def share(self) -> float:
        return (time.monotonic() - self.started) / self.seconds

    def step(self) -> tuple[float, float, float, float]:
        """One update; loss and agreement on chats, then on recall."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate_factor(self.steps, self.share)
        seen = self._backward(chat_batch(self.rng, self.encoder, self.share * CURRICULUM_SHARE))
        if self.steps % RECALL_STEPS == 0:
            lists = recall_batch(self.rng, self.encoder, self.share * CURRICULUM_SHARE)
            seen += self._backward(lists)
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return (*seen, math.nan, math.nan)[:4]  # type: ignore[return-value]

    def _backward(self, batch: Batch) -> tuple[float, ...]:
        loss, agreed = distil_loss(self.teacher, self.draft, batch)
        torch.autograd.backward(loss)
        return loss.item(), agreed


def run(distiller: Distiller, out: Path, threads: int) -> None:
    """Steps until the time is over, with a log line now and then."""
    courtesy = Courtesy(threads)
    seen: list[tuple[float, float, float, float]] = []
    while distiller.share < 1:
        seen.append(distiller.step())
        if distiller.steps % COURTESY_STEPS == 0:
            courtesy.adjust()
        if distiller.steps % LOG_STEPS == 0:
            chat, chat_agreed, recalled, recall_agreed = torch.tensor(seen).nanmean(0).tolist()
            seen.clear()
            print(
                f"{distiller.steps} {distiller.share:.3f} chat {chat:.4f} agree {chat_agreed:.3f} "
                f"recall {recalled:.4f} agree {recall_agreed:.3f}",
                flush=True,
            )
    save(distiller.draft, out / "draft.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--resume", type=Path, help="weights of a draft to go on from")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    encoder = Encoder(Tokenizer.from_file(str(options.tokenizer)))
    teacher = load_stored(options.teacher)
    distiller = Distiller(teacher, encoder, options.minutes * 60, options.seed)
    if options.resume:
        distiller.draft.load_state_dict(torch.load(options.resume, weights_only=True))
    run(distiller, options.out, options.threads)


if __name__ == "__main__":
    main()
