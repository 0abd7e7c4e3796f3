"""What keeps a cluster from starting is reported before it has a process or a file."""

import json
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.config.cluster.live import checked
from tandem.config.cluster.tree import override, parse
from tandem.config.environment import BUNDLED
from tandem.facts.errors import InvalidConfiguration
from tandem.live.launching.state_directory import (
    ClusterRecord,
    ClusterRunning,
    ProcessRecord,
    StateDirectory,
)
from tandem.live.processes.before_start import check_before_start

TEXT = """\
model: tandem-mini
serve:
  port: 0
  kv-cache-memory: 16MiB
pools:
  - name: both.of.them
    device: cpu
"""


def check(tmp_path, *settings):
    tree = parse(TEXT, "c.yaml")
    for setting in settings:
        override(tree, setting)
    directory = StateDirectory(tmp_path / "state")
    check_before_start(checked(tree, Path()), directory)
    return directory


@contextmanager
def sharing_socket(address):
    """Of somebody who would share its port, as gateways do."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((address, 0))
        other.listen()
        yield other


@pytest.fixture
def taken_port():
    with sharing_socket("127.0.0.1") as other:
        yield other.getsockname()[1]


def test_a_cluster_that_can_start_leaves_nothing(tmp_path):
    check(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("tensor_parallel: 3", "c.yaml, line 8: pool both.of.them: tensor_parallel is 3; expected"),
        ("pipeline_parallel: 99", "line 8: pool both.of.them: pipeline_parallel is 99; this model"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_its_line(key, problem, tmp_path):
    file = checked(parse(f"{TEXT}    {key}\n", "c.yaml"), Path())
    with pytest.raises(InvalidConfiguration, match=problem):
        check_before_start(file, StateDirectory(tmp_path / "state"))


@pytest.mark.parametrize("key", ["port", "grpc-port"])
def test_a_port_that_others_would_share_is_taken(tmp_path, taken_port, key):
    with pytest.raises(InvalidConfiguration, match=f"port {taken_port}: Address already in use"):
        check(tmp_path, f"serve.{key}={taken_port}")


def test_every_gateway_needs_a_port_to_listen_at(tmp_path):
    # Nobody else uses this address: the port before the taken one is free.
    with sharing_socket("127.9.8.7") as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidConfiguration, match=f"listen: cannot listen .* port {port}"):
            check(tmp_path, f"listen=127.9.8.7:{port - 1}", "gateways=2")


def test_a_model_that_is_nowhere_is_refused(tmp_path):
    with pytest.raises(InvalidConfiguration, match="is no directory"):
        check(tmp_path, f"model={tmp_path}/nothing")


@pytest.mark.parametrize(
    ("url", "more", "problem"),
    [
        (
            "tempo:4318",
            "",
            "expected a URL such as http://localhost:4318/v1/traces, got tempo:4318",
        ),
        ("http://tempo:4318", "explain_memory: 0\n", "give explain_memory more than 0"),
    ],
)
def test_traces_that_cannot_be_sent_are_refused_with_their_line(url, more, problem, tmp_path):
    text = TEXT.replace("  port: 0\n", f'  port: 0\n  otlp-traces-endpoint: "{url}"\n') + more
    with pytest.raises(InvalidConfiguration, match=rf"line 4: otlp-traces-endpoint: .*{problem}"):
        check_before_start(checked(parse(text, "c.yaml"), Path()), StateDirectory(tmp_path / "s"))


def test_an_encoder_that_is_nowhere_is_refused_with_its_line(tmp_path):
    text = TEXT.replace("  port: 0\n", '  port: 0\n  encoder_models: ["v=/nowhere"]\n')
    with pytest.raises(InvalidConfiguration, match=r"c\.yaml, line 4: encoder-models: v: model"):
        check_before_start(checked(parse(text, "c.yaml"), Path()), StateDirectory(tmp_path / "s"))


def test_that_it_runs_already_is_reported_before_that_its_port_is_taken(tmp_path, taken_port):
    directory = StateDirectory(tmp_path / "state")
    directory.claim()
    directory.write(
        ClusterRecord(
            name="default",
            version="1",
            supervisor=ProcessRecord.own(),
            ready=True,
            url="",
            model=None,
            gateways={},
            processes={},
        )
    )
    with pytest.raises(ClusterRunning, match="runs in"):
        check(tmp_path, f"serve.port={taken_port}")
    directory.clear()


def test_tiers_that_want_more_memory_than_there_is_are_refused(tmp_path):
    with pytest.raises(InvalidConfiguration, match=r"tiers: all together want 9,216\.0 GiB"):
        check(tmp_path, "tiers.host.capacity=9TiB")


def test_a_tier_with_room_for_less_than_a_block_is_refused(tmp_path):
    with pytest.raises(InvalidConfiguration, match=r"tiers\.host: a block of this model has"):
        check(tmp_path, "tiers.host.capacity=1KiB")


SMALL = BUNDLED / "tandem-mini-draft"
TWO_MODELS = """\
model: tandem-mini
max_model_len: 2048
serve: {port: 0, kv-cache-memory: 16MiB}
pools:
  - {name: main, device: cpu}
  - {name: small, device: cpu, model: MODEL}
classes:
  - {name: economy, pools: [small]}
"""


def check_two_models(tmp_path, model: Path):
    text = TWO_MODELS.replace("MODEL", str(model))
    check_before_start(checked(parse(text, "c.yaml"), Path()), StateDirectory(tmp_path / "state"))


def test_a_pool_has_a_smaller_model_of_the_same_family(tmp_path):
    check_two_models(tmp_path, SMALL)


@pytest.mark.parametrize(
    ("file", "key", "value", "problem"),
    [
        ("config.json", "eos_token_id", 1, "has another end-of-sequence token than tandem-mini"),
        ("config.json", "vocab_size", 2000, "knows 2000 tokens, and tandem-mini 2560"),
        (
            "config.json",
            "max_position_embeddings",
            512,
            "512 positions, and requests may have 2048",
        ),
        ("tokenizer.json", "normalizer", {"type": "NFC"}, "has another tokenizer than tandem-mini"),
    ],
)
def test_a_pool_whose_model_reads_other_tokens_is_refused(file, key, value, problem, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(SMALL, other)
    told = json.loads((other / file).read_text())
    (other / file).write_text(json.dumps(told | {key: value}))
    if key == "eos_token_id":
        (other / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(InvalidConfiguration, match=rf"line 6: pool small: .*{problem}"):
        check_two_models(tmp_path, other)
