"""The measured process: loads half a billion parameters, answers, prints its peak memory."""

import json
import resource

import torch

from model import CPU, HALF_BILLION, Rig, load
from tandem.kernels.faces import choose_kernels
from traffic import MIXED, our_rate

POOL_BLOCKS = 1024


def main() -> None:
    kernels, _ = choose_kernels(CPU, torch.float32, allow_native=True)
    decoder = load(HALF_BILLION, "bfloat16", kernels, None)
    rig = Rig.around(decoder, len(MIXED), POOL_BLOCKS)
    # A pool that was never written to would not be in memory.
    rig.engine.kv.pool_BL2KSD.zero_()
    our_rate(rig, MIXED)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    kv_bytes = rig.engine.kv.bytes
    print(json.dumps({"peak": peak_bytes, "weights": decoder.weights.bytes, "kv": kv_bytes}))


if __name__ == "__main__":
    main()
