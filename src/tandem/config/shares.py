"""How processes that run on one machine share its cores and its memory."""

GIB = 1 << 30
# On a shared machine the pool takes what surely is to spare, not all there is.
CPU_POOL_SHARE = 0.4
CPU_POOL_LIMIT_BYTES = 4 * GIB
# Beside weights and KV, on a GPU that several workers share: context, kernels, activations.
GPU_WORKING_BYTES = 2 * GIB


def cpu_pool_bytes(free_bytes: int, beside_bytes: int, workers: int = 1) -> int:
    """Memory for the KV pool of each of `workers`, where `beside_bytes` of what is free are for
    everything else that all of them have yet to take."""
    spare_bytes = max(0, free_bytes - beside_bytes)
    return min(CPU_POOL_LIMIT_BYTES, int(CPU_POOL_SHARE * spare_bytes)) // workers


def gpu_pool_bytes(usable_bytes: int, weight_bytes: int, workers: int) -> int:
    """The same for workers on one GPU, of which they may use so much together."""
    return max(0, usable_bytes // workers - weight_bytes - GPU_WORKING_BYTES)


def threads_of_each(cores: int, processes: int) -> int:
    """Cores divided among processes that compute, at least one for each."""
    return max(1, cores // max(1, processes))
