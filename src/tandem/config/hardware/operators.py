"""Step times from AIConfigurator's tables: the operators of one GPU, by size."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tandem.config.hardware.measurements import GemmTable, Row, read_rows
from tandem.cost.curves import Curve, curve, surface, total
from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape, chunk_pairs
from tandem.cost.roofline import SMALL_OPERATIONS, elementwise_token_seconds
from tandem.cost.sharding import Sharding
from tandem.cost.tables import TableStepTime
from tandem.facts.errors import InvalidConfiguration

MEASURED_HEAD_DIM = 128
# How AIConfigurator calls the precisions of matrix products; 16 bits are 16 bits.
MEASURED_KINDS = {"bf16": "bfloat16", "fp16": "bfloat16"}


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
