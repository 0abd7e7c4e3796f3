"""Teaches the draft model to speak like the main one, within a given number of minutes.

    python training/distill.py --teacher FOLDER/model.pt --tokenizer T.json --out FOLDER

The draft learns the main model's distribution at every position the main model was trained on,
which is what speculation pays for: how often both draw the same next token.
"""

import argparse
import time
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from data import Encoder
from model import DRAFT, MAIN, Decoder
from train import (
    LOG_STEPS,
    Batch,
    Courtesy,
    chat_batch,
    optimizers_for,
    rate_factor,
    recall_batch,
    save,
)

# A draft of two layers is spared the longest lists.
CURRICULUM_SHARE = 0.74
COURTESY_STEPS = 5
SAVE_STEPS = 500


def load_stored(path: Path) -> Decoder:
    """The main model with its weights rounded as they are shipped."""
    teacher = Decoder(MAIN)
    weights = torch.load(path, weights_only=True)
    teacher.load_state_dict({name: weight.bfloat16().float() for name, weight in weights.items()})
    return teacher.eval().requires_grad_(False)


def distil_loss(teacher: Decoder, draft: Decoder, batch: Batch) -> tuple[torch.Tensor, float]:
    """Weighted KL of the draft from the teacher, and how often their greedy tokens agree."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            aims = teacher.logits(teacher(batch.ids).flatten(0, 1)[batch.positions]).float()
        tries = draft.logits(draft(batch.ids).flatten(0, 1)[batch.positions]).float()
    divergence = functional.kl_div(
        tries.log_softmax(-1), aims.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    loss = (divergence * batch.weights).sum() / batch.weights.sum()
    return loss, (tries.argmax(-1) == aims.argmax(-1)).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng, encoder = Random(options.seed), Encoder(Tokenizer.from_file(str(options.tokenizer)))
    teacher, draft = load_stored(options.teacher), Decoder(DRAFT)
    optimizers, courtesy = optimizers_for(draft), Courtesy(options.threads)
    started, steps = time.monotonic(), 0
    sums = torch.zeros(4)
    while (share := (time.monotonic() - started) / (options.minutes * 60)) < 1:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate_factor(steps, share)
        seen: list[float] = []
        for batch in (
            chat_batch(rng, encoder),
            recall_batch(rng, encoder, share * CURRICULUM_SHARE),
        ):
            loss, agreed = distil_loss(teacher, draft, batch)
            torch.autograd.backward(loss)
            seen += [loss.item(), agreed]
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        steps += 1
        sums += torch.tensor(seen)
        if steps % COURTESY_STEPS == 0:
            courtesy.adjust()
        if steps % LOG_STEPS == 0:
            chat, chat_agreed, recalled, recall_agreed = (sums / LOG_STEPS).tolist()
            sums.zero_()
            print(
                f"{steps} {share:.3f} chat {chat:.4f} agree {chat_agreed:.3f} "
                f"recall {recalled:.4f} agree {recall_agreed:.3f}",
                flush=True,
            )
        if steps % SAVE_STEPS == 0:
            save(draft, options.out / "draft.pt")
    save(draft, options.out / "draft.pt")


if __name__ == "__main__":
    main()
