"""In which precision a model's matrices are stored. Supervisors ask too, so this needs no torch."""

from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.models.footprint import STORAGE_BYTES


def storage_of(options: ServeOptions, spec: ModelSpec, *, is_cpu: bool) -> str:
    """One of `kernels.linear.contract.Storage`. Raises `InvalidConfiguration`."""
    if spec.weight_dtype not in STORAGE_BYTES:
        raise InvalidConfiguration(f"checkpoints in {spec.weight_dtype} are not supported")
    if options.quantization == "int8":
        if options.dtype != "auto":
            raise InvalidConfiguration(
                f"quantization int8 and dtype {options.dtype} exclude each other; leave one out"
            )
        if not is_cpu:
            raise InvalidConfiguration("quantization: int8 runs on a CPU only; use --device cpu")
        return "int8"
    if options.dtype != "auto":
        return options.dtype
    if not is_cpu:
        return "bfloat16"
    # The checkpoint's own precision: nothing is lost, and a 16-bit one streams half the bytes.
    return spec.weight_dtype if spec.weight_dtype in ("bfloat16", "float16") else "float32"
