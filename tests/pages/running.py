"""How each command that the pages show is run by a test: here, or where, or why it cannot be."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.config.environment import BUNDLED_MODEL
from tests.pages.commands import ALL, Command

# Where the pages' servers are.
ITS_URL = "http://127.0.0.1:8000"
OPERATOR_KEY = "key-of-an-operator"

HUB = "fetches a model from the hub"
FILES = "serves a checkpoint, an encoder or an adapter of the reader's own"
RECORDED = "plays a trace that is downloaded first; the same command runs on the bundled one"
DOWNLOAD = "downloads a trace"
# No test can run these, for want of a network, of machines or of files.
CANNOT = {
    "tandem serve Qwen/Qwen3-0.6B --port 8001": HUB,
    "tandem serve Qwen/Qwen3-8B --speculation draft --speculation-model Qwen/Qwen3-0.6B": HUB,
    "tandem serve Qwen/Qwen3-0.6B --enable-lora --lora-modules sql=/adapters/sql "
    "chat=/adapters/chat": HUB,
    "tandem serve qwen2.5-0.5b-instruct-q8_0.gguf": FILES,
    "tandem serve llama-3.1-8b-Q4_K_M-00001-of-00003.gguf": FILES,
    "tandem serve --encoder-models bge=/models/bge-small-en-v1.5 "
    "ranker=/models/bge-reranker-base": FILES,
    'tandem serve --encoder-models {"name": "bge", "path": "/models/bge", "max_batch_size": 32, '
    '"max_queue_delay_ms": 5}': FILES,
    "tandem simulate mooncake-16 --trace conversation_trace.jsonl --routing all --speed 1,2,3 "
    "--slo ttft=10s,tpot=50ms --plot routing.png": RECORDED,
    "curl -LO https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/"
    "conversation_trace.jsonl": DOWNLOAD,
    "curl -LO https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/"
    "AzureLLMInferenceTrace_conv.csv": DOWNLOAD,
    "tandem hits conversation_trace.jsonl --capacity 1M,3M,10M,30M --eviction lru,lfu,arc "
    "--ttl 60,600": RECORDED,
}
# Other tests run these, and look closer: the file, and what it has.
ELSEWHERE = {
    "tandem demo": ("tests/journeys/test_demo.py", '"-m", "tandem", "demo", "--seconds"'),
    "tandem demo --kill": ("tests/journeys/test_demo.py", '"demo", "--kill"'),
    "tandem demo --overload": ("tests/journeys/test_demo.py", '"--overload"'),
    "tandem page": ("tests/journeys/test_page.py", 'succeed("page"'),
    "tandem top": ("tests/journeys/test_page.py", 'run_tandem("top"'),
    "tandem report result.json -o report.html": (
        "tests/commands/test_report.py", 'tandem("report"'
    ),
    "tandem report /var/log/tandem -o report.html --last 3600": (
        "tests/commands/test_report.py", '"--last"'
    ),
    "tandem up lab.yaml": ("tests/journeys/test_ray.py", '"up", str(file)'),
    "tandem calibrate --out profile.json": (
        "tests/commands/test_calibrate_command.py", 'run("--out"'
    ),
    "tandem calibrate --shape disaggregated --threads 1": (
        "tests/commands/test_calibrate_command.py", '"--shape", "disaggregated"'
    ),
    'curl -sN http://127.0.0.1:8000/v1/completions -H Content-Type: application/json -d {"model": '
    '"tandem-mini",\n      "prompt": "Once upon a time", "max_tokens": 3000, "ignore_eos": true, '
    '"stream": true}': ("tests/journeys/test_readme.py", '"-sN"'),
    "curl http://127.0.0.1:8000/v1/load_lora_adapter -H Authorization: Bearer $OPERATOR_KEY -H "
    'Content-Type: application/json -d {"lora_name": "sql", "lora_path": "/adapters/sql"}': (
        "tests/api/test_adapters_api.py", "load_lora_adapter"
    ),
}  # fmt: skip
# Run once for several: they differ in sizes and names alone.
SAME = {
    "tandem serve --prefill 2 --decode 2": "tandem serve --prefill 2 --decode 2 "
    "--shared-cache 1GiB",
    "tandem serve --prefill 2 --decode 2 --shared-cache 8GiB": "tandem serve --prefill 2 "
    "--decode 2 --shared-cache 1GiB",
    "tandem serve --prefill 1 --decode 2": "tandem serve --prefill 1 --decode 2 "
    "--journal /var/log/tandem",
    "tandem up laptop-pd": "tandem up my-cluster.yaml",
    "tandem eval --checkpoint /path/to/checkpoint": "tandem eval --in-process",
}
# What makes a command last seconds, by its verb; of an option that is given twice the last counts.
BOUNDS = {
    "bench": ("--num-prompts", "4", "--no-progress"),
    "calibrate": ("--repeats", "1", "--batches", "1", "--chunks", "64", "--no-validate"),
    "compress": (
        *("--calibration-tokens", "256", "--held-out-tokens", "256", "--samples", "1"),
        "--no-progress",
    ),
    "serve": ("--kv-cache-memory", "64MiB"),
    "eval": ("--tasks", "tool-call", "--samples", "2", "--no-progress"),
    "simulate": ("--first", "10", "--processes", "1"),
}
# And by an option that it has.
MORE_BOUNDS = {
    ("bench", "--loadgen"): ("--min-queries", "4", "--min-duration-s", "0.1"),
    ("bench", "--trace"): ("--speed", "100"),
    ("compress", "--eval"): ("--tasks", "tool-call"),
    ("simulate", "--explain"): ("--first", "50"),
}
# What the reader puts in its place, and what a machine of any size has.
OWN = {
    "./my-model": str(BUNDLED_MODEL),
    "50GiB": "64MiB",
    "4GiB": "64MiB",
    "1GiB": "64MiB",
}
# Calls that show how a mistake is told.
REFUSED = ('"messages": []', '"temprature": 1')
# Pages whose Python runs here, each from its first block to its last, and which test runs others'.
PYTHON_HERE = ("docs/agents.md", "docs/api.md", "docs/cost.md", "docs/qos.md", "docs/scaling.md")
PYTHON_ELSEWHERE = {
    "README.md": ("tests/journeys/test_readme.py", "PYTHON"),
    # Parts of the scripts that are run, each by a client in an environment of its own.
    "docs/clients.md": ("tests/clients/test_clients.py", "settings(client) in PAGE.read_text()"),
}
# Blocks of theirs that cannot run as they stand, by words of them.
SNIPPETS_ELSEWHERE = {
    "tritonclient": "a client that is not installed; tests/api/test_inference_api.py asks so",
    "client.batches": "asks for the answers of a thousand stories at once, and would wait for them",
    'model="my-model"': "a model of the reader's own that thinks before it answers",
}


@dataclass(frozen=True)
class Run:
    """A command as the tests run it: in seconds, and in the folder that they have."""

    command: Command

    @property
    def verb(self) -> str:
        return self.command.words[1]

    @property
    def words(self) -> list[str]:
        """What stands behind `tandem`."""
        words = [OWN.get(word, word) for word in self.command.words[1:]]
        bounds = list(BOUNDS.get(self.verb, ()))
        for (verb, option), more in MORE_BOUNDS.items():
            if self.verb == verb and option in words:
                bounds += more
        return words + bounds

    def in_folder(self, folder: Path) -> list[str]:
        """With what it writes in `folder`."""
        return [re.sub(r"^/(tmp|var/log)/", f"{folder}/", word) for word in self.words]


def addressed(words: Sequence[str], url: str) -> list[str]:
    """To the server at `url`, in place of the pages'."""
    shorter = url.removeprefix("http://")
    return [word.replace(ITS_URL, url).replace("localhost:8000", shorter) for word in words]


def of_verbs(*verbs: str) -> list[Run]:
    """Those that are run here, in the order of the pages."""
    return [run for run in HERE if run.command.program == "tandem" and run.verb in verbs]


def _distinct(program: str) -> list[Command]:
    return list({each.text: each for each in ALL if each.program == program}.values())


SHOWN = [*_distinct("tandem"), *_distinct("curl")]
HERE = [Run(each) for each in SHOWN if each.text not in {*CANNOT, *ELSEWHERE, *SAME}]
