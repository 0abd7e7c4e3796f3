"""A tiny random model with everything of the engine around it, and the naive way to run it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.engine.adapters import AdapterCache
from tandem.engine.engine import Engine
from tandem.engine.slots import SlotShape
from tandem.facts.blocks import CacheRoot
from tandem.facts.model import AttentionSpec, ModelSpec, NormSpec, RopeSpec
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.faces import Kernels
from tandem.kernels.lora import adapter_rows
from tandem.kernels.packed import Storage
from tandem.kernels.sampling import LateFilters, SamplingRows, TokenLogprobs
from tandem.kv.layout import KvDtype
from tandem.messages.worker import (
    EmitTokens,
    FailRequest,
    RequestsArrived,
    RunStep,
    StepDone,
)
from tandem.models.adapter_weights import AdaptedTokens, join_adapters
from tandem.models.decoder import Decoder, TokenBatch
from tandem.models.load import LoadPlan, load_adapter, load_decoder
from tandem.models.weights import WeightForm
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.speculation import Speculation
from tests.engine.proposing import proposer_of
from tests.models.paging import poisoned_store

VOCABULARY = 61
CONTEXT_TOKENS = 48
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Arithmetic:
    """Which kernels, in which precision; weights and KV may be stored in another one."""

    kernels: Kernels
    dtype: KvDtype
    stored: Storage | None = None
    kv: KvDtype | None = None

    @property
    def name(self) -> str:
        return f"{self.kernels.name} {self.stored or self.dtype} {self.kv_dtype}"

    @property
    def kv_dtype(self) -> KvDtype:
        return self.kv or self.dtype

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


def tiny_spec(window: int | None = None) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        layers=2,
        hidden_features=32,
        feed_forward_features=48,
        vocabulary_tokens=VOCABULARY,
        context_tokens=CONTEXT_TOKENS,
        norm=NormSpec(eps=1e-5),
        attention=AttentionSpec(4, 2, 8, 8**-0.5, (None, window), qk_norm=True),
        rope=RopeSpec(),
    )


def tiny_decoder(arithmetic: Arithmetic, window: int | None = None) -> Decoder:
    storage = arithmetic.stored or arithmetic.dtype
    form = WeightForm(storage, arithmetic.torch_dtype, CPU)
    plan = LoadPlan(Path(), form, "dummy", seed=3)
    return load_decoder(tiny_spec(window), plan, arithmetic.kernels)


@dataclass(frozen=True)
class Shape:
    """How the engine under test batches and stores."""

    block_size: int = 4
    blocks: int = 40
    max_sequences: int = 4
    max_batched_tokens: int = 32
    chunk_tokens: int = 0
    steps_in_flight: int = 1
    prefix_caching: bool = True
    pipeline_stages: int = 1
    speculation: Speculation | None = None
    proposer: str = ""
    max_adapters: int = 0
    adapter_bytes: int = 0


class SumGrammars:
    """A grammar is a number, by which the sum of the answer's tokens can always be divided. One
    below 0 allows so many tokens, and none then."""

    def begin(self, grammar: str) -> "SumMatcher":
        return SumMatcher(int(grammar))

    def fill_masks(self, matchers: Sequence["SumMatcher"], allowed_RW: np.ndarray) -> None:
        for each, allowed_W in zip(matchers, allowed_RW, strict=True):
            bits = [each.may_follow(token) for token in range(32 * len(allowed_W))]
            allowed_W[:] = np.packbits(bits, bitorder="little").view(np.int32)


class SumMatcher:
    """How much the answer's tokens are together, and how many."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sum = self.count = 0
        self.consumed: list[int] = []

    def consume(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert token >= 0
            assert self.may_follow(token)
            self.consumed.append(token)
            self.sum += token
            self.count += 1

    def allows(self, tokens: Sequence[int]) -> int:
        for allowed, token in enumerate(tokens):
            if not self.may_follow(token):
                self.rollback(allowed)
                return allowed
            self.consume((token,))
        self.rollback(len(tokens))
        return len(tokens)

    def rollback(self, tokens: int) -> None:
        for _ in range(tokens):
            self.sum -= self.consumed.pop()
            self.count -= 1

    def may_follow(self, token: int) -> bool:
        if self.number < 0:
            return self.count < -self.number
        return not (token + self.sum) % self.number


class Bench:
    """A worker machine and an engine, stepped by hand."""

    def __init__(
        self,
        decoder: Decoder,
        arithmetic: Arithmetic,
        shape: Shape,
        draft: Decoder | None = None,
    ) -> None:
        kv = poisoned_store(decoder, shape.blocks, arithmetic.kv_dtype, shape.block_size)
        self.machine = WorkerMachine(
            WorkerConfig(
                block_size=shape.block_size,
                block_count=shape.blocks,
                context_tokens=CONTEXT_TOKENS,
                vocabulary_tokens=VOCABULARY,
                max_sequences=shape.max_sequences,
                batching=TokenBudgetBatching(shape.max_batched_tokens, shape.chunk_tokens),
                root=CacheRoot("tiny", "0", kv.layout.describe()),
                steps_in_flight=shape.steps_in_flight,
                prefix_caching=shape.prefix_caching,
                pipeline_stages=shape.pipeline_stages,
                speculation=shape.speculation,
                max_adapters=shape.max_adapters,
            )
        )
        slots = SlotShape(shape.max_sequences, CONTEXT_TOKENS, shape.block_size)
        proposer = None
        if shape.speculation:
            dtype = arithmetic.kv_dtype
            proposer = proposer_of(shape.proposer, draft or decoder, shape.blocks, dtype)
        self.adapters = AdapterCache(
            partial(load_adapter, decoder.spec, kernels=decoder.kernels, device=CPU),
            shape.adapter_bytes,
        )
        self.engine = Engine(
            decoder,
            kv,
            slots,
            load_grammars=SumGrammars,
            adapters=self.adapters,
            make_proposer=proposer,
        )
        self.now_ns = 0
        self.landing: deque = deque()
        self.answers: dict[str, list[int]] = {}
        self.logprobs: dict[str, list] = {}
        self.prompt_logprobs: dict[str, tuple] = {}
        self.finished: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.prefill_tokens = self.steps = 0

    def handle(self, event) -> None:
        self.now_ns += 1000
        for effect in self.machine.handle(event, self.now_ns):
            if isinstance(effect, RunStep):
                self.steps += 1
                self.prefill_tokens += effect.plan.batched_tokens
                self.landing.append(self.engine.run(effect.plan))
            elif isinstance(effect, EmitTokens):
                self._take(effect)
            elif isinstance(effect, FailRequest):
                self.failed[effect.request_id] = effect.reason
        self.machine.audit()

    def _take(self, effect: EmitTokens) -> None:
        for index, request_id in enumerate(effect.request_ids):
            self.answers.setdefault(request_id, []).append(effect.tokens[index])
            if effect.logprobs and effect.logprobs[index]:
                self.logprobs.setdefault(request_id, []).append(effect.logprobs[index])
            if effect.prompt_logprobs and effect.prompt_logprobs[index] is not None:
                assert request_id not in self.prompt_logprobs
                self.prompt_logprobs[request_id] = effect.prompt_logprobs[index]
            if effect.finish_reasons[index]:
                self.finished[request_id] = effect.finish_reasons[index]

    def land(self) -> None:
        if self.landing:
            self.handle(StepDone(self.landing.popleft()))

    def drain(self) -> None:
        while self.landing:
            self.land()
        assert self.machine.idle
        pool = self.machine.sequences.pool
        assert pool.free_blocks == pool.block_count

    def ask(self, *requests: Request) -> None:
        self.handle(RequestsArrived(requests))


@dataclass
class NaiveAnswer:
    """The tokens after a prompt, and for each what the model itself thought of it; and of those of
    the prompt behind its first."""

    tokens: list[int]
    scores: list[TokenLogprobs]
    prompt_scores: list[TokenLogprobs]


def naive_answer(decoder: Decoder, arithmetic: Arithmetic, request: Request) -> NaiveAnswer:
    """Each token from the whole sequence anew: no cache, no batch, no chunks, no slots."""
    sampling = request.sampling
    layers = ()
    if request.adapter is not None:
        adapter = load_adapter(decoder.spec, request.adapter, decoder.kernels, CPU)
        layers = join_adapters([adapter], decoder.kernels)
    scores: list[TokenLogprobs] = []
    prompt_scores: list[TokenLogprobs] = []
    tokens = list(request.prompt_tokens)
    while len(tokens) < min(len(request.prompt_tokens) + sampling.max_tokens, CONTEXT_TOKENS):
        kv = poisoned_store(decoder, 1, arithmetic.kv_dtype, CONTEXT_TOKENS)
        count = len(tokens)
        everywhere = adapter_rows(np.zeros(count, np.int32), 1)
        batch = TokenBatch(
            torch.tensor(tokens),
            torch.arange(count),
            torch.arange(count),
            AttentionBatch(
                torch.tensor([0, count], dtype=torch.int32),
                torch.tensor([count], dtype=torch.int32),
                torch.zeros((1, 1), dtype=torch.int32),
            ),
            adapted=AdaptedTokens(layers, everywhere, everywhere) if layers else None,
        )
        hidden = decoder.forward(batch, kv)
        if sampling.prompt_logprobs is not None and count == len(request.prompt_tokens):
            prompt_scores = [
                arithmetic.kernels.token_logprobs(
                    decoder.logits(hidden[place - 1 : place]),
                    torch.tensor(tokens[place : place + 1]),
                    sampling.prompt_logprobs,
                )
                for place in range(1, count)
            ]
        logits = decoder.logits(hidden[-1:])[0]
        token = _naive_draw(logits, tokens, request, arithmetic.kernels)
        tokens.append(token)
        scores.append(
            arithmetic.kernels.token_logprobs(
                logits[None], torch.tensor([token]), sampling.top_logprobs or 0
            )
        )
        drawn = count + 1 - len(request.prompt_tokens)
        if token in sampling.stop_token_ids and drawn > sampling.min_tokens:
            break
    return NaiveAnswer(tokens[len(request.prompt_tokens) :], scores, prompt_scores)


def _naive_draw(logits, tokens: list[int], request: Request, kernels: Kernels) -> int:
    sampling, prompt = request.sampling, len(request.prompt_tokens)
    answer = tokens[prompt:]
    wished = logits.clone()
    lowest = torch.tensor(torch.finfo(wished.dtype).min, dtype=wished.dtype)
    for token in range(VOCABULARY):
        value = wished[token]
        if token in tokens:
            penalty = sampling.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        if token in answer:
            times = answer.count(token)
            value = value - (sampling.frequency_penalty * times + sampling.presence_penalty)
        value = value - naive_dry(tokens, token, sampling)
        for biased, bias in sampling.logit_bias:
            value = value + bias if biased == token else value
        if token in sampling.stop_token_ids and len(answer) < sampling.min_tokens:
            value = lowest
        if sampling.allowed_token_ids and token not in sampling.allowed_token_ids:
            value = lowest
        for word in sampling.bad_words:
            before = list(word[:-1])
            if word[-1] == token and answer[len(answer) - len(before) :] == before:
                value = lowest
        if sampling.grammar and (token + sum(answer)) % int(sampling.grammar):
            value = -torch.inf
        wished[token] = value
    rows = SamplingRows(
        temperature=torch.tensor([sampling.temperature], dtype=torch.float32),
        top_k=torch.tensor([sampling.top_k], dtype=torch.int32),
        top_p=torch.tensor([sampling.top_p], dtype=torch.float32),
        min_p=torch.tensor([sampling.min_p], dtype=torch.float32),
        seed=torch.tensor([sampling.seed - (sampling.seed >> 63 << 64)]),  # as int64
        position=torch.tensor([len(tokens)]),
        late=LateFilters(
            typical_p=torch.tensor([sampling.typical_p], dtype=torch.float32),
            xtc_threshold=torch.tensor([sampling.xtc_threshold], dtype=torch.float32),
            xtc_probability=torch.tensor([sampling.xtc_probability], dtype=torch.float32),
        ),
    )
    return int(kernels.sample(wished[None], rows)[0])


def naive_dry(tokens: list[int], token: int, sampling: SamplingParameters) -> float:
    """What the token costs: each place where it stood is compared with the end, one by one."""
    back = sampling.dry_penalty_last_n
    seen = tokens if back < 0 else tokens[len(tokens) - min(back, len(tokens)) :]
    longest = 0
    for place in (p for p, other in enumerate(seen) if other == token):
        length = 0
        while length < place and seen[place - 1 - length] == seen[-1 - length]:
            if seen[-1 - length] in sampling.dry_sequence_breakers:
                break
            length += 1
        longest = max(longest, length)
    if longest < sampling.dry_allowed_length or token in sampling.dry_sequence_breakers:
        return 0.0
    return sampling.dry_multiplier * sampling.dry_base ** (longest - sampling.dry_allowed_length)
