"""The law of the engine: whatever shares its steps, a request gets the answer it gets alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.worker.machine import NO_TOKEN_ALLOWED
from tandem.facts.adapter import Adapter
from tandem.facts.request import Request
from tandem.facts.sampling import INT32_LIMIT, SEED_LIMIT, TOP_LOGPROBS_LIMIT, SamplingParameters
from tandem.kernels.faces import choose_kernels, reference_kernels
from tandem.kernels.packed import Storage
from tandem.kv.layout import RegionLayout
from tandem.kv.store import KvStore, exported_pool
from tandem.messages.worker import RequestsAborted
from tandem.policy.speculation import Speculation
from tests.engine.proposing import KINDS
from tests.engine.tiny import (
    CONTEXT_TOKENS,
    CPU,
    VOCABULARY,
    Arithmetic,
    Bench,
    Shape,
    naive_answer,
    tiny_decoder,
    tiny_spec,
)
from tests.models.adapter_files import write_adapter

# In float64 the order of a sum can not tip a draw; the native kernels are exact by construction,
# whatever the batch, so they are held to the same equality in float32.
EXACT = Arithmetic(reference_kernels(), "float64")
NATIVE = Arithmetic(choose_kernels(CPU, torch.float32, allow_native=True)[0], "float32")
# Products of bfloat16 and of bytes are as exact, where the processor has them.
NARROW = choose_kernels(CPU, torch.float32, allow_native=True, arithmetic="auto")[0]
NARROW_STORAGES: tuple[Storage, ...] = ("bfloat16", "int4")
ARITHMETICS = [EXACT]
if NATIVE.kernels.batch_invariant:
    ARITHMETICS += [NATIVE, *(Arithmetic(NARROW, "float32", each) for each in NARROW_STORAGES)]
    ARITHMETICS += [Arithmetic(NATIVE.kernels, "float32", kv="int8")]
ALWAYS = [Speculation(most, adaptive=False) for most in (2, 6)]
SPECULATIONS = [None, Speculation(4), *ALWAYS]
ADAPTERS: list[Adapter | None] = [None]
DECODERS = {id(a): {w: tiny_decoder(a, w) for w in (None, 7)} for a in ARITHMETICS}


@pytest.fixture(scope="module", autouse=True)
def adapters(tmp_path_factory):
    """Three, of unlike ranks, storages and targets, beside none."""
    folder, spec = tmp_path_factory.mktemp("adapters"), tiny_spec()
    ADAPTERS[1:] = [
        write_adapter(folder / "a", spec, rank=3, seed=1),
        write_adapter(folder / "b", spec, rank=20, seed=2, dtype=torch.bfloat16),
        write_adapter(folder / "c", spec, rank=8, seed=3, targets=("k_proj", "down_proj")),
    ]


@st.composite
def samplings(draw) -> SamplingParameters:
    greedy = draw(st.booleans())
    max_tokens = draw(st.integers(1, 12))
    plain = draw(st.booleans())
    return SamplingParameters(
        temperature=0.0 if greedy else draw(st.sampled_from([0.3, 1.0, 1.7])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4])),
        top_k=draw(st.sampled_from([0, 1, 5, 200])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        typical_p=draw(st.sampled_from([1.0, 0.8, 0.2])),
        xtc_probability=draw(st.sampled_from([0.0, 0.5, 1.0])),
        xtc_threshold=draw(st.sampled_from([0.1, 0.01, 0.0])),
        dry_multiplier=0.0 if plain else draw(st.sampled_from([0.0, 0.8, 3.0])),
        dry_base=draw(st.sampled_from([1.75, 1.0])),
        dry_allowed_length=draw(st.sampled_from([1, 2])),
        dry_penalty_last_n=draw(st.sampled_from([-1, 0, 5, 1000])),
        dry_sequence_breakers=draw(st.sampled_from([(), (7,), (8, 60)])),
        repetition_penalty=1.0 if plain else draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=0.0 if plain else draw(st.sampled_from([0.0, 0.7])),
        frequency_penalty=0.0 if plain else draw(st.sampled_from([0.0, 0.5, -0.2])),
        logit_bias=() if plain else draw(st.sampled_from([(), ((3, 4.0), (9, -50.0))])),
        seed=draw(st.sampled_from([0, 1, 2**63 + 5])),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(3, max_tokens))),
        stop_token_ids=draw(st.sampled_from([(), tuple(range(0, VOCABULARY, 9))])),
        top_logprobs=draw(st.sampled_from([None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0, 4])),
        allowed_token_ids=() if plain else draw(st.sampled_from([(), (5, 6, 7, 9, 11, 12)])),
        bad_words=() if plain else draw(st.sampled_from([(), ((6,), (7, 9), (5, 9), (9, 5, 11))])),
        grammar=draw(st.sampled_from(["", "", "2", "7"])),
    )


@st.composite
def prompts(draw) -> tuple[int, ...]:
    text = draw(st.sampled_from([tuple(range(1, 41)), (5, 6, 7, 8) * 10]))
    prompt = text[: draw(st.integers(1, 30))]
    return prompt + tuple(draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=2)))


@st.composite
def shapes(draw) -> Shape:
    block_size = draw(st.sampled_from([1, 4, 16]))
    least = -(-CONTEXT_TOKENS // block_size)
    max_sequences = draw(st.integers(1, 4))
    return Shape(
        block_size=block_size,
        blocks=draw(st.integers(least, 2 * least)),
        max_sequences=max_sequences,
        max_batched_tokens=draw(st.integers(max_sequences, 40)),
        chunk_tokens=draw(st.sampled_from([0, 1, 3, 8])),
        steps_in_flight=draw(st.integers(0, 1)),
        prefix_caching=draw(st.booleans()),
        speculation=draw(st.sampled_from(SPECULATIONS)),
        proposer=draw(st.sampled_from(KINDS)),
        max_adapters=draw(st.integers(0, 2)),
        adapter_bytes=draw(st.sampled_from([0, 1 << 20])),
    )


def same_scores(arithmetic: Arithmetic, ours: list, alone: list) -> None:
    """Logprobs are the model's own, whatever penalties and biases moved the draw."""
    exact = arithmetic.kernels.batch_invariant
    for mine, score in zip(ours, alone, strict=True):
        logprob, tops = float(score.logprob[0]), score.top_logprobs[0].tolist()
        assert mine.logprob == (logprob if exact else pytest.approx(logprob, abs=1e-6))
        assert mine.rank == int(score.rank[0])
        assert [token for token, _ in mine.top] == score.top_ids[0].tolist()
        found = [value for _, value in mine.top]
        assert found == (tops if exact else pytest.approx(tops, abs=1e-6))


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda a: a.name)
def test_company_changes_no_token(arithmetic):
    # The torch kernels are slow on tiny tensors; the native ones get more examples for the time.
    examples = 60 if arithmetic.kernels.batch_invariant else 20

    @settings(max_examples=examples, deadline=None)
    @given(
        shapes(),
        st.lists(st.tuples(prompts(), samplings()), min_size=1, max_size=4),
        st.sampled_from([None, 7]),
        st.data(),
    )
    def law(shape, wanted, window, data):
        decoder = DECODERS[id(arithmetic)][window]
        bench = Bench(decoder, arithmetic, shape)
        asked: dict[str, Request] = {}
        aborted: set[str] = set()
        for index, (prompt, sampling) in enumerate(wanted):
            copies = data.draw(st.integers(1, 2))
            adapter = ADAPTERS[data.draw(st.sampled_from([0, 0, 1, 2, 3]))]
            batch = [
                Request(f"{index}-{copy}", prompt, sampling, adapter=adapter)
                for copy in range(copies)
            ]
            asked |= {request.request_id: request for request in batch}
            bench.ask(*batch)
            for _ in range(data.draw(st.integers(0, 5))):
                bench.land()
            if data.draw(st.integers(0, 5)) == 0:
                gone = data.draw(st.sampled_from(sorted(asked)))
                aborted |= {gone} - set(bench.finished)
                bench.handle(RequestsAborted((gone,)))
        bench.drain()
        for request_id, request in asked.items():
            alone = naive_answer(decoder, arithmetic, request)
            got = bench.answers.get(request_id, [])
            expected = alone.tokens
            assert got == (expected[: len(got)] if request_id in aborted else expected)
            if request.sampling.top_logprobs is not None:
                same_scores(
                    arithmetic, bench.logprobs.get(request_id, []), alone.scores[: len(got)]
                )
            if request.sampling.prompt_logprobs is not None and got:
                same_scores(arithmetic, bench.prompt_logprobs[request_id], alone.prompt_scores)
            else:
                assert request_id not in bench.prompt_logprobs

    law()


def test_parallel_answers_compute_their_prompt_once():
    decoder = DECODERS[id(EXACT)][None]
    prompt = tuple(range(1, 34))
    bench = Bench(decoder, EXACT, Shape(block_size=4, max_sequences=4, max_batched_tokens=64))
    bench.ask(
        *(Request(str(i), prompt, SamplingParameters(seed=i, max_tokens=1)) for i in range(4))
    )
    bench.drain()
    # The first computes all 33 tokens; the others share its 8 full blocks and compute one token.
    assert bench.prefill_tokens == 33 + 3
    assert len(bench.finished) == 4


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda a: a.name)
@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 100.0},
        {"temperature": 1e-45},
        {"top_k": INT32_LIMIT - 1},
        {"top_p": 5e-324},
        {"min_p": 1.0},
        {"typical_p": 5e-324},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 1.0, "temperature": 100.0},
        {"dry_multiplier": 100.0, "dry_base": 100.0, "dry_allowed_length": 1},
        {"dry_multiplier": 5e-324, "dry_base": 1.0, "dry_penalty_last_n": INT32_LIMIT - 1},
        {"repetition_penalty": 1e-3},
        {"repetition_penalty": 100.0},
        {"frequency_penalty": 2.0, "presence_penalty": -2.0},
        {"seed": SEED_LIMIT - 1},
        {"max_tokens": INT32_LIMIT - 1},
        {"logit_bias": tuple((token, -100.0) for token in range(VOCABULARY))},
        {"stop_token_ids": tuple(range(VOCABULARY)), "min_tokens": 4},
        {"allowed_token_ids": (3,), "bad_words": ((3,), (3, 3))},
        {"bad_words": tuple((token,) for token in range(VOCABULARY))},
        {"top_logprobs": TOP_LOGPROBS_LIMIT},
    ],
    ids=str,
)
def test_every_accepted_extreme_can_be_drawn(arithmetic, extreme):
    bench = Bench(DECODERS[id(arithmetic)][None], arithmetic, Shape())
    sampling = SamplingParameters(**({"max_tokens": 5, "seed": 1} | extreme))
    bench.ask(Request("extreme", (1, 2, 3), sampling))
    bench.drain()
    assert bench.finished.keys() == {"extreme"}


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_where_a_grammar_goes_nowhere_one_request_fails(steps_in_flight):
    bench = Bench(DECODERS[id(EXACT)][None], EXACT, Shape(steps_in_flight=steps_in_flight))
    sampling = SamplingParameters(max_tokens=6, seed=1)
    beside = Request("beside", (1, 2, 3), sampling)
    bench.ask(Request("stuck", (1, 2, 3), replace(sampling, grammar="-3")), beside)
    bench.drain()
    assert bench.failed == {"stuck": NO_TOKEN_ALLOWED}
    assert len(bench.answers["stuck"]) == 3
    assert bench.answers["beside"] == naive_answer(bench.engine.decoder, EXACT, beside).tokens


class NamedCalls:
    """A step in one call that says which one it was."""

    def __init__(self, step, said: set[str]) -> None:
        self.step, self.said = step, said

    def draw(self, rows):
        self.said.add("draw")
        return self.step.draw(rows)

    def logits(self, rows):
        self.said.add("logits")
        return self.step.logits(rows)


@pytest.mark.parametrize(
    ("wish", "call"),
    [
        ({"temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "top_k": 9}, "draw"),
        ({"top_logprobs": 2}, "logits"),
        ({"grammar": "3"}, "logits"),
        ({"repetition_penalty": 1.3}, "logits"),
        ({"logit_bias": ((3, 4.0),)}, "logits"),
        ({"typical_p": 0.8}, "logits"),
    ],
    ids=str,
)
def test_a_step_is_one_call(wish: dict, call: str) -> None:
    """Also where more than that call knows says what is drawn."""
    join, said = NATIVE.kernels.join_step, set()
    if join is None:
        pytest.skip("native kernels alone have steps in one call")
    kernels = replace(NATIVE.kernels, join_step=lambda *parts: NamedCalls(join(*parts), said))
    bench = Bench(tiny_decoder(replace(NATIVE, kernels=kernels)), NATIVE, Shape())
    bench.ask(Request("one", (1, 2, 3), SamplingParameters(**({"max_tokens": 6} | wish))))
    bench.drain()
    assert len(bench.answers["one"]) == 6
    assert said == {call}


def test_a_block_is_invalidated_before_it_is_written_anew():
    """And a shared prefix is not: what was announced of it holds."""
    shape = Shape(blocks=12, max_batched_tokens=6, chunk_tokens=6)
    bench = Bench(tiny_decoder(EXACT), EXACT, shape)
    layout = RegionLayout(bench.engine.kv.layout, shape.blocks)
    exported = exported_pool(np.zeros(layout.bytes, np.uint8), layout)
    kv = bench.engine.kv = KvStore(bench.engine.kv.layout, shape.blocks, CPU, exported)
    prompts = (tuple(range(1, 11)), tuple(range(1, 21)), tuple(range(30, 50)))
    for number, prompt in enumerate(prompts):
        exported.versions[:] = 7
        before = kv.pool_BL2KSD.clone()
        bench.ask(Request(f"r{number}", prompt, SamplingParameters(max_tokens=8)))
        bench.drain()
        written = (kv.pool_BL2KSD != before).flatten(1).any(1).numpy()
        assert written.any()
        assert (exported.versions[written] == 0).all()
        assert (exported.versions[~written] == 7).all()
    assert bench.prefill_tokens < sum(len(prompt) + 8 for prompt in prompts)
