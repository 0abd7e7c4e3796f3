"""Trains the bundled model from nothing, within a given number of minutes on a CPU.

    python training/train.py --tokenizer TOKENIZER.json --out FOLDER --minutes 60

The learning rate and the curriculum follow the clock, so a slower machine sees less data but
still finishes with a decayed learning rate. Lists start short, until the copying circuit forms,
and grow to the full context.
"""

import argparse
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from data import VALUE_WEIGHT, Encoder, Row, chat_parts, echo_parts, recall_parts, tool_parts
from model import MAIN, Decoder
from neighbours import add_neighbour_heads
from optimizers import fast_products, optimizers_for
from sample import accuracy, held_out_tasks

RECALL_BATCH_TOKENS = 2048
CHAT_BATCH_TOKENS = 3072
CHAT_ROW_TOKENS = 256
TOOL_ROW_TOKENS = 512
# How many of the chat batches have tools, from a share of the time on: calls are learned last.
TOOL_SHARES: tuple[tuple[float, float], ...] = ((0.0, 0.45), (0.84, 0.7))
# From a share of the time on: how often recall rows have which length.
CURRICULUM: tuple[tuple[float, dict[int, float]], ...] = (
    (0.00, {128: 0.8, 256: 0.2}),
    (0.20, {128: 0.3, 256: 0.5, 512: 0.2}),
    (0.30, {256: 0.35, 512: 0.4, 1024: 0.25}),
    (0.42, {256: 0.15, 512: 0.35, 1024: 0.5}),
    (0.55, {256: 0.1, 512: 0.2, 1024: 0.45, 2048: 0.25}),
    (0.75, {256: 0.05, 512: 0.1, 1024: 0.3, 2048: 0.45, 4096: 0.1}),
)
# Until then half of the rows of a recall batch repeat a text: every token of it trains copying.
ECHO_UNTIL = 0.25
# And chats wait: only every third step has one.
CHAT_STEPS_EARLY = 3
WARMUP_STEPS = 20
DECAY_FROM = 0.5
LOG_STEPS = 50
COURTESY_STEPS = 5
SAVE_SECONDS = 90


@dataclass(frozen=True)
class Batch:
    """Rows of equal length, and which positions count how much.

    `ids` is [rows, tokens]; the others are one number a counted position, `positions` in the
    flattened rows.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor


def batch_of(rows: list[Row]) -> Batch:
    ids = torch.tensor([row[0] for row in rows])
    weights = torch.tensor([row[1] for row in rows])[:, 1:].flatten()
    positions = weights.nonzero().flatten()
    return Batch(ids[:, :-1], positions, ids[:, 1:].flatten()[positions], weights[positions])


def chat_batch(
    rng: Random, encoder: Encoder, share: float, tool_share: float | None = None
) -> Batch:
    """Small talk and arithmetic, or chats with tools: by the plan, or in that share."""
    if tool_share is None:
        tool_share = next(wanted for start, wanted in reversed(TOOL_SHARES) if share >= start)
    tools = rng.random() < tool_share
    row_tokens, draw = (TOOL_ROW_TOKENS, tool_parts) if tools else (CHAT_ROW_TOKENS, chat_parts)
    return batch_of(
        [
            encoder.row(partial(draw, rng), row_tokens)
            for _ in range(CHAT_BATCH_TOKENS // row_tokens)
        ]
    )


def recall_batch(rng: Random, encoder: Encoder, share: float) -> Batch:
    """Lists of one length, drawn from what the curriculum allows now."""
    lengths = next(choice for start, choice in reversed(CURRICULUM) if share >= start)
    row_tokens = rng.choices(list(lengths), list(lengths.values()))[0]
    count = max(1, RECALL_BATCH_TOKENS // row_tokens)
    draws = [partial(recall_parts, rng, row_tokens) for _ in range(count)]
    if share < ECHO_UNTIL:
        draws[: count // 2] = [partial(echo_parts, rng)] * (count // 2)
    return batch_of([encoder.row(draw, row_tokens) for draw in draws])


def rate_factor(step: int, share: float) -> float:
    """Warm-up by steps, then flat, then down to zero at the end of the time."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, max(0.0, (1 - share) / (1 - DECAY_FROM)))


class Courtesy:
    """Gives one core back while other programs compute.

    With a thread on a busy core every parallel region waits for that thread, and two threads are
    slower than one.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._seen = _others_seconds(), time.monotonic()

    def adjust(self) -> None:
        """To be called every few seconds."""
        (before, then), self._seen = self._seen, (_others_seconds(), time.monotonic())
        busy_cores = (self._seen[0] - before) / max(self._seen[1] - then, 1e-9)
        torch.set_num_threads(1 if busy_cores > 0.35 else self.threads)


def _others_seconds() -> float:
    """Processor seconds of the machine since it started, less those of this process."""
    user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / 100 - time.process_time()


class Trainer:
    """One run: model, optimizers, data and the clock. `tool_share` as `chat_batch` takes it; every
    `recall_steps` steps there is a list."""

    def __init__(
        self,
        encoder: Encoder,
        seconds: float,
        seed: int,
        start_share: float = 0.0,
        *,
        tool_share: float | None = None,
        recall_steps: int = 1,
    ) -> None:
        torch.manual_seed(seed)
        self.encoder = encoder
        self.rng = Random(seed)
        self.model = Decoder(MAIN)
        add_neighbour_heads(self.model)
        self.optimizers = optimizers_for(self.model)
        self.started = time.monotonic() - start_share * seconds
        self.seconds = seconds
        self.tool_share, self.recall_steps = tool_share, recall_steps
        self.steps = 0
        self.tokens = 0

    @property
    def share(self) -> float:
        return (time.monotonic() - self.started) / self.seconds

    def step(self) -> tuple[float, float, float]:
        """One update; the losses of both kinds and the share of right values."""
        factor = rate_factor(self.steps, self.share)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
        chat_loss = math.nan
        if self.share > ECHO_UNTIL or self.steps % CHAT_STEPS_EARLY == 0:
            chats = chat_batch(self.rng, self.encoder, self.share, self.tool_share)
            chat_loss, _ = self._backward(chats)
        recall_loss, right = math.nan, math.nan
        if self.steps % self.recall_steps == 0:
            lists = recall_batch(self.rng, self.encoder, self.share)
            recall_loss, right = self._backward(lists)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return chat_loss, recall_loss, right

    def _backward(self, batch: Batch) -> tuple[float, float]:
        with fast_products():
            hidden = self.model(batch.ids).flatten(0, 1)[batch.positions]
            logits = self.model.logits(hidden).float()
        losses = functional.cross_entropy(logits, batch.targets, reduction="none")
        loss = (losses * batch.weights).sum() / batch.weights.sum()
        torch.autograd.backward(loss)
        self.tokens += batch.ids.numel()
        values = batch.weights == VALUE_WEIGHT
        hits = (logits.argmax(-1) == batch.targets)[values]
        return loss.item(), hits.float().mean().item() if hits.numel() else math.nan


def quick_scores(model: Decoder, tokenizer: Tokenizer) -> str:
    """A few held-out tasks of each suite, to watch a run."""
    counts = {
        "recall-512": 20,
        "recall-1024": 20,
        "recall-2048": 10,
        "arithmetic": 30,
        "tool_call": 30,
    }
    scores = {
        name: accuracy(model, tokenizer, held_out_tasks(tokenizer, name, n, 7))
        for name, n in counts.items()
    }
    return " ".join(f"{name}={value:.2f}" for name, value in scores.items())


def run(
    trainer: Trainer, tokenizer: Tokenizer, out: Path, eval_seconds: float, threads: int
) -> None:
    """Steps until the time is over, with a log line, a checkpoint and scores now and then."""
    saved = scored = logged = time.monotonic()
    counted = 0
    sums: list[tuple[float, float, float]] = []
    courtesy = Courtesy(threads)
    while trainer.share < 1:
        sums.append(trainer.step())
        now = time.monotonic()
        if trainer.steps % COURTESY_STEPS == 0:
            courtesy.adjust()
        if trainer.steps % LOG_STEPS == 0:
            chat, recalled, right = torch.tensor(sums).nanmean(0).tolist()
            sums.clear()
            rate = (trainer.tokens - counted) / (now - logged)
            counted, logged = trainer.tokens, now
            print(
                f"{trainer.steps} {trainer.share:.3f} chat {chat:.4f} recall {recalled:.4f} "
                f"values {right:.3f} tokens {trainer.tokens} ({rate:.0f}/s, "
                f"{torch.get_num_threads()} threads)",
                flush=True,
            )
        if now - saved > SAVE_SECONDS:
            save(trainer.model, out / "model.pt")
            saved = now
        if now - scored > eval_seconds:
            print("scores", quick_scores(trainer.model, tokenizer), flush=True)
            scored = time.monotonic()
    save(trainer.model, out / "model.pt")
    print("final", quick_scores(trainer.model, tokenizer), flush=True)


def save(model: Decoder, path: Path) -> None:
    """Atomically, as others may read it while training goes on."""
    part = path.with_suffix(".part")
    torch.save(model.state_dict(), part)
    part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval-minutes", type=float, default=8)
    parser.add_argument("--resume", type=Path, help="weights to go on from")
    parser.add_argument(
        "--start-share", type=float, default=0.0, help="share of the time that is over"
    )
    parser.add_argument("--tool-share", type=float, help="of chats; by the plan if left out")
    parser.add_argument("--recall-steps", type=int, default=1, help="lists in every so many steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    trainer = Trainer(
        Encoder(tokenizer),
        options.minutes * 60,
        options.seed,
        options.start_share,
        tool_share=options.tool_share,
        recall_steps=options.recall_steps,
    )
    if options.resume:
        trainer.model.load_state_dict(torch.load(options.resume, weights_only=True))
    run(trainer, tokenizer, options.out, options.eval_minutes * 60, options.threads)


if __name__ == "__main__":
    main()
