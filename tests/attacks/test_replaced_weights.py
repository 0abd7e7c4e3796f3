"""A real server with a disk tier, whose weights are replaced in their folder: it answers as one
that never saw the old ones."""

from pathlib import Path

from tests.attacks.identities import another_download, copied_model
from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.test_tiers import tier, until

SERVED = """
name: replaced
model: {model}
block_size: 16
serve: {{port: 0, max-num-seqs: 4, kv-cache-memory: 4MiB, threads: 1, served-model-name: [served]}}
pools: [{{name: w, role: both, device: cpu}}]
tiers:
  disk: {{capacity: 16MiB, path: {folder}/kv}}
health: {{report_interval: 50ms}}
"""
STORY = "Once upon a time there were two brown foxes. " * 30
BLOCKS = 20


def told(running: ClusterProcess, salt: str = "") -> tuple[str, list[float], int]:
    """The text, its log-probabilities, and how much of the prompt was cached."""
    said = running.client.completions.create(
        model="served",
        prompt=STORY,
        max_tokens=8,
        temperature=0,
        logprobs=1,
        extra_body={"cache_salt": salt, "ignore_eos": True},
    )
    logprobs = said.choices[0].logprobs.token_logprobs
    return said.choices[0].text, logprobs, said.usage.prompt_tokens_details.cached_tokens


def started(folder: Path, name: str):
    (folder / name).mkdir()
    return cluster(SERVED.format(model=folder / "model", folder=folder), folder / name)


def test_replaced_weights_find_nothing_of_the_old_ones(tmp_path):
    model = copied_model(tmp_path / "model")
    with started(tmp_path, "first") as running:
        first = told(running)
        assert not first[2]
        until(lambda: tier(running, "blocks", "disk") >= BLOCKS)
        another_download(model)
        # What runs has the weights that it loaded, and so has its cache.
        again = told(running)
        assert again[:2] == first[:2]
        assert again[2] >= 16 * BLOCKS
    with started(tmp_path, "second") as running:
        after = told(running)
        assert not after[2]
        # Nobody has ever asked with this salt: all of it is computed.
        cold = told(running, "nobody's")
        assert (cold[2], after[:2]) == (0, cold[:2])
        assert after[1] != first[1]
        # The new blocks are kept as the old ones were.
        until(lambda: tier(running, "blocks", "disk") >= BLOCKS)
        [worker] = running.status()["workers"]
        assert len(worker["identity"]) == 32
