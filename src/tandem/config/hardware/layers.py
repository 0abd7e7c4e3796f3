"""Step times from LLMServingSim's tables: the operators of one model on one GPU."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tandem.config.hardware.measurements import read_rows
from tandem.cost.curves import Curve, constant, curve, surface, total
from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape
from tandem.cost.roofline import all_reduce_seconds
from tandem.cost.sharding import Sharding
from tandem.cost.tables import TableStepTime
from tandem.facts.errors import InvalidConfiguration

# Seconds by two counts.
Samples = dict[tuple[float, float], float]
# Seconds by a chunk (tokens now, tokens before) and decodes (sequences, context of all).
Mixed = dict[tuple[tuple[float, float], tuple[float, float]], float]
# How often an operator runs: once a layer, or as often as said here.
RUNS_A_LAYER = {"layernorm": 2}
RUNS_ONCE = ("embedding", "final_layernorm")
BY_ROW = ("lm_head", "sampler")
APART = ("attn",)


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
