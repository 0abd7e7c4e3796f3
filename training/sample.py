"""Greedy and sampled replies of a model in training, and its scores on held-out tasks.

One reply at a time over a growing cache: slow beside the serving engine and simple enough to trust.
"""

from collections.abc import Callable
from random import Random

import torch
from tokenizers import Tokenizer

from chat import ASSISTANT, tool_header, turns
from model import Decoder
from tandem.bench.tasks.arithmetic import arithmetic
from tandem.bench.tasks.fluency import fluency
from tandem.bench.tasks.recall import recall
from tandem.bench.tasks.task import Task, score
from tandem.bench.tasks.tool_call import tool_call

Sampler = Callable[[torch.Tensor], int]


def prompt_text(task: Task) -> str:
    """The prompt of a task, up to where the assistant begins."""
    parts = [tool_header(task.tools)] if task.tools else []
    return "".join(part.text for part in parts + turns(task.messages)) + ASSISTANT


@torch.inference_mode()
def reply(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str,
    most_tokens: int = 200,
    temperature: float = 0.0,
) -> str:
    """What the model says next, up to the end of its turn."""
    end = tokenizer.token_to_id("<|im_end|>")
    past: list[list[torch.Tensor]] = [[] for _ in model.layers]
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    out: list[int] = []
    step = torch.tensor([ids])
    for _ in range(most_tokens):
        logits = model.logits(model(step, past)[0, -1])
        if temperature:
            token = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1))
        else:
            token = int(logits.argmax())
        if token == end:
            break
        out.append(token)
        step = torch.tensor([[token]])
    return tokenizer.decode(out, skip_special_tokens=True)


def held_out_tasks(tokenizer: Tokenizer, suite: str, count: int, seed: int) -> list[Task]:
    """Tasks of a suite: arithmetic, tool_call, fluency, or recall with its context, as in
    recall-2048."""
    rng = Random(f"{suite} {seed}")
    if suite.startswith("recall-"):
        context_tokens = int(suite.removeprefix("recall-"))
        return [
            recall(rng, context_tokens, lambda text: len(tokenizer.encode(text).ids))
            for _ in range(count)
        ]
    if suite == "fluency":
        return [fluency(rng) for _ in range(count)]
    draw = {"arithmetic": arithmetic, "tool_call": tool_call}[suite]
    return [draw(rng, held_out=True) for _ in range(count)]


def accuracy(
    model: Decoder,
    tokenizer: Tokenizer,
    tasks: list[Task],
    temperature: float = 0.0,
    failures: list[tuple[Task, str]] | None = None,
) -> float:
    """The share of tasks whose reply is right; wrong ones are added to `failures`."""
    right = 0
    for task in tasks:
        text = reply(model, tokenizer, prompt_text(task), temperature=temperature)
        if score(task, text):
            right += 1
        elif failures is not None:
            failures.append((task, text))
    return right / len(tasks)
