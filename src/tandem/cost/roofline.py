"""Roofline step time: arithmetic peak, memory bandwidth and links.

Each group of matrices takes the longer of its arithmetic and of streaming its weights, as in the
roofline model (Williams et al., 2009); of a mixture only the experts that are touched are streamed.
Attention of chunks and of decodes is summed: measured hybrid kernels do not overlap them.
"""

from dataclasses import dataclass, field

from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape, chunk_pairs
from tandem.cost.sharding import ACTIVATION_BYTES, Sharding
from tandem.cost.worker import StepShape

# Two norms, the rotation and the activation: what a layer runs besides matrices and attention.
SMALL_OPERATIONS = 4


@dataclass(frozen=True, slots=True)
class Matrices:
    """A group of weights: seconds of arithmetic for one token, and of streaming them once."""

    token_s: float
    stream_s: float

    def seconds(self, tokens: int) -> float:
        return max(tokens * self.token_s, self.stream_s)


@dataclass(frozen=True, slots=True)
class AttentionRates:
    """Seconds for all layers of a kind: a chunk takes the longer of `pair_s` for each pair and
    `chunk_context_s` for each key read; a decode takes `decode_s` for each token it attends to."""

    pair_s: float
    chunk_context_s: float
    decode_s: float

    def chunk_seconds(self, start: int, count: int, window_tokens: int) -> float:
        """Every token sees `window_tokens` at most; 0 is no window."""
        context, pairs = start + count, chunk_pairs(start, count)
        if window_tokens:
            # The tokens from `unseen` on do not reach back to the first one.
            unseen = max(start, min(context, window_tokens))
            beyond = context - unseen
            pairs = chunk_pairs(start, unseen - start) + beyond * window_tokens
            context = min(context, count + window_tokens)
        return max(pairs * self.pair_s, context * self.chunk_context_s)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step times of one model on one kind of device; make it with `roofline`.

    `fixed_s` passes in every step, `token_s` for each token in element-wise work and links.
    """

    stages: int
    shape: ModelShape
    fixed_s: float
    token_s: float
    layers: Matrices
    experts: Matrices
    head: Matrices
    full: AttentionRates
    windowed: AttentionRates
    _decode_memo: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def seconds(self, shape: StepShape) -> float:
        tokens = shape.tokens
        if not tokens:
            return 0.0
        total = self._tokens_seconds(tokens, shape.sampled_rows)
        total += self._decode_attention(shape.decode_sequences, shape.decode_context_tokens)
        for start, count in shape.chunks:
            total += self.full.chunk_seconds(start, count, 0)
            if self.shape.window_tokens:
                total += self.windowed.chunk_seconds(start, count, self.shape.window_tokens)
        return total

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        seconds = self._decode_memo.get(sequences)
        if seconds is None:
            seconds = self._tokens_seconds(sequences, sequences) if sequences else 0.0
            self._decode_memo[sequences] = seconds
        if not sequences:
            return 0.0
        if self.shape.window_tokens:
            return seconds + self._decode_attention(sequences, context_tokens)
        return seconds + context_tokens * self.full.decode_s

    def _tokens_seconds(self, tokens: int, sampled_rows: int) -> float:
        total = self.fixed_s + tokens * self.token_s + self.layers.seconds(tokens)
        if self.experts.stream_s:
            touched = self.shape.touched_experts(tokens)
            total += max(tokens * self.experts.token_s, touched * self.experts.stream_s)
        return total + (self.head.seconds(sampled_rows) if sampled_rows else 0.0)

    def _decode_attention(self, sequences: int, context_tokens: int) -> float:
        seconds = context_tokens * self.full.decode_s
        if self.shape.window_tokens:
            seen = min(context_tokens, sequences * self.shape.window_tokens)
            seconds += seen * self.windowed.decode_s
        return seconds


def roofline(shape: ModelShape, device: DeviceSpec, sharding: Sharding) -> Roofline:
    """Raises `InvalidConfiguration` if the model cannot be cut like this."""
    sharding.check(shape, device)
    shards = sharding.devices
    flops = device.compute_flops_per_s(sharding.weight_precision) * device.efficiency.gemm
    stream = device.memory_bytes_per_s * device.efficiency.stream / sharding.weight_bytes
    inner = shape.feed_forward
    chosen = shape.expert_layers * inner.experts_per_token * inner.expert_parameters
    one_of_each = shape.expert_layers * inner.expert_parameters

    def matrices(active_parameters: float, streamed_parameters: float) -> Matrices:
        return Matrices(
            2.0 * active_parameters / (flops * shards), streamed_parameters / (stream * shards)
        )

    windowed = shape.windowed_layers / shape.layers
    return Roofline(
        stages=sharding.pipeline_parallel,
        shape=shape,
        fixed_s=_fixed_seconds(shape, device, sharding),
        token_s=elementwise_token_seconds(shape, device, sharding)
        + _link_token_seconds(shape, device, sharding),
        layers=matrices(shape.dense_parameters, shape.dense_parameters),
        experts=matrices(chosen, one_of_each),
        head=matrices(shape.head_parameters, shape.head_parameters),
        full=_attention(shape, device, sharding, share=1.0 - windowed),
        windowed=_attention(shape, device, sharding, share=windowed),
    )


def elementwise_token_seconds(shape: ModelShape, device: DeviceSpec, sharding: Sharding) -> float:
    """Memory traffic of one token in norms, rotation and activation, in one stage: both norms read
    and write the state and the residual; the rest is cut over the devices."""
    attention = shape.attention
    # Queries are as wide as the output projection's input; rotated in place with the keys.
    rotated = 2 * (attention.prefill_pair_flops / 4 + attention.kv_elements)
    activated = 3 * shape.feed_forward.inner_features
    numbers = 8 * shape.hidden_features + (rotated + activated) / sharding.tensor_parallel
    rate = device.memory_bytes_per_s * device.efficiency.stream
    return shape.layers / sharding.pipeline_parallel * numbers * ACTIVATION_BYTES / rate


def all_reduce_seconds(
    shape: ModelShape, device: DeviceSpec, sharding: Sharding
) -> tuple[float, float]:
    """(fixed, per token) seconds of one stage's all-reduces, two a layer. A ring moves
    2 (n - 1) / n of the data over each device's link (NCCL's bus bandwidth)."""
    ranks = sharding.tensor_parallel
    if ranks == 1:
        return 0.0, 0.0
    reduces = 2.0 * shape.layers / sharding.pipeline_parallel
    moved_bytes = 2.0 * (ranks - 1) / ranks * shape.hidden_features * ACTIVATION_BYTES
    rate = device.links.device_bytes_per_s * device.efficiency.device_link
    return reduces * device.latency.all_reduce_s, reduces * moved_bytes / rate


def _fixed_seconds(shape: ModelShape, device: DeviceSpec, sharding: Sharding) -> float:
    layers = shape.layers / sharding.pipeline_parallel
    seconds = device.latency.step_s + layers * SMALL_OPERATIONS * device.latency.operation_s
    seconds += all_reduce_seconds(shape, device, sharding)[0]
    return seconds + (device.latency.send_s if sharding.pipeline_parallel > 1 else 0.0)


def _link_token_seconds(shape: ModelShape, device: DeviceSpec, sharding: Sharding) -> float:
    seconds = all_reduce_seconds(shape, device, sharding)[1]
    if sharding.pipeline_parallel > 1:
        links = device.links
        near = sharding.devices <= device.devices_per_node
        rate = links.device_bytes_per_s if near else links.network_bytes_per_s
        # Every device of a stage sends its part to its peer in the next one.
        state_bytes = shape.hidden_features * ACTIVATION_BYTES
        seconds += state_bytes / sharding.tensor_parallel / rate
    return seconds


def _attention(
    shape: ModelShape, device: DeviceSpec, sharding: Sharding, *, share: float
) -> AttentionRates:
    """Rates of `share` of the layers. Attention computes in 16 bits whatever the KV is kept in."""
    layers = share * shape.layers / sharding.pipeline_parallel
    flops = device.compute_flops_per_s("bf16") * device.efficiency.attention
    flops *= sharding.tensor_parallel
    stream = device.memory_bytes_per_s * device.efficiency.kv_stream * sharding.kv_shards(shape)
    kv_s = layers * shape.attention.kv_elements * sharding.kv_bytes / stream
    return AttentionRates(
        pair_s=layers * shape.attention.prefill_pair_flops / flops,
        chunk_context_s=kv_s,
        decode_s=max(kv_s, layers * shape.attention.decode_pair_flops / flops),
    )
