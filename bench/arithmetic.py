"""The dummy model with products in fewer bits, beside the same in fp32: prefill and decode. Rounds
take turns, because the bandwidth of a shared machine moves."""

import statistics
import time
from dataclasses import dataclass, field

import torch

from figures import Figure
from limits import summarised
from model import HALF_BILLION, Rig, load
from steps import request
from tandem.kernels.faces import choose_kernels
from tandem.kernels.packed import Arithmetic, Storage

# The first is what the others are compared with.
FORMS: tuple[tuple[Arithmetic, Storage], ...] = (
    ("float32", "bfloat16"),
    ("auto", "bfloat16"),
    ("auto", "int8"),
    ("auto", "int4"),
)
PREFILL_TOKENS, CONTEXT_TOKENS, DECODE_TOKENS, ROUNDS = 512, 128, 16, 7


@dataclass
class Form:
    """One of them, with the tokens a second of each round."""

    name: str
    rig: Rig
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def run(self, number: int) -> None:
        start = time.perf_counter()
        self.rig.answer([request(f"prefill{number}", PREFILL_TOKENS, 1)])
        self.prefill.append(PREFILL_TOKENS / (time.perf_counter() - start))
        steps = self.rig.timed([request(f"decode{number}", CONTEXT_TOKENS, DECODE_TOKENS)])
        # The first ones compute the prompt.
        self.decode.append(1 / statistics.median(seconds for _, seconds in steps[3:]))


def arithmetic_figures() -> list[Figure]:
    """Tokens a second of each form; the limit is what the first one reaches. The first round is not
    counted."""
    forms = [_form(arithmetic, storage) for arithmetic, storage in FORMS]
    for number in range(1 + ROUNDS):
        for form in forms:
            form.run(number)
    figures = []
    for name, rates in (
        (f"prefill of {PREFILL_TOKENS} tokens", [form.prefill[1:] for form in forms]),
        (f"decode, batch 1, context {CONTEXT_TOKENS}", [form.decode[1:] for form in forms]),
    ):
        first = summarised(rates[0]).median
        for form, each in zip(forms, rates, strict=True):
            found = summarised(each)
            title = f"{name}, {form.name}"
            figures.append(
                Figure(title, found.median, "tok/s", found.spread, first, "tok/s in fp32")
            )
    return figures


def _form(arithmetic: Arithmetic, storage: Storage) -> Form:
    kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, True, arithmetic)
    decoder = load(HALF_BILLION, storage, kernels, None)
    rig = Rig.around(decoder, slots=1, blocks=256)
    return Form(f"{storage}, arithmetic {arithmetic}", rig)
