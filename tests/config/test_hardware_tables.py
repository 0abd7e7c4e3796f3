"""Folders of measured operators: small ones made of laws, and the real ones where they lie."""

import csv
import gzip
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from tandem.config.hardware.tables import GemmTable
from tandem.config.hardware.worker import WorkerHardware, worker_cost
from tandem.cost.worker import StepShape
from tandem.facts.errors import InvalidConfiguration

HARDWARE = Path(__file__).parents[3] / "shared/data/hardware"
LLAMA = WorkerHardware("llama-3.1-8b", "h100", time_model="tables")
SIZES = (512, 2048, 8192, 32768)
LENGTHS = (1, 128, 1024, 4096)


def write(path: Path, header: str, rows) -> None:
    with gzip.open(path, "wt", encoding="utf-8", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(header.split(","))
        writer.writerows(rows)


def gemm_ms(m: float, n: float, k: float) -> float:
    return 1e-3 + 2e-8 * n * k + 1e-11 * m * n * k


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    """AIConfigurator's layout, with times that follow simple laws."""
    rows = [
        ("bfloat16", m, n, k, gemm_ms(m, n, k)) for m, n, k in product((1, 256, 4096), SIZES, SIZES)
    ]
    write(tmp_path / "h100_sxm_gemm_ms.csv.gz", "gemm_dtype,m,n,k,latency", rows)
    header = "num_heads,kvh,batch_size,isl,step,latency"
    first = [(32, 8, 1, n, 0, 0.01 + 1e-7 * n * (n + 1) / 2) for n in LENGTHS]
    write(tmp_path / "h100_sxm_context_attention_ms.csv.gz", header, first)
    decodes = [(32, 8, b, 1, c - 1, 0.005 + 1e-5 * b * c) for b, c in product((1, 8, 64), LENGTHS)]
    write(tmp_path / "h100_sxm_generation_attention_ms.csv.gz", header, decodes)
    return tmp_path


def without_small_operations() -> float:
    """The fixed part that no table holds: the host's step, and four small operations a layer."""
    return 126e-6 + 32 * 4 * 3e-6


def test_products_between_the_grid_are_exact_for_a_bilinear_law():
    rows = [
        {"gemm_dtype": "x", "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k)}
        for m, n, k in product((1, 64), SIZES, SIZES)
    ]
    table = GemmTable("x", rows)
    for n, k in ((6144, 4096), (512, 8192), (128_256, 4096)):
        assert table.by_rows(n, k).at(17) == pytest.approx(gemm_ms(17, n, k) * 1e-3, rel=1e-9)
    with pytest.raises(InvalidConfiguration, match="no matrix products were measured in fp8"):
        GemmTable("fp8", rows)


def test_a_decode_is_the_sum_of_measured_operators(operators):
    model = worker_cost(replace(LLAMA, tables=str(operators))).step_time
    products = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    layer_ms = sum(gemm_ms(8, n, k) for n, k in products) + 0.005 + 1e-5 * 8000
    seconds = 32 * layer_ms * 1e-3 + gemm_ms(8, 128_256, 4096) * 1e-3 + without_small_operations()
    assert model.decode_seconds(8, 8000) == pytest.approx(seconds, rel=0.01)


def test_a_later_chunk_takes_as_long_as_its_pairs(operators):
    model = worker_cost(replace(LLAMA, tables=str(operators))).step_time
    later = model.seconds(StepShape(((4096, 1024),))) - model.seconds(StepShape(((0, 1024),)))
    assert later == pytest.approx(32 * 1e-7 * 4096 * 1024 * 1e-3, rel=0.05)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"model": "mixtral-8x7b"}, "neither mixtures of experts nor latent attention"),
        ({"model": "deepseek-v3"}, "neither mixtures of experts nor latent attention"),
        ({"model": "opt-66b"}, "no generation attention of 72 heads and 72 KV heads"),
        ({"kv_precision": "fp8"}, "attention was measured in bf16"),
        ({"device": "l40s"}, "has neither l40s"),
        ({"tensor_parallel": 2}, "has no h100.*_custom_allreduce_ms.csv.gz"),
        ({"weight_precision": "fp8"}, "no matrix products were measured in fp8"),
        ({"weight_precision": "int8"}, "no matrix products were measured in int8"),
    ],
)
def test_what_was_not_measured_is_refused(operators, change, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        worker_cost(replace(LLAMA, tables=str(operators), **change))


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """LLMServingSim's layout: a norm twice a layer, products that cost by the token, and attention
    that takes decodes twice as long in company, and 3 ns more for each token of the chunk."""
    prefix = "RTXPRO6000_Llama-3.1-8B_tp1_"
    dense = [(name, t, 10 + t) for name in ("layernorm", "qkv_proj") for t in (1, 1001)]
    dense += [("embedding", t, 7) for t in (1, 1001)]
    write(tmp_path / f"{prefix}dense.csv.gz", "layer,tokens,time_us", dense)
    rows = [(name, n, 100 + n) for name in ("lm_head", "sampler") for n in (1, 101)]
    write(tmp_path / f"{prefix}per_sequence.csv.gz", "layer,sequences,time_us", rows)
    attention = []
    for count, start, n, context in product((0, 16, 1024), (0, 4096), (0, 1, 64), (0, 16, 4096)):
        if (count or not start) and bool(n) == bool(context) and (count or n):
            chunk_us = 8 + count * (start + count / 2) / 1000 if count else 0
            decode_us = n * context / 100 * (2 if count else 1)
            tiles_us = 0.003 * n * count
            attention.append((count, start, n, context, chunk_us + decode_us + tiles_us))
    header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    write(tmp_path / f"{prefix}attention.csv.gz", header, attention)
    return tmp_path


def test_tables_of_one_model_add_up(layers):
    hardware = WorkerHardware(
        "llama-3.1-8b", "rtx_pro_6000", time_model="tables", tables=str(layers)
    )
    model = worker_cost(hardware).step_time
    linear_us = 32 * 3 * (10 + 101) + 7 + 2 * (100 + 101)
    assert model.decode_seconds(101, 64 * 4096) == pytest.approx(
        126e-6 + (linear_us + 32 * 64 * 4096 / 100) * 1e-6, rel=1e-9
    )
    step = StepShape(((4096, 16),), 64, 64 * 16, 0)
    linear_us = 32 * 3 * (10 + 80) + 7
    attention_us = 8 + 16 * 4104 / 1000 + 2 * 64 * 16 / 100 + 0.003 * 64 * 16
    expected = 126e-6 + (linear_us + 32 * attention_us) * 1e-6
    assert model.seconds(step) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "device", "ranks", "folder"),
    [
        ("llama-3-70b", "h100", 8, "aiconfigurator"),
        ("qwen3-32b", "rtx_pro_6000", 1, "llmservingsim"),
    ],
)
def test_roofline_and_real_tables_agree_roughly(model, device, ranks, folder):
    """Within 35 %: neither was fitted to the other."""
    if not HARDWARE.exists():
        pytest.skip("measured operators are not here")
    plain = WorkerHardware(model, device, tensor_parallel=ranks)
    measured = WorkerHardware(
        model, device, ranks, time_model="tables", tables=str(HARDWARE / folder)
    )
    one, other = worker_cost(plain), worker_cost(measured)
    assert one.prefill_seconds(4096) == pytest.approx(other.prefill_seconds(4096), rel=0.35)
    assert one.decode_seconds(32, 32_768) == pytest.approx(
        other.decode_seconds(32, 32_768), rel=0.35
    )
