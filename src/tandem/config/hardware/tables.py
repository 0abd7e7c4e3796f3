"""Step times from tables of measured operators, gzipped CSV files in one of two layouts:
AIConfigurator's (the operators of one GPU, by size) or LLMServingSim's (those of one model on one
GPU). Which figures of a folder are read, and how they become a `TableStepTime`."""

import csv
import gzip
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import fsum
from pathlib import Path
from statistics import median

from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape, chunk_pairs
from tandem.cost.roofline import SMALL_OPERATIONS, all_reduce_seconds, elementwise_token_seconds
from tandem.cost.sharding import Sharding
from tandem.cost.tables import Curve, TableStepTime, constant, curve, surface, total
from tandem.facts.errors import InvalidConfiguration

MEASURED_HEAD_DIM = 128
# How AIConfigurator calls the precisions of matrix products; 16 bits are 16 bits.
MEASURED_KINDS = {"bf16": "bfloat16", "fp16": "bfloat16"}
Row = dict[str, str]
# Seconds by two counts.
Samples = dict[tuple[float, float], float]
# Seconds by a chunk (tokens now, tokens before) and decodes (sequences, context of all).
Mixed = dict[tuple[tuple[float, float], tuple[float, float]], float]
# How often an operator runs: once a layer, or as often as said here.
RUNS_A_LAYER = {"layernorm": 2}
RUNS_ONCE = ("embedding", "final_layernorm")
BY_ROW = ("lm_head", "sampler")
APART = ("attn",)


def load_operator_tables(
    folder: Path, shape: ModelShape, device: DeviceSpec, sharding: Sharding
) -> TableStepTime:
    """The measured operators in a folder of one of two layouts: AIConfigurator's (operators of a
    GPU, by size) or LLMServingSim's (operators of one model on one GPU). What it does not hold
    (links of a model's layout, small operations of a GPU's) comes from the roofline. Raises
    `InvalidConfiguration` when it has no tables of this model on this device."""
    sharding.check(shape, device)
    if sharding.kv_precision != "bf16":
        raise InvalidConfiguration(
            f"kv_precision is {sharding.kv_precision}, but attention was measured in bf16; use "
            "that, or time_model roofline"
        )
    if list(folder.glob(f"{device.name}*_gemm_ms.csv.gz")):
        return OperatorFolder(folder, shape, device, sharding).step_time()
    name = f"{device.name.replace('_', '')}_{shape.label}".lower()
    prefix = f"{name}_tp{sharding.tensor_parallel}_"
    files = {
        path.name[len(prefix) :].removesuffix(".csv.gz"): path
        for path in sorted(folder.glob("*.csv.gz"))
        if path.name.lower().startswith(prefix)
    }
    if "attention" in files and ("dense" in files or "layers" in files):
        return ModelFolder(files, shape, device, sharding).step_time()
    raise InvalidConfiguration(
        f"tables: {folder} has neither {device.name}*_gemm_ms.csv.gz nor attention and layers "
        f"under {prefix}*.csv.gz"
    )


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a gzipped CSV file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)
    except (OSError, EOFError) as problem:
        raise InvalidConfiguration(f"tables: {path} cannot be read: {problem}") from problem


class GemmTable:
    """Seconds of [m, k] x [k, n] by sizes. Lines in n and in k: a product costs about
    a + b n + c k + d n k, of which that is the exact interpolation."""

    def __init__(self, kind: str, rows: Iterable[Mapping[str, str]]) -> None:
        self._points: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for row in rows:
            if row["gemm_dtype"] == kind:
                size = (int(row["n"]), int(row["k"]))
                point = (float(row["m"]), float(row["latency"]) * 1e-3)
                self._points.setdefault(size, []).append(point)
        if not self._points:
            raise InvalidConfiguration(f"tables: no matrix products were measured in {kind}")
        self._widths = sorted({n for n, _ in self._points})
        self._depths = sorted({k for _, k in self._points})

    def by_rows(self, n: float, k: float) -> Curve:
        """Seconds by m."""
        parts = [
            (share_n * share_k, dict(self._points[width, depth]))
            for width, share_n in _shares(self._widths, n)
            for depth, share_k in _shares(self._depths, k)
        ]
        heights = sorted(set.intersection(*(set(points) for _, points in parts)))
        return curve((m, fsum(share * points[m] for share, points in parts)) for m in heights)


def _shares(grid: Sequence[int], size: float) -> list[tuple[int, float]]:
    """The grid sizes around one and their shares: its own alone if it is on the grid or below it,
    beyond the grid along the last line."""
    right = bisect_right(grid, size)
    if not right:
        return [(grid[0], 1.0)]
    if grid[right - 1] == size:
        return [(grid[right - 1], 1.0)]
    right = min(right, len(grid) - 1)
    low, high = grid[right - 1], grid[right]
    share = (size - low) / (high - low)
    return [(low, 1.0 - share), (high, share)]


class OperatorFolder:
    """AIConfigurator: matrix products by (m, n, k), attention by heads, all-reduce by elements."""

    def __init__(
        self, folder: Path, shape: ModelShape, device: DeviceSpec, sharding: Sharding
    ) -> None:
        self.folder, self.shape, self.device, self.sharding = folder, shape, device, sharding
        self.layers = shape.layers / sharding.pipeline_parallel
        attention = shape.attention
        head_dim = attention.kv_elements // (2 * attention.kv_heads)
        if shape.feed_forward.experts or attention.decode_pair_flops != (
            4.0 * attention.heads * head_dim
        ):
            raise InvalidConfiguration(
                f"tables: {folder} holds neither mixtures of experts nor latent attention, which "
                f"{shape.label} has; use time_model roofline"
            )
        if head_dim != MEASURED_HEAD_DIM:
            raise InvalidConfiguration(
                f"tables: attention in {folder} was measured with heads of {MEASURED_HEAD_DIM}; "
                f"{shape.label} has {head_dim}; use time_model roofline"
            )

    def step_time(self) -> TableStepTime:
        precision = self.sharding.weight_precision
        gemm = GemmTable(MEASURED_KINDS.get(precision, precision), self._rows("gemm_ms"))
        parts = [gemm.by_rows(n, k).scaled(self.layers) for n, k in self._products()]
        if self.sharding.tensor_parallel > 1:
            parts.append(self._all_reduce().scaled(2 * self.layers))
        latency = self.device.latency
        small_s = latency.step_s + self.layers * SMALL_OPERATIONS * latency.operation_s
        small_token_s = elementwise_token_seconds(self.shape, self.device, self.sharding)
        parts.append(Curve((0.0,), (small_s,), small_token_s))
        vocabulary = self.shape.vocabulary_tokens / self.sharding.tensor_parallel
        head = gemm.by_rows(vocabulary, self.shape.hidden_features)
        decodes = self._attention("generation")
        generation = surface({(b, b * c): s for (b, c), s in decodes.items()})
        return TableStepTime(
            stages=self.sharding.pipeline_parallel,
            tokens=total(parts),
            rows=head.scaled(1 / self.sharding.pipeline_parallel),
            chunks=surface(self._chunks(generation.cut(1).at)).scaled(self.layers),
            decodes=generation.scaled(self.layers),
        )

    def _products(self) -> list[tuple[float, float]]:
        """(n, k) of one layer's matrices on one device: columns are cut in the first of each pair,
        rows in the second."""
        attention, ranks = self.shape.attention, self.sharding.tensor_parallel
        hidden, inner = self.shape.hidden_features, self.shape.feed_forward.inner_features
        queries = attention.heads * MEASURED_HEAD_DIM
        gates = self.shape.feed_forward.dense_parameters // (hidden * inner) - 1
        return [
            ((queries + attention.kv_elements) / ranks, hidden),
            (hidden, queries / ranks),
            (gates * inner / ranks, hidden),
            (hidden, inner / ranks),
        ]

    def _chunks(self, decode_seconds: Callable[[float], float]) -> dict[tuple[float, float], float]:
        """Chunks were measured at the start of a prompt only. A later one takes as long as a first
        one of as many query-key pairs, and no less than streaming its context to one decode."""
        first = {
            length: seconds for (b, length), seconds in self._attention("context").items() if b == 1
        }
        by_pairs = curve((chunk_pairs(0, int(count)), s) for count, s in first.items())
        starts = sorted({0.0, *first, *(2 * max(first) * 2**i for i in range(3))})
        return {
            (count, start): max(
                by_pairs.at(chunk_pairs(int(start), int(count))), decode_seconds(start + count)
            )
            for count in first
            for start in starts
        }

    def _attention(self, phase: str) -> dict[tuple[float, float], float]:
        """Seconds of one layer by (batch, context) on one device."""
        heads = self.shape.attention.heads // self.sharding.tensor_parallel
        kv_heads = max(1, self.shape.attention.kv_heads // self.sharding.tensor_parallel)
        found = {
            (float(row["batch_size"]), float(row["isl"]) + float(row["step"])): (
                float(row["latency"]) * 1e-3
            )
            for row in self._rows(f"{phase}_attention_ms")
            if int(row["num_heads"]) == heads and int(row["kvh"]) == kv_heads
        }
        if not found:
            raise InvalidConfiguration(
                f"tables: {self.folder} has no {phase} attention of {heads} heads and {kv_heads} "
                "KV heads; choose another tensor_parallel, or time_model roofline"
            )
        return found

    def _all_reduce(self) -> Curve:
        """By tokens; the faster of both implementations at each size, as vLLM chooses."""
        ranks, hidden = str(self.sharding.tensor_parallel), self.shape.hidden_features
        points = [
            (float(row["message_size"]) / hidden, float(row["latency"]) * 1e-3)
            for name in ("custom_allreduce_ms", "nccl_ms")
            for row in self._rows(name)
            if row["num_gpus"] == ranks
            and row.get("op_name", "all_reduce") == "all_reduce"
            and row.get("nccl_dtype", "half") == "half"
            and row.get("backend", "vllm_graph") == "vllm_graph"
        ]
        if not points:
            raise InvalidConfiguration(
                f"tables: {self.folder} has no all-reduce over {ranks} devices"
            )
        return curve(points)

    def _rows(self, name: str) -> Iterator[Row]:
        paths = sorted(self.folder.glob(f"{self.device.name}*_{name}.csv.gz"))
        if not paths:
            raise InvalidConfiguration(
                f"tables: {self.folder} has no {self.device.name}*_{name}.csv.gz"
            )
        return read_rows(paths[0])


class ModelFolder:
    """LLMServingSim: the operators of one model on one device of its tensor-parallel group."""

    def __init__(
        self, files: dict[str, Path], shape: ModelShape, device: DeviceSpec, sharding: Sharding
    ) -> None:
        self.files, self.shape, self.device, self.sharding = files, shape, device, sharding
        self.stages = sharding.pipeline_parallel
        self.layers = shape.layers / self.stages
        if sharding.weight_precision != "bf16":
            raise InvalidConfiguration(
                f"weight_precision is {sharding.weight_precision}, but these tables were measured "
                "in bf16; use that, or time_model roofline"
            )

    def step_time(self) -> TableStepTime:
        operators = self._operators()
        each_layer = total([self._in_all(name, part) for name, part in operators.items()])
        fixed_s, token_s = all_reduce_seconds(self.shape, self.device, self.sharding)
        host = Curve((0.0,), (self.device.latency.step_s + fixed_s,), token_s)
        rows = [operators[name] for name in BY_ROW if name in operators]
        chunks, decodes, extra = self._attention()
        tile_s, company = _company(extra)
        return TableStepTime(
            stages=self.stages,
            tokens=total((each_layer, host)),
            rows=total(rows).scaled(1 / self.stages),
            chunks=surface(chunks).scaled(self.layers),
            decodes=surface(decodes).scaled(self.layers),
            company=surface(company).scaled(self.layers) if company else None,
            tile_s=tile_s * self.layers,
        )

    def _in_all(self, name: str, part: Curve) -> Curve:
        if name in (*BY_ROW, *APART):
            return constant(0.0)
        if name in RUNS_ONCE:
            return part.scaled(1 / self.stages)
        return part.scaled(self.layers * RUNS_A_LAYER.get(name, 1))

    def _operators(self) -> dict[str, Curve]:
        """Seconds of one run by tokens (or sampled rows), by the operator's name."""
        points: dict[str, list[tuple[float, float]]] = {}
        if "layers" in self.files:
            for row in read_rows(self.files["layers"]):
                point = (float(row["input"]), float(row["latency(ns)"]) * 1e-9)
                points.setdefault(row["layer_name"], []).append(point)
        else:
            for name, key in (("dense", "tokens"), ("per_sequence", "sequences")):
                for row in read_rows(self.files[name]):
                    point = (float(row[key]), float(row["time_us"]) * 1e-6)
                    points.setdefault(row["layer"], []).append(point)
        return {name: curve(entries) for name, entries in sorted(points.items())}

    def _attention(self) -> tuple[Samples, Samples, Mixed]:
        """One layer's chunks by (tokens now, tokens before), decodes by (sequences, context of all)
        and, by both, how much longer both together take than one after the other."""
        chunks: Samples = {}
        decodes: Samples = {}
        mixed: Mixed = {}
        for count, start, sequences, context, seconds in self._attention_rows():
            chunk, decode = (count, start), (sequences, sequences * context)
            if count and sequences:
                mixed[chunk, decode] = seconds
            elif count:
                chunks[chunk] = seconds
            else:
                decodes[decode] = seconds
        extra = {
            (chunk, decode): seconds - chunks[chunk] - decodes[decode]
            for (chunk, decode), seconds in mixed.items()
            if chunk in chunks and decode in decodes
        }
        return chunks, decodes, extra

    def _attention_rows(self) -> Iterator[tuple[float, float, float, float, float]]:
        """(chunk, tokens before it, decodes, context of each, seconds)."""
        for row in read_rows(self.files["attention"]):
            if "time_us" in row:
                context = float(row["kv_decode"])
                count, start = float(row["prefill_chunk"]), float(row["kv_prefill"])
                seconds = float(row["time_us"]) * 1e-6
                yield count, start, float(row["n_decode"]), context, seconds
                continue
            count, cached = float(row["prefill_chunk_size"]), float(row["kv_cache_size"])
            if row["is_prefill"] == "True":
                yield count, cached, 0.0, 0.0, float(row["time_stats.attn_prefill.median"]) * 1e-3
            else:
                seconds = float(row["time_stats.attn_decode.median"]) * 1e-3
                yield 0.0, 0.0, float(row["batch_size"]), cached, seconds


def _company(extra: Mixed) -> tuple[float, Samples]:
    """Seconds for each decode and token of the chunk beside it, and what else decodes then take
    longer. Medians, since single differences of three measurements are noisy."""
    by_chunk: dict[tuple[tuple[float, float], float], dict[float, float]] = {}
    for ((count, start), decode), seconds in extra.items():
        by_chunk.setdefault((decode, start), {})[count] = seconds
    slopes = [
        (found[max(found)] - found[min(found)]) / (decode[0] * (max(found) - min(found)))
        for (decode, _), found in by_chunk.items()
        if len(found) > 1
    ]
    tile_s = max(0.0, median(slopes)) if slopes else 0.0
    rest: dict[tuple[float, float], list[float]] = {}
    for ((count, _), decode), seconds in extra.items():
        rest.setdefault(decode, []).append(seconds - decode[0] * count * tile_s)
    return tile_s, {decode: max(0.0, median(found)) for decode, found in rest.items()}
