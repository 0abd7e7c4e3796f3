"""How many KV blocks and how long a context a server gets from the memory it was given, and what of
the wishes that cuts. Knows sizes only, so it needs no torch."""

from dataclasses import dataclass

from tandem.config.memory import MIB, size
from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec


@dataclass(frozen=True, slots=True)
class KvSizes:
    """`cuts` say, a line each, where it is less than was asked for or than the model could do."""

    blocks: int
    context_tokens: int
    cuts: tuple[str, ...] = ()


def kv_sizes(options: ServeOptions, spec: ModelSpec, block_bytes: int, pool_bytes: int) -> KvSizes:
    """Of a pool that may take `pool_bytes`. Raises `InvalidConfiguration` with the option at fault
    and the remedy."""
    wanted_tokens = options.max_model_len or spec.context_tokens
    if wanted_tokens < 2:
        raise InvalidConfiguration("max-model-len must hold a prompt and an answer: at least 2")
    if wanted_tokens > spec.context_tokens:
        raise InvalidConfiguration(
            f"max-model-len {wanted_tokens} is beyond the model's {spec.context_tokens} positions"
        )
    blocks = pool_bytes // block_bytes
    context_tokens = _context_tokens(options, wanted_tokens, blocks, block_bytes)
    cuts = []
    if context_tokens < wanted_tokens:
        needed_mib = -(-wanted_tokens // options.block_size) * block_bytes / MIB
        cuts.append(
            f"context cut to {context_tokens} of {wanted_tokens} tokens: a KV cache of "
            f"{size(pool_bytes)} holds no more; kv-cache-memory {needed_mib:.0f}MiB would hold all"
        )
    # More blocks than all slots could ever fill would only be cache; keep twice that as cache.
    useful_blocks = 2 * options.max_num_seqs * -(-context_tokens // options.block_size)
    if blocks > useful_blocks and options.kv_cache_memory != "auto":
        cuts.append(
            f"KV cache cut to {size(useful_blocks * block_bytes)} of {size(pool_bytes)}: twice "
            f"what {options.max_num_seqs} sequences of {context_tokens} tokens can fill; more "
            "max-num-seqs would use more"
        )
    return KvSizes(min(blocks, useful_blocks), context_tokens, tuple(cuts))


def _context_tokens(
    options: ServeOptions, wanted_tokens: int, pool_blocks: int, block_bytes: int
) -> int:
    """The longest sequence that fits. An explicit wish that does not fit is an error; the model's
    own maximum is only an upper bound."""
    fitting_tokens = pool_blocks * options.block_size
    if fitting_tokens >= wanted_tokens:
        return wanted_tokens
    needed_mib = -(-wanted_tokens // options.block_size) * block_bytes / MIB
    remedy = f"raise --kv-cache-memory above {needed_mib:.0f}MiB or lower --max-model-len"
    if options.max_model_len:
        raise InvalidConfiguration(
            f"max-model-len {wanted_tokens} does not fit: the KV pool holds {fitting_tokens} "
            f"tokens; {remedy}"
        )
    if fitting_tokens < 2 * options.block_size:
        raise InvalidConfiguration(f"no memory is left for the KV cache; {remedy}")
    return fitting_tokens
