"""One cluster a directory: claimed, left behind, used again, given up. The secret that KV in the
shared pool is tagged with: made once, for its owner alone, and the same for the next cluster where
what it tagged is still there."""

import os
import stat
import subprocess
import sys

import pytest

from tandem.config.processes import PoolNodeSetup
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.live.launching.private_directory import secret_of
from tandem.live.launching.state_directory import (
    ClusterRecord,
    ClusterRunning,
    ProcessRecord,
    StateDirectory,
    running_clusters,
)
from tandem.live.processes.connectors import block_secret
from tandem.live.processes.setups import fresh_keys
from tests.config.clusters import node_setup

CLAIMS = """
import sys
from pathlib import Path
from tandem.live.launching.state_directory import ClusterRecord, ProcessRecord, StateDirectory
directory = StateDirectory(Path(sys.argv[1]))
directory.claim()
directory.write(ClusterRecord(name="c", version="1", supervisor=ProcessRecord.own()))
print("claimed", flush=True)
sys.stdin.read()
"""


def record(**changed):
    fields = {"name": "c", "version": "1", "supervisor": ProcessRecord.own(), **changed}
    return ClusterRecord(**fields)


@pytest.fixture
def other(tmp_path):
    """A living supervisor in `tmp_path / "state"`."""
    command = [sys.executable, "-c", CLAIMS, str(tmp_path / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"claimed\n"
        yield process
        process.kill()


def test_what_is_written_is_read_and_nobody_else_can(tmp_path):
    directory = StateDirectory(tmp_path / "deep" / "state")
    directory.claim()
    written = record(ready=True, gateways={"g": "tcp://127.0.0.1:1"}, processes={})
    directory.write(written)
    directory.write_private("keys.json", b"secret")
    assert directory.read() == written
    assert directory.claimed
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    for file in directory.path.iterdir():
        assert not stat.S_IMODE(file.stat().st_mode) & 0o077, file
    directory.clear()
    assert not directory.path.exists()


def test_a_running_cluster_keeps_its_directory(tmp_path, other):
    directory = StateDirectory(tmp_path / "state")
    with pytest.raises(ClusterRunning, match="a cluster runs in"):
        directory.claim()
    assert directory.claimed
    assert [each.path for each in running_clusters(tmp_path)] == [directory.path]


def test_what_a_dead_supervisor_left_is_used_again(tmp_path, other):
    directory = StateDirectory(tmp_path / "state")
    (directory.path / "w-0.log").write_text("last words")
    other.kill()
    other.wait()
    assert not directory.claimed
    assert running_clusters(tmp_path) == []
    directory.claim()
    assert directory.logs == []
    assert directory.read() is None
    directory.release()
    directory.claim()
    directory.clear()


def test_a_number_used_again_is_no_supervisor(tmp_path):
    directory = StateDirectory(tmp_path / "state")
    directory.claim()
    mine = ProcessRecord.own()
    directory.write(record(supervisor=ProcessRecord(mine.pid, mine.started_ticks + 1)))
    assert not directory.claimed


def test_a_directory_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidConfiguration, match="choose another --state-dir"):
        StateDirectory(tmp_path).claim()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_link_to_somewhere_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(InvalidConfiguration, match="not this user's own"):
        StateDirectory(tmp_path / "link").claim()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(InvalidConfiguration, match="not this user's own"):
        StateDirectory(tmp_path / "theirs" / "state").claim()


@pytest.mark.parametrize("content", [b"", b"{", b'{"name": 1}', b"\xff"])
def test_a_record_that_is_no_record_is_none(tmp_path, content):
    directory = StateDirectory(tmp_path / "state")
    directory.claim()
    directory.write_private("cluster.json", content)
    assert directory.read() is None
    assert not directory.claimed


def test_it_is_made_once_and_for_its_owner_alone(tmp_path):
    file = tmp_path / "cluster" / "kv.secret"
    secret = secret_of(file)
    assert len(secret) >= 40
    assert secret_of(file) == secret
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret_of(tmp_path / "other") != secret


@pytest.mark.parametrize("harm", ["others may read it", "it is a link", "it is cut"])
def test_what_somebody_else_may_have_put_there_is_refused(tmp_path, harm):
    file = tmp_path / "kv.secret"
    secret_of(file)
    if harm == "others may read it":
        file.chmod(0o644)
    elif harm == "it is a link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        os.truncate(file, 5)
    with pytest.raises(InvalidConfiguration, match=r"kv\.secret"):
        secret_of(file)


def pool_node(kv_secret):
    keys = fresh_keys(kv_secret)
    kept = node_setup(BlockFormat(bytes(16), 64), 1 << 20, {})
    return PoolNodeSetup(node="p", gateways=(), keys=keys, **kept)


def test_a_cluster_with_the_kept_secret_knows_what_the_last_one_tagged():
    assert block_secret(pool_node("kept")) == block_secret(pool_node("kept"))
    assert block_secret(pool_node("")) != block_secret(pool_node(""))
