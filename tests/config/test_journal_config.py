"""What of a cluster file stands in a journal: all that decisions depend on, and no key."""

import re
from pathlib import Path

import pytest

from tandem.config.cluster.file import read_cluster
from tandem.config.cluster.reference import reference
from tandem.config.environment import BUNDLED_DRAFT, BUNDLED_MODEL
from tandem.config.hardware.pools import capacity_of, pool_models
from tandem.config.hardware.worker import DEVICES
from tandem.config.journal import KEPT_KEYS, recorded_cluster, recorded_text
from tandem.config.policies import router_config
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.messages.cluster import Register
from tandem.observe.journal.pseudonyms import TenantNames
from tests.live.toy_cluster import EXPORT, MODEL

TEXT = """
name: of-acme
model: {model}
block_size: 16
listen: 10.1.2.3:9000
serve: {{port: 0, api-key: [Key-One], max-num-seqs: 24, allowed-origins: [https://acme.example]}}
journal: {{directory: /var/acme, keep: 2}}
pools:
  - {{name: prefill, role: prefill, device: "{device}", count: 2, serve: {{threads: 3}}}}
  - {{name: decode, role: decode, device: cpu, time_model: {{name: profile, path: "{profile}"}}}}
  - {{name: small, device: cpu, model: "{small}"}}
tiers:
  host: {{capacity: 1GiB}}
  remote: {{capacity: 2GiB, redis: "redis://user:Key-Two@redis.acme/0", redis_capacity: 1GiB}}
policies: {{routing: prefix-first, admission: prediction, transfer: push}}
queue: {{max_requests: 7}}
classes:
  - {{name: gold, priority: 1, slo: {{ttft: 2s}}, headers: {{x-acme: gold}}}}
  - {{name: lead, pools: [small]}}
tenants:
  - {{name: zeta-acme, weight: 3, api_keys: [Key-Three], service_class: gold}}
  - {{name: alpha-acme, api_keys_file: /etc/acme, api_keys_env: ACME_KEYS}}
slo: {{ttft: 5s}}
seed: 7
"""
PROFILE = '{"fitted": {"fixed_s": 0.01, "token_s": 0.001}}'


@pytest.fixture
def files(tmp_path) -> Path:
    """A cluster file, and what it names."""
    model, small = tmp_path / "model", tmp_path / "small"
    for folder, bundled in ((model, BUNDLED_MODEL), (small, BUNDLED_DRAFT)):
        folder.mkdir()
        (folder / "config.json").write_text((bundled / "config.json").read_text())
    device, profile = tmp_path / "mine.yaml", tmp_path / "profile.json"
    device.write_text((DEVICES / "cpu.yaml").read_text())
    profile.write_text(PROFILE)
    cluster = tmp_path / "cluster.yaml"
    text = TEXT.format(model=model, device=device, profile=profile, small=small)
    cluster.write_text(text)
    return cluster


def register(pool: str) -> Register:
    return Register(3, "0", "w", "a", pool, Role.BOTH, True, CacheRoot("", "", b""), EXPORT, 8, 100)


def test_it_makes_the_same_decisions_where_no_file_is_left(files, tmp_path):
    before = read_cluster(str(files))
    line = router_config(before, CacheRoot("", "", b""), 16, {}).queue
    text, taken = recorded_text(files, TenantNames(plain=True).label)
    for path in (files, *(Path(name) for name in taken)):
        if path.is_file():
            path.unlink()
    for model in ("model", "small"):
        (tmp_path / model / "config.json").unlink()
    folder = tmp_path / "played"
    folder.mkdir()
    after = recorded_cluster(text, taken, folder)
    assert after.policies == before.policies
    assert after.seed == 7
    # Its workers registered with a model of this name.
    assert pool_models(after)["small"].rpartition("/")[2] == "small"
    again = router_config(after, CacheRoot("", "", b""), 16, {})
    assert again.queue == line
    assert line.weights["zeta-acme"] == 3
    capacity = capacity_of(after)
    for pool in ("prefill", "decode"):
        cost = capacity(register(pool)).cost
        assert cost.step_time.fixed_s > 0 if pool == "decode" else cost.kv_bytes_per_token > 0


def test_no_key_no_address_and_no_tenant_stands_in_it(files):
    text, taken = recorded_text(files, TenantNames(["zeta-acme", "alpha-acme"]).label)
    written = text + "".join(taken.values())
    for secret in ("Key-", "acme", "10.1.2.3", "redis", "ACME", "x-acme"):
        assert secret not in written.replace(str(files.parent), ""), secret
    assert "max-num-seqs: 24" in text


def test_tenants_keep_their_order(files, tmp_path):
    text, taken = recorded_text(files, TenantNames(["zeta-acme", "alpha-acme"]).label)
    folder = tmp_path / "played"
    folder.mkdir()
    zeta, alpha = recorded_cluster(text, taken, folder).tenants
    assert alpha.name < zeta.name
    assert (zeta.weight, alpha.weight) == (3, 1)


def test_settings_change_it(files, tmp_path):
    text, taken = recorded_text(files, TenantNames(plain=True).label)
    folder = tmp_path / "played"
    folder.mkdir()
    changed = recorded_cluster(text, taken, folder, ["pools.prefill.count=5"])
    assert changed.pools[0].count == 5
    with pytest.raises(InvalidConfiguration, match="unknown key"):
        recorded_cluster(text, taken, folder, ["nothing.here=1"])


def test_a_bundled_model_goes_by_its_name(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("model: tandem-mini\npools: [{name: both, device: cpu}]\n")
    text, taken = recorded_text(file, str)
    assert "model: tandem-mini" in text
    assert taken == {}
    assert MODEL not in taken


# Faults are a simulation's alone; a recorded request names its class, not the headers of it.
LEFT_OUT = {"faults", "faults_per_hour", "headers"}


def test_no_key_by_which_decisions_are_made_is_left_out_of_a_journal():
    lost = []
    for table in reference().split("\n## ")[1:]:
        title, _, rows = table.partition("\n")
        place = title.strip("`").replace("[]", "")
        kept = KEPT_KEYS.get("" if " " in place else place)
        for key, meaning in re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", rows, re.MULTILINE):
            live_only = meaning.endswith("*(live only)*")
            if kept is not None and not live_only and key not in kept | LEFT_OUT:
                lost.append(f"{place}.{key}")
    assert not lost
