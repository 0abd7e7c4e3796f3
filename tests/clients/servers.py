"""The servers that clients are run against: one process, and a cluster whose prompts are computed
by one worker and whose answers are drawn by another. Both have an encoder beside the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.journeys.clusters import cluster
from tests.journeys.serving import serving
from tests.models.encoders.tiny import MODELS, build
from tests.models.encoders.tokens import write_tokenizer

CLUSTER = """
model: tandem-mini
block_size: 16
serve:
  port: 0
  max-num-seqs: 16
  kv-cache-memory: 64MiB
  threads: 1
  encoder_models: ["vectors={encoder}"]
pools:
  - {{name: prefill, role: prefill, device: cpu}}
  - {{name: decode, role: decode, device: cpu}}
transport: {{connectors: [shm]}}
policies: {{dispatch: remote, transfer: push}}
"""


@contextmanager
def encoder() -> Iterator[str]:
    """The folder of a tiny one."""
    with TemporaryDirectory() as folder:
        model = build(MODELS["bert"], Path(folder))
        write_tokenizer(Path(folder), "bert_labels", model.config.pad_token_id)
        yield folder


@contextmanager
def one_process() -> Iterator[str]:
    """Its URL, without /v1."""
    options = ("--max-num-seqs", "16", "--threads", "1")
    with encoder() as found, serving(*options, "--encoder-models", f"vectors={found}") as server:
        yield server.url


@contextmanager
def prefill_and_decode() -> Iterator[str]:
    with (
        encoder() as found,
        TemporaryDirectory() as folder,
        cluster(CLUSTER.format(encoder=found), Path(folder)) as server,
    ):
        yield server.url


SERVERS = {"server": one_process, "cluster": prefill_and_decode}
