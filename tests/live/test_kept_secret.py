"""The secret that KV in the shared pool is tagged with: made once, for its owner alone, and the
same for the next cluster where what it tagged is still there."""

import os

import pytest

from tandem.config.processes import PoolNodeSetup
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv_tiers import BlockFormat
from tandem.live.launching.private_directory import secret_of
from tandem.live.processes.connectors import block_secret
from tandem.live.processes.setups import fresh_keys
from tests.config.clusters import node_setup


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
