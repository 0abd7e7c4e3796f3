"""Checks an exported folder against the training code, with transformers as the judge.

    python training/check.py DIR

Same prompts from the template as from `chat.py`, same tokens from the whole text as from its
parts, same logits from transformers as from `model.py`.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat import Part, tool_header, turns
from data import Encoder
from model import DRAFT, MAIN, Decoder
from sample import held_out_tasks, prompt_text
from tandem.bench.tasks.task import Task

SUITES = ("tool_call", "arithmetic", "recall-512")
TASKS = 10
LOGIT_TOLERANCE = 1e-3


def load_exported(folder: Path) -> Decoder:
    """The stored weights in the training code's model."""
    stored = load_file(folder / "model.safetensors")
    weights = {name.removeprefix("model."): weight.float() for name, weight in stored.items()}
    model = Decoder(MAIN if weights["norm.weight"].numel() == MAIN.hidden else DRAFT)
    model.load_state_dict(weights)
    return model.eval()


def conversation(task: Task) -> list[Part]:
    """A task with its reference reply, as training sees it."""
    header = [tool_header(task.tools)] if task.tools else []
    return header + turns([*task.messages, task.reference])


@torch.inference_mode()
def check(folder: Path) -> float:
    """The largest difference between two logits; raises AssertionError where texts differ."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours, encoder = load_exported(folder), Encoder(tokenizer)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    worst = 0.0
    for task in [task for suite in SUITES for task in held_out_tasks(tokenizer, suite, TASKS, 1)]:
        messages, tools = list(task.messages), list(task.tools) or None
        render = their_tokenizer.apply_chat_template
        prompt = render(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert prompt == prompt_text(task)
        whole = render([*messages, task.reference], tools=tools, tokenize=False)
        assert whole == "".join(part.text for part in conversation(task))
        ids = their_tokenizer(whole, return_tensors="pt").input_ids
        assert ids[0].tolist() == encoder.encode(conversation(task))[0]
        worst = max(worst, float((theirs(ids).logits - ours.logits(ours(ids))).abs().max()))
    text = "".join(map(chr, (*range(1, 600), 0x2211, 0x6F22, 0x1F600))) + " 12,345\n\n x"
    assert their_tokenizer.decode(their_tokenizer(text).input_ids) == text
    return worst


if __name__ == "__main__":
    difference = check(Path(sys.argv[1]))
    print(f"largest difference of a logit: {difference:.1e}")
    assert difference < LOGIT_TOLERANCE
