"""Structured output: what a mask costs over a vocabulary of 150,000 tokens, and how much longer a
token takes under a JSON schema, beside the plain engine in the same run.

The tokenizer is a byte-level BPE trained here on the sources of the installed packages.

Usage: python bench/structured_output.py [--tokens 48] [--rounds 3]
"""

import argparse
import asyncio
import random
import statistics
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table
from tokenizers import decoders, models, pre_tokenizers, trainers

from model import BLOCK_SIZE, HALF_BILLION, Rig, load
from tandem.config.environment import BUNDLED_MODEL
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.models.configuration import read_model_spec
from tandem.models.decoder import Decoder
from tandem.text.files import TokenizerFiles
from tandem.text.grammars import LlGuidanceGrammars
from tandem.text.tokenizer import Tokenizer
from tandem_process import serving

END = "<|endoftext|>"
VOCABULARY_TOKENS = 151_600
CORPUS_BYTES = 48 << 20
SCHEMAS: dict[str, dict[str, object]] = {
    "a person": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "emails": {"type": "array", "items": {"type": "string", "format": "email"}},
        },
        "required": ["name", "age", "emails"],
        "additionalProperties": False,
    },
    "any JSON object": {"type": "object"},
    "a list of records": {
        "type": "array",
        "minItems": 20,
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": "^[a-f0-9]{8}$"},
                "kind": {"enum": ["created", "changed", "deleted"]},
                "at": {"type": "string", "format": "date-time"},
                "text": {"type": "string"},
            },
            "required": ["id", "kind", "at", "text"],
            "additionalProperties": False,
        },
    },
}
MEASURED = "a list of records"


def sources(most_bytes: int) -> Iterator[str]:
    """Texts of the installed Python packages."""
    left = most_bytes
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        text = path.read_text(errors="replace")
        left -= len(text)
        if left < 0:
            return
        yield text


def large_tokenizer() -> Tokenizer:
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(sources(CORPUS_BYTES), trainer)
    return Tokenizer(core, TokenizerFiles(core.to_str(), {"eos_token": END}, {}, {}))


def mask_table(grammars: LlGuidanceGrammars, tokenizer: Tokenizer, console: Console) -> None:
    """Answers of random tokens under each schema."""
    table = Table(title=f"masks over {tokenizer.vocabulary_tokens:,} tokens (goal: 300 us)")
    for column in ("", "compile, ms", "median, us", "mean", "99 %", "most", "masks"):
        table.add_column(column, justify="right")
    allowed_RW = np.zeros((1, -(-tokenizer.vocabulary_tokens // 32)), np.int32)
    for name, schema in SCHEMAS.items():
        start = time.perf_counter()
        grammar = grammars.check_schema(schema)
        compile_ms = (time.perf_counter() - start) * 1e3
        taken_us: list[float] = []
        for seed in range(12):
            chance, matcher = random.Random(seed), grammars.begin(grammar)
            for _ in range(80):
                start = time.perf_counter()
                grammars.fill_masks([matcher], allowed_RW)
                taken_us.append((time.perf_counter() - start) * 1e6)
                bits = np.unpackbits(allowed_RW.view(np.uint8), bitorder="little")
                choices = np.flatnonzero(bits)
                token = int(chance.choice(choices))
                if token in tokenizer.end_token_ids:
                    break
                matcher.consume((token,))
        cuts = statistics.quantiles(taken_us, n=100)
        figures = (statistics.median(taken_us), statistics.mean(taken_us), cuts[98], max(taken_us))
        table.add_row(
            name, f"{compile_ms:.1f}", *(f"{each:.0f}" for each in figures), str(len(taken_us))
        )
    console.print(table)


def decode_steps(
    decoder: Decoder, grammars: LlGuidanceGrammars, sequences: int, grammar: str, tokens: int
) -> list[float]:
    """Seconds of each step in which all sequences decode."""
    rig = Rig.around(
        decoder,
        sequences,
        max(sequences * 16, decoder.spec.context_tokens // BLOCK_SIZE),
        grammars.load,
    )
    sampling = SamplingParameters(temperature=1.0, max_tokens=tokens, grammar=grammar)
    requests = [
        Request(str(number), tuple(range(1 + number, 33 + number)), sampling)
        for number in range(sequences)
    ]
    steps = rig.timed(requests)
    return [s for plan, s in steps if len(plan.slots) == sequences == plan.batched_tokens]


def token_time_row(
    decoder: Decoder,
    grammars: LlGuidanceGrammars,
    sequences: int,
    tokens: int,
    rounds: int,
) -> Sequence[str]:
    grammar = grammars.check_schema(SCHEMAS[MEASURED])
    pairs = []
    for _ in range(rounds):
        plain = statistics.mean(decode_steps(decoder, grammars, sequences, "", tokens))
        under = statistics.mean(decode_steps(decoder, grammars, sequences, grammar, tokens))
        pairs.append((plain * 1e3, under * 1e3))
    return compared(sequences, pairs)


def compared(sequences: int, pairs: Sequence[tuple[float, float]]) -> Sequence[str]:
    """A row of medians, of milliseconds without and with a schema measured in turn."""
    plain_ms, schema_ms = zip(*pairs, strict=True)
    ratios = [under / plain for plain, under in pairs]
    return (
        str(sequences),
        f"{statistics.median(plain_ms):.2f}",
        f"{statistics.median(schema_ms):.2f}",
        f"{statistics.median(ratios):.3f}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    wishes = parser.parse_args()
    console = Console(width=110)
    kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
    large = large_tokenizer()
    grammars = LlGuidanceGrammars(large).load()
    mask_table(grammars, large, console)
    table = Table(title="milliseconds a token under a JSON schema (goal: 1.05 times)")
    for column in ("", "sequences", "plain", "schema", "ratio", "of runs"):
        table.add_column(column, justify="right")
    for name, decoder, over in models_to_measure(kernels, grammars):
        for sequences in (1, 16):
            row = token_time_row(decoder, over, sequences, wishes.tokens, wishes.rounds)
            table.add_row(f"{name}, the engine alone", *row)
    for row in served_rows(2 * wishes.tokens, 3 * wishes.rounds):
        table.add_row("tandem-mini, served", *row)
    console.print(table)


def models_to_measure(
    kernels: Kernels, large: LlGuidanceGrammars
) -> Iterator[tuple[str, Decoder, LlGuidanceGrammars]]:
    spec = read_model_spec(BUNDLED_MODEL)
    small = LlGuidanceGrammars(Tokenizer.load(BUNDLED_MODEL)).load()
    yield "tandem-mini", load(spec, "float32", kernels, BUNDLED_MODEL), small
    yield "0.5B, bfloat16", load(HALF_BILLION, "bfloat16", kernels, None), large


def served_rows(tokens: int, rounds: int) -> Iterator[Sequence[str]]:
    """As clients of a server of the bundled model see it, one request each."""
    with serving("serve", "--port", "0") as url:
        for sequences in (1, 16):
            yield asyncio.run(served_row(url, sequences, tokens, rounds))


async def served_row(url: str, sequences: int, tokens: int, rounds: int) -> Sequence[str]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

        async def token_ms(number: int, extra_body: Mapping[str, object]) -> float:
            stream = await client.completions.create(
                model=BUNDLED_MODEL.name,
                prompt=f"Record {number}: ",
                max_tokens=tokens,
                seed=number,
                stream=True,
                extra_body=extra_body,
            )
            instants = [time.perf_counter() async for _ in stream]
            return (instants[-1] - instants[0]) * 1e3 / (tokens - 1)

        async def mean_ms(extra_body: Mapping[str, object]) -> float:
            asked = (token_ms(number, extra_body) for number in range(sequences))
            return statistics.mean(await asyncio.gather(*asked))

        plain, under = {"ignore_eos": True}, {"guided_json": SCHEMAS[MEASURED]}
        await mean_ms(under)
        pairs = [(await mean_ms(plain), await mean_ms(under)) for _ in range(rounds)]
    return compared(sequences, pairs)


if __name__ == "__main__":
    main()
