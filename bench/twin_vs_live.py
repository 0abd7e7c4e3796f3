"""The twin beside our own server on this machine: `tandem profile`, then `tandem bench` against
`tandem serve`, then the twin with that profile and the arrivals that the client really sent.

Usage: python bench/twin_vs_live.py [--rate 2] [--requests 120] [--threads 1] [--folder F]
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tandem.cluster.worker.machine import WorkerConfig
from tandem.config.environment import BUNDLED_MODEL
from tandem.config.hardware.worker import WorkerHardware, worker_cost
from tandem.config.memory import ModelFacts
from tandem.config.options import ServeOptions
from tandem.config.resolve import machine_facts, resolve
from tandem.facts.fleet import Role
from tandem.models.configuration import read_model_spec
from tandem.twin.scenario import Pool, WorkerKind
from vllm_validation import Served, errors, served_by, show

TANDEM = (sys.executable, "-u", "-m", "tandem")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--threads", type=int, default=1, help="leave a core to the client")
    parser.add_argument("--folder", type=Path, help="keeps the profile and the records here")
    wishes = parser.parse_args()
    with TemporaryDirectory() as passing:
        folder = wishes.folder or Path(passing)
        profile, records = folder / "profile.json", folder / "records.jsonl"
        threads = f"--threads={wishes.threads}"
        subprocess.run([*TANDEM, "profile", "--out", str(profile), threads], check=True)
        with serving(threads) as url:
            load = (f"--rate={wishes.rate}", f"--requests={wishes.requests}")
            lengths = ("--input-tokens=uniform:16-512", "--output-tokens=uniform:8-128")
            report = (f"--records={records}", "--no-progress")
            subprocess.run([*TANDEM, "bench", "--url", url, *load, *lengths, *report], check=True)
        live = [served(json.loads(line)) for line in records.read_text().splitlines()]
        simulated = in_the_twin(profile, live, wishes.threads)
    rate = f"{wishes.rate:g} requests a second, {wishes.threads} threads"
    show(f"tandem-mini here, {rate}", ("live", "twin"), errors(live, simulated))


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The URL of a `tandem serve` that runs until the block ends."""
    process = subprocess.Popen(
        [*TANDEM, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"served on (http://[\d.]+:\d+)/v1", line):
                yield found[1]
                break
    finally:
        process.terminate()
        process.communicate(timeout=30)


def served(row: dict[str, float]) -> Served:
    """A line of `tandem bench --records`. When the server took it up, the client cannot know."""
    first_token_s = row["sent_s"] + row["ttft_s"]
    return Served(
        arrival_s=row["sent_s"],
        first_token_s=first_token_s,
        last_token_s=first_token_s + row["tpot_s"] * (row["output_tokens"] - 1),
        scheduled_s=first_token_s,
        prompt_tokens=int(row["prompt_tokens"]),
        output_tokens=int(row["output_tokens"]),
    )


def in_the_twin(profile: Path, requests: list[Served], threads: int) -> list[Served]:
    config = server_config(threads)
    hardware = WorkerHardware(
        BUNDLED_MODEL.name,
        "cpu",
        chunk_tokens=config.batching.max_batched_tokens,
        block_size=config.block_size,
        time_model="profile",
        profile=str(profile),
    )
    kind = WorkerKind(
        cost=worker_cost(hardware),
        device=hardware.device,
        devices=1,
        block_count=config.block_count,
        max_sequences=config.max_sequences,
        batching=config.batching,
        steps_in_flight=config.steps_in_flight,
    )
    pool = Pool("here", Role.BOTH, kind, 1, 1, 1)
    return served_by(pool, config.block_size, config.context_tokens, requests)


def server_config(threads: int) -> WorkerConfig:
    """What `tandem serve` decides by with these options here."""
    facts = ModelFacts(read_model_spec(BUNDLED_MODEL))
    return resolve(ServeOptions(threads=threads), facts, machine_facts()).worker


if __name__ == "__main__":
    main()
