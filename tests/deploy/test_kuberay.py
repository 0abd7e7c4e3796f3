"""The manifest for KubeRay. Its pods and plain objects are checked by the schemas of Kubernetes;
of the RayJob around them exactly the fields that stand there, as KubeRay's API reference (v1) has
them, because no package carries its schema."""

import json
import shlex

import kubernetes_validate
import pytest
import yaml

from tandem.config.cluster.live import checked
from tandem.config.cluster.tree import parse
from tests.deploy.manifests import KUBERAY, check_fields, documents, parsed, pod_templates

CONFIG, JOB, SERVICE, *POLICIES = documents(KUBERAY / "rayjob.yaml")
RAY_JOB = {
    "entrypoint": (str, False),
    "submissionMode": (str, False),
    "shutdownAfterJobFinishes": (bool, False),
    "backoffLimit": (int, False),
    "rayClusterSpec": (dict, False),
}
RAY_CLUSTER = {
    "rayVersion": (str, False),
    "headGroupSpec": (dict, True),
    "workerGroupSpecs": (list, False),
}
HEAD_GROUP = {"rayStartParams": (dict, False), "template": (dict, True)}
WORKER_GROUP = HEAD_GROUP | {
    "groupName": (str, True),
    "replicas": (int, False),
    "minReplicas": (int, True),
    "maxReplicas": (int, True),
}
# Options of `ray start` that are used here.
START_OPTIONS = {"num-cpus", "dashboard-host", "resources"}
RAY = JOB["spec"]["rayClusterSpec"]


def live_file():
    tree = parse(CONFIG["data"]["cluster.yaml"], "cluster.yaml")
    return checked(tree, KUBERAY)


def test_the_job_has_the_fields_that_kuberay_knows():
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert set(JOB) == {"apiVersion", "kind", "metadata", "spec"}
    check_fields(JOB["spec"], RAY_JOB)
    check_fields(RAY, RAY_CLUSTER)
    check_fields(RAY["headGroupSpec"], HEAD_GROUP)
    for group in RAY["workerGroupSpecs"]:
        check_fields(group, WORKER_GROUP)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in [RAY["headGroupSpec"], *RAY["workerGroupSpecs"]]:
        assert set(group["rayStartParams"]) <= START_OPTIONS
        assert all(type(value) is str for value in group["rayStartParams"].values())


@pytest.mark.parametrize("template", list(pod_templates(JOB)))
def test_its_pods_are_valid_and_run_as_nobody(template):
    named = {"metadata": {"name": "p"}, **template}
    pod = {"apiVersion": "v1", "kind": "Pod", **named}
    kubernetes_validate.validate(pod, "1.37", strict=True)
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    (container,) = template["spec"]["containers"]
    # What Ray counts are the limits.
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_every_worker_finds_a_pod_with_its_resources():
    cluster = live_file().cluster
    assert cluster.launcher == "ray"
    groups = {group["groupName"]: group for group in RAY["workerGroupSpecs"]}
    assert set(groups) == {pool.name for pool in cluster.pools}
    for pool in cluster.pools:
        group = groups[pool.name]
        # The value goes through a shell, which takes the outer quotes.
        (given,) = shlex.split(group["rayStartParams"]["resources"])
        (container,) = group["template"]["spec"]["containers"]
        offered = json.loads(given) | {"num_cpus": float(container["resources"]["limits"]["cpu"])}
        assert all(offered[name] >= amount for name, amount in pool.resources.items())
        assert group["replicas"] >= pool.count


def test_the_address_of_the_head_is_filled_in_on_the_head():
    assert "$(hostname -i)" in JOB["spec"]["entrypoint"]
    # The other modes hand the line to a shell in the container that submits the job.
    assert JOB["spec"]["submissionMode"] == "HTTPMode"


def test_the_entrypoint_is_a_command_of_ours():
    words = shlex.split(JOB["spec"]["entrypoint"].replace("$(hostname -i)", "10.0.0.1"))
    assert words[0] == "tandem"
    values = parsed(words[1:])
    assert list(values["settings"]) == ["listen=10.0.0.1:9000"]
    (template, *_) = pod_templates(RAY)
    (container,) = template["spec"]["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert values["cluster"] == f"{mounted['cluster']}/cluster.yaml"
    (volume,) = template["spec"]["volumes"]
    assert volume["configMap"]["name"] == CONFIG["metadata"]["name"]
    assert SERVICE["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["http"] == live_file().cluster.serve["port"]
    assert yaml.safe_load(CONFIG["data"]["cluster.yaml"])["serve"]["host"] == "0.0.0.0"


def admitted(labels, port, client, *, same_namespace=True):
    """Whether the policies let a pod with the labels `client` reach a named port of one with
    `labels`. A pod that no policy chooses lets everybody in."""
    chosen = [
        policy["spec"]
        for policy in POLICIES
        if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    assert all(policy["policyTypes"] == ["Ingress"] for policy in chosen)
    rules = [rule for policy in chosen for rule in policy["ingress"]]
    return not chosen or any(
        _ports_fit(rule, port) and _lets_in(rule, client, same_namespace) for rule in rules
    )


def _lets_in(rule, client, same_namespace):
    return "from" not in rule or any(_fits(peer, client, same_namespace) for peer in rule["from"])


def _ports_fit(rule, port):
    return "ports" not in rule or port in [each["port"] for each in rule["ports"]]


def _fits(peer, client, same_namespace):
    assert set(peer) <= {"podSelector", "namespaceSelector"}
    here = same_namespace or "namespaceSelector" in peer
    return here and peer["podSelector"]["matchLabels"].items() <= client.items()


STRANGER = {"app.kubernetes.io/name": "somebody"}
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}


def test_nobody_but_the_cluster_reaches_ray():
    """Whoever reaches the dashboard, or Ray's own ports, may run any code."""
    head, *workers = [template["metadata"]["labels"] for template in pod_templates(RAY)]
    assert len(workers) == 2
    ports = next(pod_templates(RAY))["spec"]["containers"][0]["ports"]
    names = {port["name"] for port in ports}
    assert {"dashboard", "gcs-server", "client", "http"} <= names
    for same_namespace in (True, False):
        for port in (*names - {"http"}, "any other"):
            assert not admitted(head, port, STRANGER, same_namespace=same_namespace), port
        for worker in workers:
            assert not admitted(worker, "any", STRANGER, same_namespace=same_namespace)
        # It alone submits the job; of the other ports it needs none.
        assert admitted(head, "dashboard", OPERATOR, same_namespace=same_namespace)
        assert not admitted(head, "client", OPERATOR, same_namespace=same_namespace)
        assert admitted(head, "http", STRANGER, same_namespace=same_namespace)
    for labels in (head, *workers):
        for other in (head, *workers):
            assert admitted(labels, "any other", other)


def test_the_service_offers_http_alone():
    assert [port["targetPort"] for port in SERVICE["spec"]["ports"]] == ["http"]
