"""A real server of any version of the source, whose event loops and memory are watched."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tandem.config.environment import BUNDLED_MODEL
from tests.attacks.clients import call
from tests.attacks.metered.sitecustomize import HEAD

OURS = Path(__file__).parents[2]
PATIENCE_S = 120.0
MIB = 1 << 20
# Tokens cost next to nothing, whatever the context.
TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 2560,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}


@dataclass
class MeteredServer:
    """`folder` holds a file for each process that has an event loop."""

    url: str
    folder: Path
    process: "subprocess.Popen[str]"
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.port = int(self.url.rpartition(":")[2])

    def processes(self, role: str = "") -> list[int]:
        """Of all so far, whose command line says so."""
        files = self.folder.iterdir()
        return [int(file.name) for file in files if role.encode() in file.read_bytes()[HEAD.size :]]

    def forget_stalls(self) -> None:
        for pid in self.processes():
            with (self.folder / str(pid)).open("r+b") as file:
                file.write(HEAD.pack(0.0))

    def stall_s(self, role: str = "") -> float:
        """The longest since they were forgotten."""
        files = [self.folder / str(pid) for pid in self.processes(role)]
        return max(HEAD.unpack_from(file.read_bytes())[0] for file in files)

    def peak_mib(self, role: str = "") -> float:
        return max(map(peak_mib, self.processes(role)))

    def wait_until_ready(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if call(self.port, "/ready", patience_s=5.0).status == 200:
                return
            time.sleep(0.1)
        raise TimeoutError(f"{self.url} is not ready")


def peak_mib(pid: int) -> float:
    """The most memory that this process ever had; 0 where it is no more."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    # A process that has ended and was not waited for has none.
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def tiny_model(folder: Path, context_tokens: int) -> Path:
    """Random weights next to nothing in size, with the words of the bundled model."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED_MODEL / name, folder)
    config = TINY | {"max_position_embeddings": context_tokens}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def metered_server(
    checkout: Path, *command: str, files: int | None = None
) -> Iterator[MeteredServer]:
    """`tandem COMMAND`, by the source in `checkout`, while the block runs; with so many descriptors
    at most."""
    with tempfile.TemporaryDirectory(prefix="metered-") as name:
        folder = Path(name)
        paths = (checkout / "src", Path(__file__).parent / "metered")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "TANDEM_METERED": name,
            "OMP_NUM_THREADS": "1",
        }
        limited = ["prlimit", f"--nofile={files}"] if files else []
        process = subprocess.Popen(
            [*limited, sys.executable, "-u", "-m", "tandem", *command],
            env=environment,
            cwd=checkout,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            yield _greeted(process, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _greeted(process: "subprocess.Popen[str]", folder: Path) -> MeteredServer:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\d.]+:\d+", line):
            server = MeteredServer(found[0], folder, process)
            server.wait_until_ready()
            return server
    raise RuntimeError(f"the server ended with status {process.wait()}")
