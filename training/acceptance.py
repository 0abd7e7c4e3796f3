"""Acceptance of drafted chains along the main model's greedy replies to held-out tasks.

    python training/acceptance.py MODEL_DIR DRAFTER_DIR ...

A drafter is a folder with Medusa or EAGLE heads or a smaller model. Steps are walked through as in
serving: a step drafts a chain after the newest token, keeps what the model would have said, up to
the first mistake, and gains one token more from the model itself.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from answers import END_OF_TURN, answer
from check import load_exported
from export_heads import load_head
from heads import EagleHead, MedusaHeads
from model import Decoder
from sample import held_out_tasks, prompt_text

SUITES = ("arithmetic", "tool_call", "recall-512", "fluency")
CHAINS = (3, 4)
TASKS, SEED = 40, 5


@dataclass(frozen=True)
class Reply:
    """A prompt and the model's greedy reply: `ids` [tokens], the model's `features` of them
    [tokens, hidden], and how many of them are the prompt's."""

    ids: Tensor
    features: Tensor
    prompt_tokens: int


# Guessed tokens [tokens, longest chain]: at a position whose feature is the model's newest (so that
# the token after it is known), what comes after that token; right where all before it are right.
Guess = Callable[[Reply], Tensor]


@dataclass
class Tally:
    """Steps of a chain of drafts: `tried` and `right` drafts by their place in it, as far as all
    before it were right."""

    chain: int
    steps: int = 0
    gained_tokens: int = 0
    tried: list[int] = field(default_factory=lambda: [0] * max(CHAINS))
    right: list[int] = field(default_factory=lambda: [0] * max(CHAINS))

    def walk(self, reply: Reply, guesses: Tensor) -> None:
        """Adds the steps of a reply; its first token came with the prompt's pass."""
        newest, last = reply.prompt_tokens, len(reply.ids) - 1
        while newest < last:
            accepted = 0
            for guess in guesses[newest - 1, : min(self.chain, last - newest)]:
                self.tried[accepted] += 1
                if guess != reply.ids[newest + 1 + accepted]:
                    break
                self.right[accepted] += 1
                accepted += 1
            gained = min(accepted + 1, last - newest)
            self.steps, self.gained_tokens = self.steps + 1, self.gained_tokens + gained
            newest += gained

    def __str__(self) -> str:
        shares = " ".join(
            f"{right / max(tried, 1):.3f}"
            for right, tried in zip(self.right[: self.chain], self.tried, strict=False)
        )
        accepted, tokens = sum(self.right) / self.steps, self.gained_tokens / self.steps
        return f"chain {self.chain}: right {shares}, accepted {accepted:.2f}, a step {tokens:.2f}"


def medusa_guesses(teacher: Decoder, heads: MedusaHeads) -> Guess:
    def guess(reply: Reply) -> Tensor:
        return torch.stack([teacher.logits(x).argmax(-1) for x in heads(reply.features)], 1)

    return guess


def eagle_guesses(teacher: Decoder, head: EagleHead, cached: bool) -> Guess:
    """`cached`: of the prompt only the last token's feature is known, as after a prefix hit."""

    def guess(reply: Reply) -> Tensor:
        features = reply.features.clone()
        if cached:
            features[: reply.prompt_tokens - 1] = 0
        embedded = teacher.embed_tokens(reply.ids[None, 1:])
        rounds = head(embedded, features[None, :-1], max(CHAINS))
        tokens = [teacher.logits(features[0]).argmax(-1) for features in rounds]
        # The head's first position is 1; each round's drafts are one position later.
        return torch.stack([x.roll(-i) for i, x in enumerate(tokens)], 1)

    return guess


def draft_guesses(draft: Decoder) -> Guess:
    def guess(reply: Reply) -> Tensor:
        tokens = draft.logits(draft(reply.ids[None])[0]).argmax(-1)
        return torch.stack([tokens.roll(-1 - i) for i in range(max(CHAINS))], 1)

    return guess


def drafters(teacher: Decoder, folder: Path) -> dict[str, Guess]:
    """What is in a folder, by the names under which it is reported."""
    if (folder / "tokenizer.json").exists():
        return {folder.name: draft_guesses(load_exported(folder))}
    head = load_head(folder)
    if isinstance(head, MedusaHeads):
        return {folder.name: medusa_guesses(teacher, head)}
    return {
        folder.name: eagle_guesses(teacher, head, cached=False),
        f"{folder.name}, prompt cached": eagle_guesses(teacher, head, cached=True),
    }


@torch.inference_mode()
def replies(teacher: Decoder, tokenizer: Tokenizer, suite: str, count: int) -> list[Reply]:
    end = tokenizer.token_to_id(END_OF_TURN)
    found = []
    for task in held_out_tasks(tokenizer, suite, count, SEED):
        prompt = torch.tensor([tokenizer.encode(prompt_text(task), add_special_tokens=False).ids])
        answered = answer(teacher, prompt, end)
        found.append(Reply(answered.ids[0], answered.features[0], prompt.shape[1]))
    return found


@torch.inference_mode()
def main() -> None:
    """For each suite and drafter one line a chain length, and the same over all suites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("drafters", type=Path, nargs="+")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--suites", nargs="+", default=SUITES)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    teacher = load_exported(options.model)
    guesses: dict[str, Guess] = {}
    for folder in options.drafters:
        guesses |= drafters(teacher, folder)
    asked = {name: replies(teacher, tokenizer, name, options.tasks) for name in options.suites}
    asked["all"] = [reply for found in asked.values() for reply in found]
    for suite, found in asked.items():
        tokens = sum(len(reply.ids) - reply.prompt_tokens for reply in found)
        print(f"{suite}: {len(found)} replies, {tokens} tokens")
        for name, guess in guesses.items():
            tallies = [Tally(chain) for chain in CHAINS]
            for reply in found:
                guessed = guess(reply)
                for tally in tallies:
                    tally.walk(reply, guessed)
            for tally in tallies:
                print(f"  {name}: {tally}", flush=True)


if __name__ == "__main__":
    main()
