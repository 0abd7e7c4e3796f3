"""A dummy model of half a billion parameters (the shape of Qwen2.5-0.5B), and an engine on it."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.engine.adapters import AdapterCache
from tandem.engine.engine import Engine
from tandem.engine.grammars import Grammars, NoGrammars
from tandem.engine.slots import SlotShape
from tandem.facts.blocks import CacheRoot
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.facts.request import Request
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import Kernels
from tandem.kernels.packed import Storage
from tandem.kv.layout import KvLayout
from tandem.kv.store import KvStore
from tandem.messages.worker import EmitTokens, RequestsArrived, RunStep, StepDone
from tandem.models.decoder import Decoder
from tandem.models.load import LoadPlan, load_decoder
from tandem.models.weights import WeightForm
from tandem.policy.batching import TokenBudgetBatching

CPU = torch.device("cpu")
BLOCK_SIZE = 16
CONTEXT_TOKENS = 4096
HALF_BILLION = ModelSpec(
    architecture="Qwen2ForCausalLM",
    layers=24,
    hidden_features=896,
    feed_forward_features=4864,
    vocabulary_tokens=151_936,
    context_tokens=CONTEXT_TOKENS,
    norm=NormSpec(eps=1e-6),
    attention=AttentionSpec(14, 2, 64, 64**-0.5, (None,) * 24, qkv_bias=True),
    rope=RopeSpec(theta=1_000_000.0),
    tied_embeddings=True,
)


def load(spec: ModelSpec, storage: Storage, kernels: Kernels, directory: Path | None) -> Decoder:
    """Dummy weights, or those of a directory."""
    form = WeightForm(storage, torch.float32, CPU)
    if directory is None:
        return load_decoder(spec, LoadPlan(Path(), form, "dummy"), kernels)
    return load_decoder(spec, LoadPlan(directory, form), kernels)


def streamed_bytes(decoder: Decoder) -> int:
    """The weights that every decode step reads once."""
    head = decoder.weights.head
    assert head is not None
    linears = [head]
    for layer in decoder.weights.layers:
        linears += [layer.qkv, layer.attention_output, layer.gate_up, layer.down]
    return sum(linear.weight_bytes for linear in linears)


@dataclass
class Rig:
    """A worker machine and an engine, driven without threads or sockets."""

    machine: WorkerMachine
    engine: Engine

    @classmethod
    def around(
        cls,
        decoder: Decoder,
        slots: int,
        blocks: int,
        load_grammars: Callable[[], Grammars] = NoGrammars,
        adapters: AdapterCache | None = None,
    ) -> "Rig":
        spec = decoder.spec
        attention = spec.attention
        layout = KvLayout(
            spec.layers, attention.kv_heads, BLOCK_SIZE, attention.head_dim, "float32"
        )
        kv = KvStore(layout, blocks, CPU)
        config = WorkerConfig(
            block_size=BLOCK_SIZE,
            block_count=blocks,
            context_tokens=spec.context_tokens,
            vocabulary_tokens=spec.vocabulary_tokens,
            max_sequences=slots,
            batching=TokenBudgetBatching.on("cpu", 2048),
            root=CacheRoot("bench", "", layout.describe()),
            steps_in_flight=0,
            prefix_caching=False,
        )
        shape = SlotShape(slots, spec.context_tokens, BLOCK_SIZE)
        engine = Engine(decoder, kv, shape, load_grammars=load_grammars, adapters=adapters)
        return cls(WorkerMachine(config), engine)

    def timed(self, requests: list[Request]) -> list[tuple[StepPlan, float]]:
        """Every step that answers these, and its seconds."""
        steps: list[tuple[StepPlan, float]] = []

        def run(plan: StepPlan) -> StepResult:
            start = time.perf_counter()
            result = self.engine.run(plan)
            steps.append((plan, time.perf_counter() - start))
            return result

        self.answer(requests, run)
        return steps

    def answer(
        self,
        requests: list[Request],
        run: Callable[[StepPlan], StepResult] | None = None,
    ) -> dict[str, list[int]]:
        """All answers; `run` may watch or replace the engine's steps."""
        run = run or self.engine.run
        answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
        events: deque[RequestsArrived | StepDone] = deque([RequestsArrived(tuple(requests))])
        while events:
            for effect in self.machine.handle(events.popleft(), 0):
                if isinstance(effect, RunStep):
                    events.append(StepDone(run(effect.plan)))
                elif isinstance(effect, EmitTokens):
                    for request_id, token in zip(effect.request_ids, effect.tokens, strict=True):
                        answers[request_id].append(token)
        return answers
