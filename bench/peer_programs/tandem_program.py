"""Tandem's engine, in process: `kind` is how weights are stored."""

from pathlib import Path
from typing import get_args

import torch
from protocol import Answer, Generate, Watch, Wishes, serve

from model import BLOCK_SIZE, HALF_BILLION, Rig, load
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import choose_kernels
from tandem.kernels.packed import Storage


def load_tandem(wishes: Wishes) -> Generate:
    torch.set_num_threads(wishes.threads)
    storage: Storage = next(each for each in get_args(Storage) if each == wishes.kind)
    kernels, reason = choose_kernels(torch.device("cpu"), torch.float32, True, "auto")
    assert kernels.batch_invariant, reason
    decoder = load(HALF_BILLION, storage, kernels, Path(wishes.model))
    blocks = -(-wishes.sequences * wishes.context_tokens // BLOCK_SIZE)
    rig = Rig.around(decoder, wishes.sequences, blocks)

    def generate(prompts: list[list[int]], answers: list[int]) -> Answer:
        watch = Watch()

        def run(plan: StepPlan) -> StepResult:
            result = rig.engine.run(plan)
            if result.tokens:
                watch.token_came()
            return result

        requests = [
            Request(
                str(number),
                tuple(prompt),
                SamplingParameters(temperature=0.0, max_tokens=answers[number]),
            )
            for number, prompt in enumerate(prompts)
        ]
        said = rig.answer(requests, run)
        return watch.answer([said[str(number)] for number in range(len(prompts))])

    return generate


serve(load_tandem)
