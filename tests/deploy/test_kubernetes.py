"""The manifests for Kubernetes: valid by its own schemas, agreeing with each other, and with what
the commands in them really take."""

import copy
import re

import kubernetes_validate
import pytest
import yaml

from tandem.config.cluster.live import on_cpu, read_live_cluster
from tandem.config.options import parse_bytes
from tandem.messages.gateway import ClusterStatus
from tandem.observe.cluster_metrics import GatewayMetrics
from tests.deploy.manifests import (
    KUBERAY,
    KUBERNETES,
    MONITORING,
    documents,
    listed,
    of_kind,
    parsed,
    pod_templates,
)
from tests.live.statuses import worker_status
from tests.observe.metrics_text import text_of

SCALING, SHARED_POOL = KUBERNETES / "scaling", KUBERNETES / "shared-pool"
PARTS = [KUBERNETES, SCALING, SHARED_POOL, MONITORING]
CLUSTER_FILES = [KUBERNETES / "cluster.yaml", SHARED_POOL / "cluster.yaml"]
FILES = [file for part in PARTS for file in listed(part)]
OBJECTS = [document for file in FILES for document in documents(file)]
# Of those that operators know there are no schemas here: other tests look at them.
PLAIN = [
    document
    for document in (*OBJECTS, *documents(KUBERAY / "rayjob.yaml"))
    if not document["apiVersion"].startswith(("ray.io/", "monitoring.coreos.com/"))
]
# The oldest that is still maintained, and the newest that the schemas know.
VERSIONS = ("1.34", "1.37")
PROCESSES = [document for document in OBJECTS if document["kind"] in ("Deployment", "StatefulSet")]


def named(documents):
    return [f"{document['kind']}/{document['metadata']['name']}" for document in documents]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", PLAIN, ids=named(PLAIN))
def test_every_object_is_valid(document, version):
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_would_tell_a_slip():
    wrong = copy.deepcopy(PROCESSES[0])
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_is_applied_by_somebody():
    applied = {*FILES, *(part / "kustomization.yaml" for part in PARTS)}
    applied |= {*CLUSTER_FILES, SCALING / "adapter-values.yaml"}
    assert set(KUBERNETES.rglob("*.yaml")) == applied


@pytest.mark.parametrize("process", PROCESSES, ids=named(PROCESSES))
def test_what_a_pod_refers_to_is_there(process):
    (template,) = pod_templates(process)
    spec, labels = template["spec"], template["metadata"]["labels"]
    assert process["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    (container,) = spec["containers"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    (kustomization,) = documents(KUBERNETES / "kustomization.yaml")
    maps = [entry["name"] for entry in kustomization["configMapGenerator"]]
    assert {v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v} == set(maps)
    assert container["image"] in {entry["name"] for entry in kustomization["images"]}


@pytest.mark.parametrize("process", PROCESSES, ids=named(PROCESSES))
def test_pods_have_no_more_rights_than_they_need(process):
    (template,) = pod_templates(process)
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} == set(container["resources"]["requests"])
    assert "memory" in container["resources"]["limits"]
    assert "secret" not in str(container["args"]).lower()


def test_budgets_and_policies_and_services_mean_pods_that_exist():
    all_labels = [next(pod_templates(each))["metadata"]["labels"] for each in PROCESSES]
    names = {labels["app.kubernetes.io/name"] for labels in all_labels}
    budgets = [each["metadata"]["name"] for each in of_kind("PodDisruptionBudget", *PARTS)]
    assert sorted(budgets) == sorted(names)
    for budget in of_kind("PodDisruptionBudget", *PARTS):
        wanted = budget["spec"]["selector"]["matchLabels"]
        assert sum(wanted.items() <= labels.items() for labels in all_labels) == 1
        assert budget["metadata"]["name"] in names
    for service in of_kind("Service", *PARTS):
        chosen = service["spec"]["selector"].items()
        assert sum(chosen <= labels.items() for labels in all_labels) == 1, chosen
    shut = [policy["spec"]["podSelector"] for policy in of_kind("NetworkPolicy", *PARTS)]
    for labels in all_labels:
        assert sum(_chooses(selector, labels) for selector in shut) == 1, labels
    targets = {
        (scaler["spec"]["scaleTargetRef"]["kind"], scaler["spec"]["scaleTargetRef"]["name"])
        for scaler in of_kind("HorizontalPodAutoscaler", *PARTS)
    }
    assert targets <= {(each["kind"], each["metadata"]["name"]) for each in PROCESSES}


def _chooses(selector, labels):
    """Whether a selector of labels, or of one label among values, means these."""
    if "matchLabels" in selector:
        return selector["matchLabels"].items() <= labels.items()
    (expression,) = selector["matchExpressions"]
    assert expression["operator"] == "In"
    return labels.get(expression["key"]) in expression["values"]


def test_the_gateway_starts_with_this_command_and_listens_where_others_look():
    (gateway,) = of_kind("StatefulSet", KUBERNETES)
    (container,) = next(pod_templates(gateway))["spec"]["containers"]
    values = parsed(container["args"])
    assert str(values["cluster"]) == "/etc/tandem/cluster.yaml"
    assert str(values["keys"]) == "/etc/tandem-keys/gateway.json"
    cluster = read_live_cluster(str(KUBERNETES / "cluster.yaml")).cluster
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": cluster.serve["port"], "workers": 9000}
    assert cluster.listen == f"0.0.0.0:{ports['workers']}"
    assert cluster.serve["host"] == "0.0.0.0"
    annotations = next(pod_templates(gateway))["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["http"])
    headless = next(
        service
        for service in of_kind("Service", KUBERNETES)
        if service["metadata"]["name"] == gateway["spec"]["serviceName"]
    )
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["ports"][0]["port"] == ports["workers"]


def test_workers_join_every_gateway_and_every_pool_has_some():
    cluster = read_live_cluster(str(KUBERNETES / "cluster.yaml")).cluster
    joined = [_joined(deployment) for deployment in of_kind("Deployment", KUBERNETES)]
    assert sorted(each["pool"] for each in joined) == sorted(pool.name for pool in cluster.pools)
    assert not any(each["shared_pool"] for each in joined)
    assert all(on_cpu(pool) for pool in cluster.pools)


def _joined(process):
    """The values of the command by which the pods of a process join, in which all are alike."""
    (gateway,) = of_kind("StatefulSet", KUBERNETES)
    name, service = gateway["metadata"]["name"], gateway["spec"]["serviceName"]
    (container,) = next(pod_templates(process))["spec"]["containers"]
    values = parsed(container["args"])
    assert list(values["gateway"]) == [
        f"tcp://{name}-{index}.{service}:9000" for index in range(gateway["spec"]["replicas"])
    ]
    assert str(values["file"]) == "/etc/tandem/cluster.yaml"
    assert str(values["keys"]) == "/etc/tandem-keys/worker.json"
    assert [values["health_port"]] == [port["containerPort"] for port in container["ports"]]
    assert values["worker"] is None
    return values


def test_gateways_are_as_many_as_the_file_says():
    (gateway,) = [
        each for each in of_kind("StatefulSet", *PARTS) if "gateway" in each["metadata"]["name"]
    ]
    assert gateway["spec"]["replicas"] == read_live_cluster(str(CLUSTER_FILES[0])).cluster.gateways


def test_the_shared_pool_has_as_many_pods_as_its_file_says_and_room_for_its_share():
    (pool,) = of_kind("StatefulSet", SHARED_POOL)
    assert _joined(pool)["shared_pool"]
    plain, with_tiers = (yaml.safe_load(file.read_text()) for file in CLUSTER_FILES)
    remote = read_live_cluster(str(CLUSTER_FILES[1])).cluster.tiers.remote
    assert pool["spec"]["replicas"] == remote.nodes
    (container,) = next(pod_templates(pool))["spec"]["containers"]
    limit_bytes = parse_bytes(container["resources"]["limits"]["memory"] + "B", "memory")
    assert limit_bytes >= remote.capacity_bytes / remote.nodes + (2 << 30)
    assert with_tiers.pop("tiers")
    assert with_tiers == plain


def test_secrets_are_mounted_by_those_alone_who_need_them():
    secrets: dict[str, set[str]] = {}
    for process in PROCESSES:
        for volume in next(pod_templates(process))["spec"]["volumes"]:
            if "secret" in volume:
                names = secrets.setdefault(process["metadata"]["name"], set())
                names.add(volume["secret"]["secretName"])
                assert not volume["secret"]["defaultMode"] & 0o007
    assert secrets == {
        "tandem-gateway": {"tandem-gateway-keys", "tandem-tenant-keys"},
        "tandem-prefill": {"tandem-worker-keys"},
        "tandem-decode": {"tandem-worker-keys"},
        "tandem-pool": {"tandem-worker-keys"},
    }


def test_autoscalers_ask_for_metrics_that_exist():
    status = ClusterStatus("g", 1.0, (worker_status("w"),), 0, 0, 0, 0, ())
    told = text_of(GatewayMetrics("m").families(status))
    (values,) = documents(SCALING / "adapter-values.yaml")
    rules = {rule["name"]["as"]: rule for rule in values["rules"]["external"]}
    asked = {
        metric["external"]["metric"]["name"]
        for scaler in of_kind("HorizontalPodAutoscaler", SCALING)
        for metric in scaler["spec"]["metrics"]
    }
    assert asked == set(rules)
    for rule in rules.values():
        (series,) = re.findall(r'__name__="([^"]+)"', rule["seriesQuery"])
        assert f"# TYPE {series} gauge" in told
        (labels,) = re.findall(rf"^{series}{{(.*)}} ", told, re.MULTILINE)
        assert {"worker=", "pool="} <= set(re.findall(r"\w+=", labels))
        assert rule["metricsQuery"].count("(") == rule["metricsQuery"].count(")")


def test_nothing_asks_for_a_namespace():
    for document in OBJECTS:
        assert "namespace" not in document["metadata"]
        assert yaml.safe_dump(document)
