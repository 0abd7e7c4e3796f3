"""How often the draft says what the main model says, greedily, along the main model's own replies.

python training/agreement.py MAIN_DIR DRAFT_DIR
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from check import load_exported
from sample import held_out_tasks, prompt_text, reply

SUITES = ("arithmetic", "tool_call", "recall-512")
TASKS = 30


@torch.inference_mode()
def main(main_folder: Path, draft_folder: Path) -> None:
    """One line a suite: the share of reply tokens on which both agree."""
    tokenizer = Tokenizer.from_file(str(main_folder / "tokenizer.json"))
    model, draft = load_exported(main_folder), load_exported(draft_folder)
    for suite in SUITES:
        agreed = total = 0
        for task in held_out_tasks(tokenizer, suite, TASKS, 5):
            prompt = prompt_text(task)
            start = len(tokenizer.encode(prompt).ids)
            whole = prompt + reply(model, tokenizer, prompt) + "<|im_end|>"
            ids = torch.tensor([tokenizer.encode(whole).ids])
            guesses = draft.logits(draft(ids))[0, start - 1 : -1].argmax(-1)
            agreed += int((guesses == ids[0, start:]).sum())
            total += len(guesses)
        print(f"{suite} n={TASKS} tokens={total}: {agreed / total:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
