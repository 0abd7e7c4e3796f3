"""Tandem's engine beside OpenVINO GenAI, llama.cpp and transformers, in one run and in turns: the
shape of Qwen2.5-0.5B with random weights, prompts computed, tokens decoded, many requests at once.

OpenVINO and llama.cpp have an environment of their own, `.peers`, which the first run makes
(llama.cpp is compiled, which takes minutes).

Usage: python bench/peers.py [--kinds 16-bit,8-bit,4-bit] [--rounds 3] [--threads 2]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from limits import measure_limits
from peer_files import write_folder, write_gguf
from tandem.kernels.instructions import missing_instructions
from traffic import MIXED

HERE = Path(__file__).parent
PROGRAMS = HERE / "peer_programs"
ENVIRONMENT = HERE.parent / ".peers"
CONTEXT_TOKENS, DECODED_TOKENS, CONCURRENT = 2304, 33, 16
OURS, OVER_HTTP = "tandem", "tandem_http"


@dataclass(frozen=True)
class Peer:
    """One way to run the model: a program, the checkpoint that it reads (a GGUF type, or the folder
    of transformers where empty), what the program is told of it, and of an earlier Tandem the
    Python that has it."""

    program: str
    kind: str
    gguf: str = ""
    earlier_python: str = ""

    @property
    def name(self) -> str:
        return f"{self.program} {self.kind}" + (", earlier" if self.earlier_python else "")


# What peers compute in is what they are fastest with: bfloat16 only where it has instructions.
HAS_BF16 = not missing_instructions("avx512-bf16")
LLAMA_16 = "BF16" if HAS_BF16 else "F16"
KINDS: dict[str, tuple[Peer, ...]] = {
    "16-bit": (
        Peer(OURS, "bfloat16"),
        Peer("openvino", "F16", "F16"),
        Peer("llama_cpp", LLAMA_16, LLAMA_16),
        Peer("transformers", "bfloat16" if HAS_BF16 else "float32"),
    ),
    "8-bit": (
        Peer(OURS, "int8"),
        Peer("openvino", "Q8_0", "Q8_0"),
        Peer("llama_cpp", "Q8_0", "Q8_0"),
    ),
    "4-bit": (
        Peer(OURS, "int4"),
        Peer("openvino", "Q4_0", "Q4_0"),
        Peer("llama_cpp", "Q4_0", "Q4_0"),
    ),
}


@dataclass(frozen=True)
class Contest:
    """Requests at once, as (prompt, answer) tokens, and what of an answer counts, in tokens a
    second; the goal is times the best peer."""

    name: str
    lengths: list[tuple[int, int]]
    rate: Callable[["Contest", dict[str, Any]], float]
    goal: float

    def asked(self, number: int) -> dict[str, Any]:
        """Other prompts each time, of tokens that are in every vocabulary."""
        prompts = [
            [(31 * (index + 17 * number) + 7 * place) % 5000 + 1 for place in range(tokens)]
            for index, (tokens, _) in enumerate(self.lengths)
        ]
        return {"prompts": prompts, "answers": [answer for _, answer in self.lengths]}


def prefill_rate(contest: Contest, answer: dict[str, Any]) -> float:
    return contest.lengths[0][0] / float(answer["seconds"])


def decode_rate(_: Contest, answer: dict[str, Any]) -> float:
    instants = answer["instants"]
    return (len(instants) - 1) / float(instants[-1] - instants[0])


def total_rate(contest: Contest, answer: dict[str, Any]) -> float:
    return sum(tokens for _, tokens in contest.lengths) / float(answer["seconds"])


CONTESTS = (
    Contest("prefill of 512", [(512, 1)], prefill_rate, 1.0),
    Contest("prefill of 2,048", [(2048, 1)], prefill_rate, 1.0),
    Contest("decode, context 128", [(128, DECODED_TOKENS)], decode_rate, 1.1),
    Contest("decode, context 2,000", [(2000, DECODED_TOKENS)], decode_rate, 1.1),
    Contest("16 mixed requests", MIXED, total_rate, 1.5),
)


@dataclass
class Running:
    """A peer's process, which waits to be asked, and its rates by contest."""

    peer: Peer
    process: "subprocess.Popen[str]"
    rates: dict[str, list[float]] = field(default_factory=dict)
    first_tokens: dict[str, list[int]] = field(default_factory=dict)

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.peer.name} ended: see its words above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def run(self, contest: Contest, number: int) -> None:
        """The first round warms up."""
        answer = self.ask(contest.asked(number))
        self.first_tokens[contest.name] = [tokens[0] for tokens in answer["said"]]
        if number:
            self.rates.setdefault(contest.name, []).append(contest.rate(contest, answer))


@contextmanager
def running(peer: Peer, checkpoint: Path, threads: int, *options: str) -> Iterator[Running]:
    in_project = peer.program in (OURS, OVER_HTTP, "transformers")
    python = sys.executable if in_project else str(ENVIRONMENT / "bin" / "python")
    command = [python, str(PROGRAMS / f"{peer.program}_program.py")]
    command += ["--model", str(checkpoint), "--kind", peer.kind, "--threads", str(threads)]
    command += ["--sequences", str(CONCURRENT), "--context-tokens", str(CONTEXT_TOKENS), *options]
    if peer.earlier_python:
        command += ["--tandem-python", peer.earlier_python]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{peer.name} does not start: see its words above")
        yield Running(peer, process)
        process.stdin.close()


def make_environment() -> None:
    requirements = PROGRAMS / "requirements.txt"
    stamp = ENVIRONMENT / "made-of"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "pip"), "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--requirement", str(requirements)], check=True)
    stamp.write_text(requirements.read_text())


def compare(kind: str, checkpoints: Path, rounds: int, threads: int) -> Table:
    with ExitStack() as stack:
        peers = []
        for peer in KINDS[kind]:
            checkpoint = checkpoints / (f"{peer.gguf}.gguf" if peer.gguf else "folder")
            peers.append(stack.enter_context(running(peer, checkpoint, threads)))
        for number in range(1 + rounds):
            for contest in CONTESTS:
                for each in peers:
                    each.run(contest, number)
    table = table_of(kind, peers, CONTESTS)
    table.caption = f"first tokens of {CONCURRENT} that are ours: {same_first_tokens(peers)}"
    return table


def table_of(kind: str, peers: list[Running], contests: Sequence[Contest]) -> Table:
    table = Table(title=f"{kind}: tokens a second, medians (least to most)", title_justify="left")
    table.add_column("")
    for peer in peers:
        table.add_column(peer.peer.name, justify="right")
    for column in ("times the best", "goal"):
        table.add_column(column, justify="right")
    for contest in contests:
        rates = [peer.rates[contest.name] for peer in peers]
        medians = [statistics.median(each) for each in rates]
        cells = [
            f"{median:.1f} ({min(each):.0f}-{max(each):.0f})"
            for median, each in zip(medians, rates, strict=True)
        ]
        ratio = medians[0] / max(medians[1:])
        table.add_row(contest.name, *cells, f"{ratio:.2f}", f"{contest.goal:.1f}")
    return table


def same_first_tokens(peers: list[Running]) -> str:
    """Of each peer: with the same weights nearly all."""
    ours = peers[0].first_tokens[CONTESTS[-1].name]
    return ", ".join(
        f"{each.peer.name} {sum(map(int.__eq__, ours, each.first_tokens[CONTESTS[-1].name]))}"
        for each in peers[1:]
    )


def compare_kinds(description: str | None, compare: Callable[[str, Path, int, int], Table]) -> None:
    """The program of a comparison, with its options: makes the checkpoints, and prints of each kind
    of weights the table that `compare` gives of (kind, checkpoints, rounds, threads)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    console = Console(width=150)
    make_environment()
    with tempfile.TemporaryDirectory() as held:
        checkpoints = Path(held)
        write_folder(checkpoints / "folder")
        for kind in options.kinds.split(","):
            for name in sorted({peer.gguf for peer in KINDS[kind] if peer.gguf}):
                write_gguf(checkpoints / "folder", checkpoints / f"{name}.gguf", name)
            console.print(f"{kind}: {measure_limits()}")
            console.print(compare(kind, checkpoints, options.rounds, options.threads))


if __name__ == "__main__":
    compare_kinds(__doc__, compare)
