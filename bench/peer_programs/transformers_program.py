"""`generate` of transformers; several prompts are one padded batch, and all of them run to the end
of the longest answer. `kind` is what torch computes in."""

import torch
from protocol import Answer, Generate, Watch, Wishes, serve
from torch import Tensor
from transformers import AutoModelForCausalLM


class Stamps:
    """A streamer; the first thing that it is given is the prompt."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._prompt_came = False

    def put(self, value: Tensor) -> None:  # noqa: ARG002 - only when it comes
        if self._prompt_came:
            self._watch.token_came()
        self._prompt_came = True

    def end(self) -> None:
        pass


def load_transformers(wishes: Wishes) -> Generate:
    torch.set_num_threads(wishes.threads)
    dtype = getattr(torch, wishes.kind)
    model = AutoModelForCausalLM.from_pretrained(wishes.model, dtype=dtype).eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], answers: list[int]) -> Answer:
        longest, most = max(map(len, prompts)), max(answers)
        ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        watch = Watch()
        said = model.generate(
            ids,
            attention_mask=mask,
            min_new_tokens=most,
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=0,
            streamer=Stamps(watch) if len(prompts) == 1 else None,
        )
        return watch.answer(said[:, longest:].tolist())

    return generate


serve(load_transformers)
