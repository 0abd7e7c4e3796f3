"""What the Prometheus operator and Grafana's sidecar find in a Kubernetes cluster. Exactly the
fields that stand there are checked, as the operator's API reference (monitoring.coreos.com/v1) has
them, because no package carries its schemas; what comes together is put together by kubectl."""

import json
import os
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml

from tests.deploy.dashboard import DASHBOARD, FOLDER
from tests.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    MONITORING,
    check_fields,
    documents,
    of_kind,
    pod_templates,
)
from tests.deploy.prometheus import CONFIG, RULES

SCRIPT = DEPLOY / "prometheus/prometheus_rule.py"
MADE = MONITORING / "alerts.yaml"
OBJECT = {
    "apiVersion": (str, True),
    "kind": (str, True),
    "metadata": (dict, True),
    "spec": (dict, True),
}
POD_MONITOR = {"selector": (dict, True), "podMetricsEndpoints": (list, False)}
ENDPOINT = {
    "port": (str, False),
    "path": (str, False),
    "interval": (str, False),
    "relabelings": (list, False),
}
RELABELING = {"targetLabel": (str, False), "replacement": (str, False)}
RULE_GROUP = {"name": (str, True), "rules": (list, False)}
RULE = {
    "record": (str, False),
    "alert": (str, False),
    "expr": (str, True),
    "for": (str, False),
    "labels": (dict, False),
    "annotations": (dict, False),
}
DURATION = re.compile(r"(\d+y)?(\d+w)?(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?")
# What `kubectl apply` keeps of an object in its annotations has no more room.
MOST_APPLIED_BYTES = 256 << 10
(MONITOR,) = of_kind("PodMonitor", MONITORING)
(PROMETHEUS_RULE,) = of_kind("PrometheusRule", MONITORING)


def made(*options):
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_rules_are_what_the_script_makes_of_the_rule_file():
    assert MADE.read_text() == made(), f"python {SCRIPT} > {MADE}"
    assert PROMETHEUS_RULE["spec"] == yaml.safe_load(RULES.read_text())


def test_another_prefix_stands_before_all_families():
    other = made("--prefix", "vllm")
    assert not re.search(r"\btandem:", other)
    assert yaml.safe_load(other.replace("vllm:", "tandem:")) == PROMETHEUS_RULE


def test_the_operator_knows_all_fields():
    for document in (MONITOR, PROMETHEUS_RULE):
        check_fields(document, OBJECT)
        assert document["apiVersion"] == "monitoring.coreos.com/v1"
    check_fields(MONITOR["spec"], POD_MONITOR)
    for endpoint in MONITOR["spec"]["podMetricsEndpoints"]:
        check_fields(endpoint, ENDPOINT)
        assert DURATION.fullmatch(endpoint["interval"])
        for relabeling in endpoint["relabelings"]:
            check_fields(relabeling, RELABELING)
    groups = PROMETHEUS_RULE["spec"]["groups"]
    assert len({group["name"] for group in groups}) == len(groups)
    for group in groups:
        check_fields(group, RULE_GROUP)
        for rule in group["rules"]:
            check_fields(rule, RULE)
            assert ("record" in rule) != ("alert" in rule)
            assert DURATION.fullmatch(rule.get("for", "0s"))
            texts = [*rule.get("labels", {}).values(), *rule.get("annotations", {}).values()]
            assert all(type(text) is str for text in texts), rule


def test_what_is_no_field_would_be_found():
    (endpoint,) = MONITOR["spec"]["podMetricsEndpoints"]
    for wrong in (endpoint | {"targetPort": "http"}, endpoint | {"port": 8000}):
        with pytest.raises(AssertionError):
            check_fields(wrong, ENDPOINT)


def test_gateways_are_scraped_under_the_name_that_alerts_and_dashboard_go_by():
    (gateway,) = of_kind("StatefulSet", KUBERNETES)
    template = next(pod_templates(gateway))
    wanted = MONITOR["spec"]["selector"]["matchLabels"]
    chosen = [
        process["metadata"]["name"]
        for kind in ("StatefulSet", "Deployment")
        for process in of_kind(kind, KUBERNETES)
        if wanted.items() <= next(pod_templates(process))["metadata"]["labels"].items()
    ]
    assert chosen == [gateway["metadata"]["name"]]
    (endpoint,) = MONITOR["spec"]["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    annotations = template["metadata"]["annotations"]
    assert str(ports[endpoint["port"]]) == annotations["prometheus.io/port"]
    assert endpoint["path"] == annotations["prometheus.io/path"]
    scraping = yaml.safe_load(CONFIG.read_text())
    (job,) = scraping["scrape_configs"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job["job_name"]}]
    assert endpoint["interval"] == scraping["global"]["scrape_interval"]


def test_the_sidecar_finds_the_dashboard_itself():
    """And kustomize, which reads no file outside the folder."""
    (component,) = documents(FOLDER / "kustomization.yaml")
    (generated,) = component["configMapGenerator"]
    assert [FOLDER / name for name in generated["files"]] == [DASHBOARD]
    labels = generated["options"]["labels"]
    assert labels == {"grafana_dashboard": "1"}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": generated["name"], "labels": labels},
        "data": {DASHBOARD.name: DASHBOARD.read_text()},
    }
    kubernetes_validate.validate(config, "1.37", strict=True)
    assert len(json.dumps(config)) < MOST_APPLIED_BYTES


def kubectl(*words):
    """What it prints; nothing where there is none."""
    if shutil.which("kubectl") is None:
        return ""
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kubectl_puts_together_what_the_page_shows(tmp_path):
    if "Kustomize Version: v5" not in kubectl("version", "--client"):
        pytest.skip("there is no kubectl with kustomize 5")
    page = (DEPLOY.parent / "docs/deploy.md").read_text()
    (overlay,) = re.findall(r"(?ms)^```yaml\n(resources:.*?)^```", page)
    here = os.path.relpath(DEPLOY.parent, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(overlay.replace("../tandem", here))
    told = kubectl("kustomize", str(tmp_path))
    applied = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(told)}
    assert applied["PrometheusRule", "tandem"]["spec"] == PROMETHEUS_RULE["spec"]
    assert applied["PodMonitor", "tandem"]["spec"] == MONITOR["spec"]
    for kind in ("PrometheusRule", "PodMonitor"):
        assert applied[kind, "tandem"]["metadata"]["labels"]["release"] == "monitoring"
    dashboard = applied["ConfigMap", "tandem-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboard["data"] == {DASHBOARD.name: DASHBOARD.read_text()}
    assert {("StatefulSet", "tandem-pool"), ("HorizontalPodAutoscaler", "tandem-decode")} <= set(
        applied
    )
