"""What it costs a worker to hold a low-rank adapter that it does not hold yet."""

# Read from a disk that others have read it from already, digested, and packed: of one core.
LOAD_BYTES_PER_S = 4e8


def adapter_load_seconds(weight_bytes: int) -> float:
    """Until it can be computed with."""
    return weight_bytes / LOAD_BYTES_PER_S
