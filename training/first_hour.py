"""What newcomers try, asked of an exported model: small sums as people type them, a request that no
tool fits, and the result of a tool as programs write it in Python, in JavaScript, or for people.

    python training/first_hour.py DIR
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from check import load_exported
from data import small_sum_parts
from model import Decoder
from sample import accuracy, prompt_text, reply
from tandem.bench.tasks.task import Task
from tandem.bench.tasks.tool_call import NO_TOOL_REPLY, tool_call

SUMS, MISSING, RESULTS = 60, 60, 20
SEED = 77
FORMS: dict[str, dict[str, Any]] = {
    "in Python's JSON": {},
    "in JavaScript's JSON": {"separators": (",", ":")},
    "in lines of JSON": {"indent": 2},
}


def right_sums(model: Decoder, tokenizer: Tokenizer, count: int) -> int:
    """How many have the right answer at their end."""
    rng, right = Random(SEED), 0
    for _ in range(count):
        asked, opened, *spoken = (part.text for part in small_sum_parts(rng))
        wanted = "".join(spoken).partition("<|im_end|>")[0].rpartition("Answer:")[2]
        right += reply(model, tokenizer, asked + opened).rpartition("Answer:")[2] == wanted
    return right


def missing_tools(rng: Random) -> Iterator[Task]:
    """Requests for something that none of the tools does."""
    while True:
        task = tool_call(rng, missing_share=1.0)
        if task.reference["content"] == NO_TOOL_REPLY:
            yield task


def told_results(rng: Random) -> Iterator[Task]:
    """Results that the model is to tell."""
    while True:
        task = tool_call(rng)
        if task.messages[-1]["role"] == "tool":
            yield task


def written(task: Task, form: dict[str, Any]) -> Task:
    """The same with its result in this form."""
    *before, result = task.messages
    content = json.dumps(json.loads(result["content"]), **form)
    return replace(task, messages=(*before, {**result, "content": content}))


def main(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = load_exported(folder)
    print(f"small sums: {right_sums(model, tokenizer, SUMS)} of {SUMS}", flush=True)
    asked = missing_tools(Random(SEED))
    said = [reply(model, tokenizer, prompt_text(next(asked))) for _ in range(MISSING)]
    print(f"no tool fits: {said.count(NO_TOOL_REPLY)} of {MISSING} say so", flush=True)
    results = told_results(Random(SEED))
    tasks = [next(results) for _ in range(RESULTS)]
    for name, form in FORMS.items():
        share = accuracy(model, tokenizer, [written(task, form) for task in tasks])
        print(f"results of tools {name}: {round(share * RESULTS)} of {RESULTS}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
