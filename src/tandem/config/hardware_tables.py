"""Finds the measured operators of a model on a device in a folder.

Two layouts: AIConfigurator's (operators of a GPU, by size) and LLMServingSim's (operators of one
model on one GPU). What a folder does not hold (links of a model's layout, small operations of a
GPU's) comes from the roofline.
"""

from pathlib import Path

from tandem.config.hardware_layers import ModelFolder
from tandem.config.hardware_operators import OperatorFolder
from tandem.cost.device import DeviceSpec
from tandem.cost.model_shape import ModelShape
from tandem.cost.sharding import Sharding
from tandem.cost.tables import TableStepTime
from tandem.facts.errors import InvalidConfiguration


def load_operator_tables(
    folder: Path, shape: ModelShape, device: DeviceSpec, sharding: Sharding
) -> TableStepTime:
    """Raises `InvalidConfiguration` when the folder has no tables of this model on this device."""
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
