"""Sharding of a model over the devices of a worker, and the KV blocks that fit beside weights."""

from dataclasses import dataclass

from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape
from tandem.facts.errors import InvalidConfiguration

PRECISION_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
}
# Hidden states cross devices and memory in 16 bits whatever the weights are stored in.
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Sharding:
    """Every weight matrix is cut over `tensor_parallel` devices, the layers over
    `pipeline_parallel` stages that are taken to be of equal work. Raises `InvalidConfiguration`
    for counts below one and unknown precisions."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    weight_precision: str = "bf16"
    kv_precision: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "pipeline_parallel"):
            if getattr(self, name) < 1:
                raise InvalidConfiguration(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("weight_precision", "kv_precision"):
            if getattr(self, name) not in PRECISION_BYTES:
                raise InvalidConfiguration(
                    f"{name} is {getattr(self, name)!r}; expected one of "
                    f"{', '.join(PRECISION_BYTES)}"
                )

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight."""
        return PRECISION_BYTES[self.weight_precision]

    @property
    def kv_bytes(self) -> float:
        """Bytes of one number of the KV cache."""
        return PRECISION_BYTES[self.kv_precision]

    def kv_shards(self, shape: ModelShape) -> int:
        """Over how many devices of a stage the KV is cut; the others hold copies. A latent (MLA)
        cannot be cut by heads."""
        return min(self.tensor_parallel, shape.attention.kv_heads)

    def check(self, shape: ModelShape, device: DeviceSpec) -> None:
        """Raises `InvalidConfiguration` if this model cannot be cut like this on such devices."""
        heads, tensor_parallel = shape.attention.heads, self.tensor_parallel
        if heads % tensor_parallel:
            raise InvalidConfiguration(
                f"tensor_parallel is {tensor_parallel}; expected a divisor of the {heads} heads "
                f"of {shape.label}"
            )
        if tensor_parallel > device.devices_per_node:
            raise InvalidConfiguration(
                f"tensor_parallel is {tensor_parallel}, but a node holds {device.devices_per_node} "
                f"{device.name}; raise pipeline_parallel instead"
            )
        if self.pipeline_parallel > shape.layers:
            raise InvalidConfiguration(
                f"pipeline_parallel is {self.pipeline_parallel}; {shape.label} has "
                f"{shape.layers} layers to share out"
            )


GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """`utilisation` is the share of a device's memory that the worker may use; a step takes
    `chunk_tokens` at most."""

    block_size: int
    chunk_tokens: int
    utilisation: float

    def __post_init__(self) -> None:
        if not 0.0 < self.utilisation <= 1.0:
            raise InvalidConfiguration(
                f"memory_utilisation is {self.utilisation!r}; expected a share above 0, 1 at most"
            )
        for name in ("block_size", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise InvalidConfiguration(f"{name} is {getattr(self, name)}; expected 1 or more")


def weight_bytes_per_device(shape: ModelShape, sharding: Sharding) -> float:
    return shape.parameters * sharding.weight_bytes / sharding.devices


def kv_bytes_per_token(shape: ModelShape, sharding: Sharding) -> float:
    """Of one sequence's token over all layers, each number counted once: what a transfer moves."""
    return shape.kv_elements_per_token * sharding.kv_bytes


def activation_bytes(shape: ModelShape, sharding: Sharding, chunk_tokens: int) -> float:
    """The largest set of activations alive at once: the state and the residual, and the gate, up
    and product of a feed-forward layer, for `chunk_tokens`."""
    inner_features = 3 * shape.feed_forward.inner_features / sharding.tensor_parallel
    return chunk_tokens * (2 * shape.hidden_features + inner_features) * ACTIVATION_BYTES


def kv_block_count(
    shape: ModelShape, device: DeviceSpec, sharding: Sharding, limits: MemoryLimits
) -> int:
    """Blocks of `limits.block_size` tokens that a worker holds. Raises `InvalidConfiguration` if
    the weights leave no room for one."""
    usable_bytes = device.memory_bytes * limits.utilisation
    weight_bytes = weight_bytes_per_device(shape, sharding)
    other_bytes = device.reserve_bytes + activation_bytes(shape, sharding, limits.chunk_tokens)
    # A stage keeps its layers' KV alone; where heads are fewer than devices, some keep copies.
    token_bytes = kv_bytes_per_token(shape, sharding) / sharding.pipeline_parallel
    block_bytes = limits.block_size * token_bytes / sharding.kv_shards(shape)
    blocks = int((usable_bytes - weight_bytes - other_bytes) // block_bytes)
    if blocks < 1:
        raise InvalidConfiguration(
            f"{shape.label} does not fit on {sharding.devices} x {device.name}: each has "
            f"{usable_bytes / GIB:.1f} GiB to use, the weights take {weight_bytes / GIB:.1f} GiB "
            f"and activations and reserve {other_bytes / GIB:.1f} GiB; raise tensor_parallel or "
            "pipeline_parallel, or lower weight_precision"
        )
    return blocks
