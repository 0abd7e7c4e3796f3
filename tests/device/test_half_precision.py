"""The engine as a GPU runs it: bf16 from weights to KV, on the torch kernels.

The arithmetic is checked on whatever is here; with CUDA the same cases run there too.
"""

import pytest
import torch

from tandem.engine.engine import Engine
from tandem.engine.slots import SlotShape
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.kernels.faces import reference_kernels
from tandem.kv.layout import KvLayout
from tandem.kv.store import KvStore
from tandem.messages.worker import RequestsArrived, RunStep, StepDone
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.weights import WeightForm
from tests.engine.tiny import CONTEXT_TOKENS, Arithmetic, Bench, Shape, tiny_decoder, tiny_spec

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SHAPE = Shape(block_size=4, blocks=40, max_sequences=4, max_batched_tokens=12)


def requests() -> list[Request]:
    return [
        Request(
            str(index),
            tuple(range(1, 9 + 3 * index)),
            SamplingParameters(
                temperature=0.7 * (index % 2),
                seed=index,
                max_tokens=10,
                top_logprobs=2,
                repetition_penalty=1.0 + 0.1 * (index // 2),
                min_tokens=2,
                stop_token_ids=(7,),
            ),
        )
        for index in range(6)
    ]


def half_precision_bench(device: str, tmp_path) -> Bench:
    """A bench in bf16 on a device; its weights are the dummy ones that every precision rounds."""
    kernels = reference_kernels()
    place = torch.device(device)
    form = WeightForm("bfloat16", torch.bfloat16, place)
    decoder = load_decoder(tiny_spec(), LoadPlan(tmp_path, form, "dummy", seed=3), kernels)
    bench = Bench(
        tiny_decoder(Arithmetic(kernels, "float32")), Arithmetic(kernels, "float32"), SHAPE
    )
    kv = KvStore(KvLayout(2, 2, SHAPE.block_size, 8, "bfloat16"), SHAPE.blocks, place)
    kv.pool_BL2KSD.fill_(float("nan"))
    bench.engine = Engine(decoder, kv, SlotShape(SHAPE.max_sequences, CONTEXT_TOKENS, 4))
    return bench


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_answers_stay_close_to_those_of_float32(device, tmp_path):
    half = half_precision_bench(device, tmp_path)
    half.ask(*requests())
    half.drain()
    full = Bench(
        tiny_decoder(Arithmetic(reference_kernels(), "float32")),
        Arithmetic(reference_kernels(), "float32"),
        SHAPE,
    )
    full.ask(*requests())
    full.drain()
    assert half.finished.keys() == full.finished.keys()
    for name, entries in half.logprobs.items():
        # The first token comes from equal prompts; later ones may follow another path.
        assert abs(entries[0].logprob - full.logprobs[name][0].logprob) < 0.5


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_may_be_launched_before_the_last_one_is_read(device, tmp_path):
    """The token of a step lies on the device: the next step finds it there."""

    def answers(read_late: bool) -> dict[str, list[int]]:
        bench = half_precision_bench(device, tmp_path)
        launched, events = [], [RequestsArrived(tuple(requests()))]
        while events or launched:
            if not events:
                events.append(StepDone(launched.pop(0).result()))
            for effect in bench.machine.handle(events.pop(0), 0):
                if isinstance(effect, RunStep):
                    launched.append(bench.engine.launch(effect.plan))
                    if not read_late:
                        launched[-1].result()
                elif hasattr(effect, "tokens"):
                    bench._take(effect)
        return bench.answers

    assert answers(read_late=True) == answers(read_late=False)
