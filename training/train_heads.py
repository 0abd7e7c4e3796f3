"""Trains a speculative head for the main model as it is shipped, within a number of minutes.

    python training/train_heads.py medusa --teacher FOLDER --answers answers.pt --out FOLDER
    python training/train_heads.py eagle --teacher FOLDER --answers answers.pt --out FOLDER

The main model stays as it is. A head learns its distribution at later positions, along the model's
own answers (`answers.py`) and, for lists, along the rows of the training data.
"""

import argparse
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from answers import Passages, load_answers
from check import load_exported
from data import Encoder, recall_parts
from export_heads import export_head, load_head
from heads import EagleHead, Head, MedusaHeads
from model import Decoder
from optimizers import fast_products, optimizers_for
from train import LOG_STEPS, SAVE_SECONDS, rate_factor

# Rows of lists: every few steps, of which lengths, together how many tokens.
RECALL_STEPS = 2
RECALL_ROW_TOKENS = (256, 512, 512, 1024)
RECALL_BATCH_TOKENS = 1024
# Of matrices and of the others.
PEAK_RATES = {"medusa": (0.02, 0.01), "eagle": (0.004, 0.003)}
# Users ask for one value at a time.
SEVERAL_SHARE = 0.1
# An EAGLE head learns to go on from this many features, the first the model's, the rest its own.
EAGLE_ROUNDS = 3
FEATURE_WEIGHT = 0.2
# Of rows: how many have a prefix without features, as where a cache held the keys and values.
CACHED_SHARE = 0.5


@dataclass(frozen=True)
class Aims:
    """What the main model would say next in some passages.

    `probs` is [picked, vocabulary] and holds the positions whose next token the model said;
    `places` [rows, tokens] says where in it.
    """

    probs: Tensor
    places: Tensor


@torch.no_grad()
def aims_of(teacher: Decoder, passages: Passages) -> Aims:
    picked = said_after(passages.said, 1)
    probs = teacher.logits(passages.features[picked].float()).float().softmax(-1)
    return Aims(probs, picked.flatten().cumsum(0).view_as(picked) - 1)


def said_after(said_BT: Tensor, tokens: int) -> Tensor:
    """At which positions each of the next `tokens` tokens was said by the model; [rows, tokens]."""
    windows = functional.pad(said_BT, (0, tokens))[:, 1:].unfold(1, tokens, 1)
    return windows.all(-1)


def judge(teacher: Decoder, guesses_NC: Tensor, probs_NV: Tensor) -> tuple[Tensor, float]:
    """The cross-entropy of guessed features with what the model says, and how often both agree."""
    tries = teacher.logits(guesses_NC).float()
    agreed = (tries.argmax(-1) == probs_NV.argmax(-1)).float().mean().item()
    return functional.cross_entropy(tries, probs_NV), agreed


def medusa_loss(
    teacher: Decoder, heads: MedusaHeads, passages: Passages
) -> tuple[Tensor, list[float]]:
    """The heads' cross-entropies together, and each head's agreement."""
    aims = aims_of(teacher, passages)
    losses, agreed = [], []
    for i, block in enumerate(heads.blocks, 1):
        from_here = said_after(passages.said, i + 1)
        aimed = aims.places.roll(-i, 1)[from_here]
        guessed = block(passages.features[from_here].float())
        loss, agreement = judge(teacher, guessed, aims.probs[aimed])
        losses.append(loss)
        agreed.append(agreement)
    return torch.stack(losses).sum(), agreed


def eagle_loss(teacher: Decoder, head: EagleHead, passages: Passages) -> tuple[Tensor, list[float]]:
    """Cross-entropy and distance of features over the rounds, and each round's agreement."""
    aims = aims_of(teacher, passages)
    features = passages.features.float()
    known = without_cached(features, passages.said)
    embedded = teacher.embed_tokens(passages.ids)
    start = int(passages.said.any(0).nonzero()[0])
    rounds = head(embedded[:, 1:], known[:, :-1], EAGLE_ROUNDS, start - 1)
    losses, agreed = [], []
    for i, guesses in enumerate(rounds, 1):
        # Drafts begin at the model's latest feature, so i positions after the first one.
        here = said_after(passages.said, i + 1).roll(i, 1)
        guessed = guesses[here[:, start:]]
        loss, agreement = judge(teacher, guessed, aims.probs[aims.places[here]])
        distance = functional.smooth_l1_loss(guessed, features[here])
        losses.append(loss + FEATURE_WEIGHT * distance)
        agreed.append(agreement)
    return torch.stack(losses).sum(), agreed


def without_cached(features_BTC: Tensor, said_BT: Tensor) -> Tensor:
    """Features with zeros for a prefix of some rows, of any length that leaves the first token
    that was said its feature: a prompt's last token is never taken from a cache."""
    rows, tokens = said_BT.shape
    most = (said_BT.int().argmax(1) - 1).clamp(min=0)
    cached = torch.rand(rows) < CACHED_SHARE
    lengths = (torch.rand(rows) * (most + 1)).floor() * cached
    known = torch.arange(tokens) >= lengths[:, None]
    return features_BTC * known[..., None]


class HeadTrainer:
    """One run: the model, the head, its optimizers, data and the clock."""

    def __init__(
        self,
        teacher: Decoder,
        head: Head,
        answers: list[Passages],
        encoder: Encoder,
        seconds: float,
        seed: int,
    ) -> None:
        self.teacher, self.head, self.answers, self.encoder = teacher, head, answers, encoder
        self.rng = Random(seed)
        kind = "medusa" if isinstance(head, MedusaHeads) else "eagle"
        self.optimizers = optimizers_for(head, *PEAK_RATES[kind])
        self.started, self.seconds, self.steps = time.monotonic(), seconds, 0

    @property
    def share(self) -> float:
        return (time.monotonic() - self.started) / self.seconds

    def step(self) -> list[float]:
        """One update; the loss on answers, then the agreement of each head or round."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate_factor(self.steps, self.share)
        seen = self._backward(self.rng.choice(self.answers))
        if self.steps % RECALL_STEPS == 0:
            self._backward(self._lists())
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return seen

    def _lists(self) -> Passages:
        row_tokens = self.rng.choice(RECALL_ROW_TOKENS)
        draw = partial(recall_parts, self.rng, row_tokens, SEVERAL_SHARE)
        count = RECALL_BATCH_TOKENS // row_tokens
        rows = [self.encoder.row(draw, row_tokens) for _ in range(count)]
        ids, weights = (torch.tensor(part) for part in zip(*rows, strict=True))
        with torch.no_grad():
            return Passages(ids, weights > 0, self.teacher(ids))

    def _backward(self, passages: Passages) -> list[float]:
        with fast_products():
            if isinstance(self.head, MedusaHeads):
                loss, agreed = medusa_loss(self.teacher, self.head, passages)
            else:
                loss, agreed = eagle_loss(self.teacher, self.head, passages)
        torch.autograd.backward(loss)
        return [loss.item(), *agreed]


def run(trainer: HeadTrainer, out: Path) -> None:
    """Steps until the time is over, with a log line and a copy of the weights now and then."""
    vocabulary = trainer.teacher.shape.vocabulary
    saved = time.monotonic()
    seen: list[list[float]] = []
    while trainer.share < 1:
        seen.append(trainer.step())
        if trainer.steps % LOG_STEPS == 0:
            loss, *agreed = torch.tensor(seen).nanmean(0).tolist()
            seen.clear()
            shares = " ".join(f"{share:.3f}" for share in agreed)
            print(f"{trainer.steps} {trainer.share:.3f} loss {loss:.4f} agree {shares}", flush=True)
        if time.monotonic() - saved > SAVE_SECONDS:
            export_head(trainer.head, vocabulary, out)
            saved = time.monotonic()
    export_head(trainer.head, vocabulary, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("medusa", "eagle"))
    parser.add_argument("--teacher", type=Path, required=True, help="the exported main model")
    parser.add_argument("--answers", type=Path, required=True, help="what answers.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--resume", type=Path, help="a folder with weights to go on from")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    encoder = Encoder(Tokenizer.from_file(str(options.teacher / "tokenizer.json")))
    teacher = load_exported(options.teacher).requires_grad_(False)
    head: Head
    if options.resume:
        head = load_head(options.resume).train()
    else:
        head = MedusaHeads() if options.kind == "medusa" else EagleHead()
    answers = load_answers(options.answers)
    seconds = options.minutes * 60
    trainer = HeadTrainer(teacher, head, answers, encoder, seconds, options.seed)
    run(trainer, options.out)


if __name__ == "__main__":
    main()
