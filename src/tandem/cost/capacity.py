"""How many KV blocks fit on a worker's devices beside the weights."""

from dataclasses import dataclass

from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape
from tandem.cost.sharding import ACTIVATION_BYTES, Sharding
from tandem.facts.errors import InvalidConfiguration

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
