"""Device specifications: datasheet figures, and the share of them that kernels reach. The bundled
sheets say where each figure comes from."""

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.facts.errors import InvalidConfiguration

# What a device computes in when the weights' own precision is only a way to store them.
COMPUTE_PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares, 0 to 1, of the datasheet that are reached: `gemm` and `attention` of the arithmetic
    peak, `stream` and `kv_stream` of the memory bandwidth, `device_link` in all-reduces, `network`
    in KV transfers."""

    gemm: float
    stream: float
    attention: float
    kv_stream: float
    device_link: float
    network: float

    def __post_init__(self) -> None:
        for name in ("gemm", "stream", "attention", "kv_stream", "device_link", "network"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InvalidConfiguration(
                    f"efficiency.{name} is {getattr(self, name)!r}; expected a share above 0, "
                    "1 at most"
                )


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes per second in one direction, for one device: to its neighbours in the node, to the
    host's memory, to the node's disk and to other nodes."""

    device_bytes_per_s: float
    host_bytes_per_s: float
    disk_bytes_per_s: float
    network_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds that pass whatever the size: a small operation on the device, an all-reduce, a send
    to the next stage, the host's work on a step, a read of the disk, a transfer over the
    network."""

    operation_s: float
    all_reduce_s: float
    send_s: float
    step_s: float
    disk_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of one device."""

    idle_w: float
    prefill_w: float
    decode_w: float


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device. `flops_per_s` is by precision, dense; `reserve_bytes` is memory that neither
    weights nor KV nor activations can have. `usd_per_hour` is for one device."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    devices_per_node: int
    reserve_bytes: float
    usd_per_hour: float
    efficiency: Efficiency
    links: Links
    latency: Latency
    power: Power

    def __post_init__(self) -> None:
        figures = {
            "memory_bytes": self.memory_bytes,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "devices_per_node": self.devices_per_node,
            **{f"links.{name}": getattr(self.links, name) for name in Links.__slots__},
            **{f"flops_per_s.{name}": value for name, value in self.flops_per_s.items()},
        }
        for name, value in figures.items():
            if not value > 0:
                raise InvalidConfiguration(f"{self.name}: {name} is {value!r}; expected above 0")

    def compute_flops_per_s(self, precision: str) -> float:
        """Peak for weights stored in `precision`: its own where the device has it, else the widest
        spread one (the weights are then unpacked). Raises `InvalidConfiguration`."""
        for name in (precision, *COMPUTE_PRECISIONS):
            if name in self.flops_per_s:
                return self.flops_per_s[name]
        raise InvalidConfiguration(
            f"{self.name}: flops_per_s has none of {precision}, {', '.join(COMPUTE_PRECISIONS)}"
        )
