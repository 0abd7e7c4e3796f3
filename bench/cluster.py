"""What splitting prefill from decode costs and gains: first tokens, and the gaps between the tokens
of others while a long prompt is computed.

python bench/cluster.py [--only first,gaps] [--output results/cluster.json]

The same machine and the same threads in all: two in one process, or one in each of two. All
servers are the real command over real sockets, with a dummy model.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import aiohttp
import typer

from figures import Figure, show, write
from limits import summarised
from streaming import Client, Stream
from tandem_process import serving

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2560,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
LONG_PROMPT = 4000
CHUNK = 512
FIRST_LENGTHS = (256, 2048)
FIRST_ROUNDS = 20
STREAMS = 8
LONG_ROUNDS = 5
COMMON = ["--load-format", "dummy", "--served-model-name", "bench", "--max-num-seqs", "16"]
TOGETHER = [*COMMON, "--threads", "2"]
ALONE = [*COMMON, "--threads", "1"]
APART = [*ALONE, "--prefill", "1", "--decode", "1"]


def prompt(serial: int, tokens: int) -> list[int]:
    """No two prompts begin alike."""
    return [
        (serial * 97 + position * 31 + serial * position) % 2000 + 100 for position in range(tokens)
    ]


async def first_tokens(url: str, tokens: int) -> list[Stream]:
    """One request after the other, each new to the server."""
    streams = []
    async with aiohttp.ClientSession() as http:
        client = Client(http, url)
        for serial in range(FIRST_ROUNDS + 1):
            stream = Stream()
            await client.complete(prompt(1000 * tokens + serial, tokens), 4, stream)
            streams.append(stream)
    return streams[1:]


async def disturbed_gaps(url: str) -> list[float]:
    """Gaps of running streams while a long prompt is computed, over several prompts."""
    gaps: list[float] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:
        client = Client(http, url)
        for round_ in range(LONG_ROUNDS):
            streams = [Stream() for _ in range(STREAMS)]
            tasks = [
                asyncio.create_task(client.complete(prompt(round_ * 50 + i, 64), 2000, stream))
                for i, stream in enumerate(streams)
            ]
            for stream in streams:
                await client.settled(stream, 20)
            long = Stream()
            await client.complete(prompt(9000 + round_, LONG_PROMPT), 1, long)
            begin_s, end_s = long.sent_s, long.tokens_s[0]
            for stream in streams:
                await client.settled(stream, len(stream.tokens_s) + 2)
                gaps += stream.gaps_s(begin_s, end_s)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return gaps


def first_figures(model: Path) -> list[Figure]:
    measured: dict[tuple[str, int], list[Stream]] = {}
    for name, options in (("one process", ALONE), ("prefill + decode", APART)):
        with serving("serve", str(model), "--port", "0", *options) as url:
            for tokens in FIRST_LENGTHS:
                measured[name, tokens] = asyncio.run(first_tokens(url, tokens))
    figures = []
    for tokens in FIRST_LENGTHS:
        for what, index in (("first", 0), ("second", 1)):
            ours, peer = (
                summarised([1e3 * (s.tokens_s[index] - s.sent_s) for s in measured[name, tokens]])
                for name in ("prefill + decode", "one process")
            )
            figures.append(
                Figure(
                    f"{what} token of {tokens}",
                    ours.median,
                    "ms",
                    ours.spread,
                    peer.median,
                    "ms, one process of 1 thread",
                    "first: +5 ms + transfer",
                    higher_is_better=False,
                )
            )
    return figures


def gap_figures(model: Path) -> list[Figure]:
    runs = {
        "one process, whole prompts": [*TOGETHER, "--max-num-batched-tokens", "8192"],
        f"one process, chunks of {CHUNK}": [*TOGETHER, "--max-num-batched-tokens", str(CHUNK)],
        "prefill + decode": [*APART, "--max-num-batched-tokens", "8192"],
    }
    found = {}
    for name, options in runs.items():
        with serving("serve", str(model), "--port", "0", *options) as url:
            found[name] = asyncio.run(disturbed_gaps(url))
    p99 = {name: quantiles(gaps, n=100)[98] * 1e3 for name, gaps in found.items()}
    ours = p99["prefill + decode"]
    figures = [
        Figure(
            f"gap p99 while {LONG_PROMPT} tokens are computed, against {name}",
            ours,
            "ms",
            limit=p99[name],
            limit_name="ms",
            goal=goal,
            higher_is_better=False,
        )
        for name, goal in zip(runs, ("<= 0.33", "<= 1.0"), strict=False)
    ]
    for name, gaps in found.items():
        print(
            f"{name}: {len(gaps)} gaps, median {median(gaps) * 1e3:.1f} ms, p99 {p99[name]:.1f} ms"
        )
    return figures


SECTIONS = {"first": first_figures, "gaps": gap_figures}


def main(
    only: Annotated[str, typer.Option(help="Sections, separated by commas.")] = "",
    output: Annotated[Path, typer.Option(help="JSON of the figures.")] = Path(
        "results/cluster.json"
    ),
) -> None:
    """Measure and print; the machine should have nothing else to do."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        (model / "config.json").write_text(json.dumps(CONFIG))
        for name in only.split(",") if only else SECTIONS:
            figures += SECTIONS[name](model)
    show(figures, "Cluster")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)
