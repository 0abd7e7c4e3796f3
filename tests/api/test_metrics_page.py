"""The page of metrics in both formats: it parses strictly, whatever the prefix, and has what
dashboards made for vLLM ask for."""

import re
from collections import Counter
from itertools import chain

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ResponseCacheConfig
from tandem.api.metrics_page import metrics_page, prefers_openmetrics
from tandem.observe.cascade_metrics import CascadeMetrics
from tests.api.scripted_generator import ScriptedGenerator
from tests.api.server import client_of
from tests.observe.every_family import a_whole_cluster

OPENMETRICS = "application/openmetrics-text"
# As Prometheus asks, since version 3.
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
# What vLLM's own dashboards ask for of each model, and Tandem has in a cluster, too.
ASKED = {
    "e2e_request_latency_seconds_bucket",
    "generation_tokens_total",
    "prompt_tokens_total",
    "inter_token_latency_seconds_bucket",
    "num_requests_running",
    "num_requests_waiting",
    "time_to_first_token_seconds_bucket",
    "kv_cache_usage_perc",
    "cache_config_info",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_success_total",
    "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_inference_time_seconds_sum",
    "request_time_per_output_token_seconds_bucket",
    "request_params_max_tokens_bucket",
    "request_prefill_kv_computed_tokens_bucket",
    "prompt_tokens_cached_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "lora_requests_info",
    "engine_sleep_state",
}


def strictly_read(text: str, content_type: str) -> dict[str, Metric]:
    """Raises `ValueError` for what is not in the format."""
    is_openmetrics = content_type.startswith(OPENMETRICS)
    assert text.endswith("# EOF\n") is is_openmetrics
    families = list((openmetrics_families if is_openmetrics else text_families)(text))
    assert len({each.name for each in families}) == len(families)
    series = Counter(
        (sample.name, *sorted(sample.labels.items()))
        for each in families
        for sample in each.samples
    )
    assert set(series.values()) == {1}
    for each in families:
        assert each.documentation
        assert each.type != "unknown"
        if each.type == "counter":
            endings = ("_total", "_created")
            assert all(sample.name.endswith(endings) for sample in each.samples)
    for mark in ("HELP", "TYPE"):
        marked = Counter(re.findall(rf"^# {mark} (\S+)", text, re.MULTILINE))
        assert set(marked.values()) == {1}
        assert len(marked) == len(families)
    return {each.name: each for each in families}


@pytest.mark.parametrize("accept", ["", PROMETHEUS])
@pytest.mark.parametrize("prefix", ["tandem", "vllm"])
def test_all_metrics_of_a_cluster_parse_in_both_formats(prefix, accept):
    page, content_type = metrics_page(a_whole_cluster().families(), prefix=prefix, accept=accept)
    families = strictly_read(page.decode(), content_type)
    own = [name for name in families if not name.startswith("process_")]
    assert all(name.startswith(f"{prefix}:") for name in own)
    names = {sample.name for each in families.values() for sample in each.samples}
    assert {f"{prefix}:{name}" for name in ASKED} <= names


def test_a_family_of_two_models_is_one():
    one, other = (list(CascadeMetrics(name).families()) for name in ("small", "large"))
    page, content_type = metrics_page(chain(one, other), prefix="tandem")
    families = strictly_read(page.decode(), content_type)
    models = {sample.labels["model_name"] for sample in families["tandem:cascade_requests"].samples}
    assert models == {"small", "large"}


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        (OPENMETRICS, True),
        (f"{OPENMETRICS}; version=1.0.0, */*;q=0.5", True),
        (PROMETHEUS, True),
        (f"text/plain, {OPENMETRICS};q=0.5", False),
        (f"{OPENMETRICS};q=0", False),
        (f"{OPENMETRICS};q=nan", False),
        (f"{OPENMETRICS};q=high,,;", False),
    ],
)
def test_who_accepts_openmetrics_gets_it(accept, openmetrics):
    assert prefers_openmetrics(accept) is openmetrics


@pytest.fixture
def scraped(text):
    """A client of a server whose metrics are vLLM's."""
    config = ApiConfig(metrics_prefix="vllm", response_cache=ResponseCacheConfig(1 << 20))
    with client_of(build_app(ScriptedGenerator(text), text, config)) as client:
        yield client


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_a_server_tells_of_its_process_its_calls_and_its_parts(scraped, accept):
    for prompt, n in ("hello", 1), (["hello", "world"], 3):
        body = {"prompt": prompt, "n": n, "max_tokens": 1}
        assert scraped.post("/v1/completions", json=body).status_code == 200
    answer = scraped.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept)
    assert answer.headers["vary"] == "Accept"
    families = strictly_read(answer.text, answer.headers["content-type"])
    assert {"vllm:up", "vllm:response_cache_hits"} <= set(families)
    asked = {sample.name: sample.value for sample in families["vllm:request_params_n"].samples}
    assert asked["vllm:request_params_n_count"] == 3
    assert asked["vllm:request_params_n_sum"] == 7
    called = {
        tuple(each.labels.values()): each.value
        for each in families["http_requests"].samples
        if each.name == "http_requests_total"
    }
    assert called["/v1/completions", "POST", "2xx"] == 2
    for name in ("cpu_seconds", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        (sample,) = families[f"process_{name}"].samples
        assert sample.value > 0


def test_calls_are_counted_by_endpoint_and_status(text):
    generator = ScriptedGenerator(text)
    with client_of(build_app(generator, text, ApiConfig(api_keys=("k",)))) as client:
        client.headers["Authorization"] = "Bearer k"
        generator.script.failure = ZeroDivisionError("ours")
        for method, path, more in (
            ("POST", "/tokenize", {"json": {"prompt": "a"}}),
            ("POST", "/tokenize", {"json": {"prompt": "a", "none": 1}}),
            ("POST", "/v1/completions", {"json": {"prompt": "a"}}),
            ("GET", "/v1/models/tiny", {}),
            ("GET", "/v1/models/tiny", {"headers": {"Authorization": "Bearer other"}}),
            ("PATCH", "/tokenize", {}),
            ("GET", "/health", {}),
        ):
            client.request(method, path, **more)
        told = client.get("/metrics").text
    found = re.findall(r"^http_requests_total{(.*)} (.*)$", told, re.MULTILINE)
    assert {tuple(re.findall('"(.*?)"', labels)): float(count) for labels, count in found} == {
        ("/tokenize", "POST", "2xx"): 1,
        ("/tokenize", "POST", "4xx"): 1,
        ("/v1/completions", "POST", "5xx"): 1,
        ("/v1/models/{model}", "GET", "2xx"): 1,
        ("none", "GET", "4xx"): 1,
        ("/tokenize", "other", "4xx"): 1,
    }
