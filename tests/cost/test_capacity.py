"""KV capacity: exact on paper, near what engines report, an error where nothing fits."""

import pytest

from tandem.config.hardware.worker import WorkerHardware, kv_blocks, load_device, load_model_shape
from tandem.cost.sharding import MemoryLimits, Sharding, activation_bytes, kv_block_count
from tandem.facts.errors import InvalidConfiguration


def test_blocks_fill_what_weights_and_activations_leave():
    shape, device = load_model_shape("llama-3.1-8b"), load_device("h100")
    blocks = kv_block_count(shape, device, Sharding(), MemoryLimits(16, 2048, 0.9))
    activations = 2048 * (2 * 4096 + 3 * 14336) * 2
    assert activation_bytes(shape, Sharding(), 2048) == activations
    left = 85.899e9 * 0.9 - 2 * 8_030_261_248 - 0.99e9 - activations
    assert blocks == int(left // (16 * 65536 * 2))


def test_copies_of_kv_cost_memory():
    # 8 devices hold 4 KV heads twice, so twice the devices do not hold twice the KV.
    four, eight = (
        kv_blocks(WorkerHardware("qwen3-30b-a3b", "h100", tensor_parallel=n)) for n in (4, 8)
    )
    assert four < eight < 1.2 * four


@pytest.mark.parametrize(("tp", "pp", "tokens"), [(1, 1, 66_144), (1, 2, 163_008), (2, 1, 163_008)])
def test_capacity_is_near_what_an_engine_had(tp, pp, tokens):
    """OPT-13B on A100-80G, the tokens that DistServe's engine could hold (Apache-2.0)."""
    hardware = WorkerHardware("opt-13b", "a100", tp, pp)
    held = kv_blocks(hardware) * 16
    assert 0.9 * tokens < held < 1.1 * tokens


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(InvalidConfiguration, match=r"llama-3-70b does not fit on 1 x h100.*raise"):
        kv_blocks(WorkerHardware("llama-3-70b", "h100"))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"memory_utilisation": 1.5}, "memory_utilisation is 1.5"),
        ({"block_size": 0}, "block_size is 0"),
    ],
)
def test_limits_are_checked(fields, problem):
    with pytest.raises(InvalidConfiguration, match=problem):
        kv_blocks(WorkerHardware("llama-3.1-8b", "h100", **fields))
