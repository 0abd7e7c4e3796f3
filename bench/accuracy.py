"""How far the logits of each arithmetic and storage are from those in fp32, and how well each
foretells texts: the bundled model, over right replies to tasks of its suites.

python bench/accuracy.py [--tokens 20000]
"""

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from model import BLOCK_SIZE, CPU, load
from tandem.commands.compression_texts import TextBudget, TextEncoder, gather_texts, task_samples
from tandem.config.environment import BUNDLED_MODEL
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.faces import choose_kernels
from tandem.kernels.packed import Arithmetic, Storage
from tandem.kv.layout import KvDtype, KvLayout
from tandem.kv.store import KvStore
from tandem.models.compression.quality import QualitySums
from tandem.models.configuration import read_model_spec
from tandem.models.decoder import Decoder, TokenBatch

PIECE_TOKENS = 1024
# What the others are compared with comes first: weights as they are stored, multiplied in fp32.
FORMS: tuple[tuple[Arithmetic, Storage, KvDtype], ...] = (
    ("float32", "bfloat16", "float32"),
    ("auto", "bfloat16", "float32"),
    ("auto", "bfloat16", "bfloat16"),
    ("auto", "int8", "float32"),
    ("auto", "int8", "int8"),
    ("auto", "int4", "float32"),
)


def main(
    tokens: Annotated[int, typer.Option(help="Of the texts, with their prompts.")] = 20_000,
) -> None:
    """Measure and print."""
    encoder = TextEncoder(BUNDLED_MODEL)
    budget = TextBudget(1, tokens, PIECE_TOKENS)
    texts = gather_texts(task_samples(encoder, seed=0), encoder, budget).held_out
    models = [_loaded(arithmetic, storage) for arithmetic, storage, _ in FORMS]
    sums = [QualitySums() for _ in FORMS]
    for text in texts:
        ids_T, first = torch.tensor(text.ids), max(1, text.first)
        found = [
            _logits(model, ids_T, kv_dtype)[first - 1 : -1]
            for model, (_, _, kv_dtype) in zip(models, FORMS, strict=True)
        ]
        for each, logits_TV in zip(sums, found, strict=True):
            each.add(ids_T[first:], found[0], logits_TV)
    table = Table(title="Logits of the bundled model", title_justify="left")
    table.add_column("weights, arithmetic, KV")
    for column in ("error, mean", "largest", "divergence", "same token", "perplexity"):
        table.add_column(column, justify="right")
    for (arithmetic, storage, kv_dtype), each in zip(FORMS, sums, strict=True):
        quality = each.quality()
        table.add_row(
            f"{storage}, {arithmetic}, {kv_dtype}",
            f"{quality.mean_error:.3f}",
            f"{quality.largest_error:.2f}",
            f"{quality.divergence:.5f}",
            f"{quality.same_choice:.2%}",
            f"{quality.perplexity_after:.3f}",
        )
    table.caption = f"{sums[0].quality().tokens:,} judged tokens of {len(texts)} texts"
    Console(width=120).print(table)


def _loaded(arithmetic: Arithmetic, storage: Storage) -> Decoder:
    kernels, _ = choose_kernels(CPU, torch.float32, allow_native=True, arithmetic=arithmetic)
    return load(read_model_spec(BUNDLED_MODEL), storage, kernels, BUNDLED_MODEL)


def _logits(model: Decoder, ids_T: torch.Tensor, kv_dtype: KvDtype) -> torch.Tensor:
    """logits_TV behind each token, of one prompt that is computed at once."""
    count = len(ids_T)
    blocks, attention = -(-count // BLOCK_SIZE), model.spec.attention
    layout = KvLayout(
        model.spec.layers, attention.kv_heads, BLOCK_SIZE, attention.head_dim, kv_dtype
    )
    batch = TokenBatch(
        ids_T,
        torch.arange(count),
        torch.arange(count),
        AttentionBatch(
            torch.tensor([0, count], dtype=torch.int32),
            torch.tensor([count], dtype=torch.int32),
            torch.arange(blocks, dtype=torch.int32)[None],
        ),
    )
    return model.logits(model.forward(batch, KvStore(layout, blocks, CPU)))


if __name__ == "__main__":
    typer.run(main)
