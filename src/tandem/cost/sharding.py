"""Sharding of a model over the devices of one worker, and bytes per number."""

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
