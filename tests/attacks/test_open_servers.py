"""A server that everybody could use does not start by mistake."""

import pytest
import yaml

from tandem.config.api_options import check_exposure
from tandem.config.options import ServeOptions, read_options
from tandem.facts.errors import InvalidConfiguration
from tests.commands.cli import tandem
from tests.deploy.manifests import KUBERAY, KUBERNETES, documents, pod_templates

CLUSTER = """\
model: tandem-mini
listen: 127.0.0.1
serve: {host: 0.0.0.0, port: 0, kv-cache-memory: 16MiB}
pools: [{name: all, role: both, device: cpu}]
"""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "myhost", "localhost.example"])
def test_beyond_this_machine_a_server_needs_a_key_or_the_switch(host):
    with pytest.raises(InvalidConfiguration, match="--allow-unauthenticated"):
        check_exposure(ServeOptions(host=host), has_keys=False)
    assert not check_exposure(ServeOptions(host=host), has_keys=True)
    opened = read_options(None, {"host": host, "allow_unauthenticated": True})
    assert "Without an API key" in check_exposure(opened, has_keys=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_on_this_machine_it_needs_none(host):
    assert not check_exposure(ServeOptions(host=host), has_keys=False)


def test_no_command_starts_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TANDEM_API_KEY", "")
    file, keys = tmp_path / "cluster.yaml", tmp_path / "keys"
    file.write_text(CLUSTER)
    assert tandem("keys", keys).exit_code == 0
    for command in (
        ("serve", "--host", "0.0.0.0", "--port", "0"),
        ("serve", "--host", "0.0.0.0", "--port", "0", "--workers", "1"),
        ("up", file, "--state-dir", tmp_path / "up"),
        ("gateway", file, "--keys", keys / "gateway.json", "--state-dir", tmp_path / "gateway"),
    ):
        refused = tandem(*command)
        assert refused.exit_code == 2
        assert "there is no API key" in " ".join(refused.stderr.split())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cluster.yaml", "keys"]


def test_in_kubernetes_the_key_is_not_optional():
    made = [*documents(KUBERAY / "rayjob.yaml"), *documents(KUBERNETES / "gateway.yaml")]
    templates = [
        template
        for each in made
        if each["kind"] in ("StatefulSet", "RayJob")
        for template in pod_templates(each)
    ]
    references = [
        variable["valueFrom"]["secretKeyRef"]
        for template in templates
        for container in template["spec"]["containers"]
        for variable in container.get("env", ())
        if variable["name"] == "TANDEM_API_KEY"
    ]
    assert references == [{"name": "tandem-api-key", "key": "key"}] * 2
    assert "allow-unauthenticated" not in yaml.safe_dump_all(made)
