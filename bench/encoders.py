"""Encoders: texts a second and waiting times with and without dynamic batching, in one run.

Usage: python bench/encoders.py [--seconds 8] [--tokens 64] [--layers 12] [--hidden 384] [--limits]

The shape of a small BERT with random weights; texts arrive at random (a Poisson process), at shares
of what one text at a time can do. Each text's latency is from its arrival to its vector.

--limits tells instead how far one thread is from the rate of its matrix products at each batch
size: no batch can win more. It counts the thread's own time, which other processes take less of.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertModel

from tandem.facts.encoder import EncodedText
from tandem.kernels.faces import choose_kernels
from tandem.live.encoder import LiveEncoder
from tandem.models.encoders.batch import batch_of
from tandem.models.encoders.encoder import Encoder
from tandem.models.encoders.load import load_encoder
from tandem.models.weights import WeightForm
from tandem.policy.dynamic_batching import DynamicBatching

MS = 1_000_000
WAYS = {
    "one at a time": DynamicBatching(max_batch_size=1),
    "up to 32, no delay": DynamicBatching(32),
    "up to 32, 5 ms": DynamicBatching(32, max_queue_delay_ns=5 * MS),
    "8 preferred, 5 ms": DynamicBatching(32, 8192, (8, 16, 32), 5 * MS),
}
SHARES = (0.5, 0.9, 1.5)
TOGETHER = 256


def small_bert(wishes: argparse.Namespace) -> Encoder:
    config = BertConfig(
        hidden_size=wishes.hidden,
        intermediate_size=4 * wishes.hidden,
        num_hidden_layers=wishes.layers,
        num_attention_heads=wishes.hidden // 32,
    )
    with TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
        form = WeightForm("float32", torch.float32, torch.device("cpu"))
        return load_encoder(Path(folder), form, kernels)


def texts(count: int, tokens: int, seed: int) -> list[EncodedText]:
    chance = random.Random(seed)
    types = (0,) * tokens
    return [
        EncodedText(tuple(chance.randrange(1000, 30_000) for _ in range(tokens)), types)
        for _ in range(count)
    ]


async def capacity(live: LiveEncoder, tokens: int) -> float:
    """Texts a second of one call with many."""
    await live.encode(texts(8, tokens, 0), "vector")
    begun = time.perf_counter()
    await live.encode(texts(TOGETHER, tokens, 1), "vector")
    return TOGETHER / (time.perf_counter() - begun)


async def latencies(live: LiveEncoder, tokens: int, rate: float, seconds: float) -> list[float]:
    """Of texts that arrive at random, in milliseconds."""
    chance, found = random.Random(7), list[float]()

    async def one(text: EncodedText) -> None:
        begun = time.perf_counter()
        await live.encode([text], "vector")
        found.append((time.perf_counter() - begun) * 1e3)

    waiting: list[asyncio.Task[None]] = []
    due = time.perf_counter()
    for text in texts(int(rate * seconds), tokens, 2):
        due += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        waiting.append(asyncio.create_task(one(text)))
    await asyncio.gather(*waiting)
    return found


async def measure(wishes: argparse.Namespace) -> Table:
    encoder = small_bert(wishes)
    table = Table(
        title=f"{wishes.layers} layers of {wishes.hidden}, texts of {wishes.tokens} tokens"
    )
    for column in ("", "texts/s", *(f"p50, p99 ms at {share:g}x" for share in SHARES)):
        table.add_column(column, justify="right")
    alone = 0.0
    for name, batching in WAYS.items():
        live = LiveEncoder(encoder, batching, 1 << 20)
        live.start()
        most = await capacity(live, wishes.tokens)
        alone = alone or most
        cells = []
        for share in SHARES:
            found = await latencies(live, wishes.tokens, share * alone, wishes.seconds)
            cells.append(
                f"{statistics.median(found):.0f}, {statistics.quantiles(found, n=100)[98]:.0f}"
            )
        await live.stop()
        table.add_row(name, f"{most:.0f} ({most / alone:.2f})", *cells)
    return table


def own_seconds(run: Callable[[], object], seconds: float) -> float:
    """Of this thread, at its fastest tenth."""
    found: list[float] = []
    while len(found) < 5 or sum(found) < seconds:
        begun = time.thread_time()
        run()
        found.append(time.thread_time() - begun)
    return sorted(found)[len(found) // 10]


@torch.inference_mode()
def limits(wishes: argparse.Namespace) -> Table:
    """Beside the rate of the widest product over the rows of 16 texts, the best that there is."""
    torch.set_num_threads(1)
    hidden, tokens = wishes.hidden, wishes.tokens
    encoder = small_bert(wishes)
    kernels, _ = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
    wide = kernels.pack(torch.randn(4 * hidden, hidden), None, "float32")
    x_TC = torch.randn(16 * tokens, hidden)
    product = 2 * x_TC.numel() * 4 * hidden
    best = product / own_seconds(partial(kernels.linear, x_TC, wide), 1.0)
    # Of one text: projections of attention and feed-forward, scores and weighted sums.
    work = wishes.layers * tokens * (2 * 12 * hidden**2 + 4 * tokens * hidden)
    table = Table(
        title=f"{wishes.layers} layers of {hidden}, texts of {tokens} tokens, one thread; "
        f"products at {best / 1e9:.0f} GFLOP/s"
    )
    for column in ("texts at once", "ms a text", "GFLOP/s", "of the products'"):
        table.add_column(column, justify="right")
    for size in (1, 4, 8, 16, 32):
        batch = batch_of(texts(size, tokens, 3), encoder.device)
        took = own_seconds(partial(encoder.embed, batch), wishes.seconds) / size
        rate = work / took
        table.add_row(f"{size}", f"{took * 1e3:.1f}", f"{rate / 1e9:.0f}", f"{rate / best:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--limits", action="store_true")
    wishes = parser.parse_args()
    if wishes.limits:
        # As a server does it: the allocator gives the pages of the main thread back after each run.
        with ThreadPoolExecutor(1) as pool:
            table = pool.submit(limits, wishes).result()
    else:
        table = asyncio.run(measure(wishes))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
