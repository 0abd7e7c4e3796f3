"""What a whole serving process holds beside its weights, as kernels keep them, and KV pool."""

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import Figure
from model import HALF_BILLION, load, streamed_bytes
from tandem.kernels.faces import Kernels
from traffic import CONCURRENT, MIXED

MIB = 1 << 20
# Small enough that the requests below really write most of it: a page never touched is not held.
POOL_MIB = 64
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": HALF_BILLION.hidden_features,
    "intermediate_size": HALF_BILLION.feed_forward_features,
    "num_hidden_layers": HALF_BILLION.layers,
    "num_attention_heads": HALF_BILLION.attention.heads,
    "num_key_value_heads": HALF_BILLION.attention.kv_heads,
    "vocab_size": HALF_BILLION.vocabulary_tokens,
    "max_position_embeddings": HALF_BILLION.context_tokens,
    "rms_norm_eps": HALF_BILLION.norm.eps,
    "rope_theta": HALF_BILLION.rope.theta,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "dtype": "bfloat16",
}


def memory_figure(kernels: Kernels) -> Figure:
    """Peak memory of `tandem serve` after a batch of requests over HTTP, weights in bf16."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        command = [sys.executable, "-u", "-m", "tandem", "serve", folder, "--load-format", "dummy"]
        options = ["--port", "0", "--kv-cache-memory", f"{POOL_MIB}MiB", "--max-num-seqs", "16"]
        with subprocess.Popen(command + options, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = _url(server.stdout.readline)
                with ThreadPoolExecutor(CONCURRENT) as pool:
                    list(pool.map(lambda lengths: _complete(url, *lengths), MIXED))
                peak_mib = _peak_mib(server.pid)
            finally:
                server.kill()
    weights_mib = streamed_bytes(load(HALF_BILLION, "bfloat16", kernels, None)) / MIB
    return Figure(
        f"peak of a serving process beside weights ({weights_mib:.0f} MiB) and KV ({POOL_MIB} MiB)",
        peak_mib - weights_mib - POOL_MIB,
        "MiB",
        0.0,
        400e6 / MIB,
        "MiB goal",
        "≤ 400 MB",
        higher_is_better=False,
    )


def _url(readline: Callable[[], str]) -> str:
    while line := readline():
        if found := re.search(r"served on (http://[\d.:]+)/v1", line):
            return found[1]
    raise RuntimeError("the server did not start")


def _complete(url: str, prompt_tokens: int, max_tokens: int) -> None:
    body = {
        "model": json.load(urllib.request.urlopen(f"{url}/v1/models"))["data"][0]["id"],
        "prompt": [(7 * index + prompt_tokens) % 2000 + 1 for index in range(prompt_tokens)],
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).read()


def _peak_mib(process_id: int) -> float:
    status = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024
