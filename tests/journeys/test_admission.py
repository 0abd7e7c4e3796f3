"""Admission on a running cluster: what is cut of calls, deadlines, the breaker's figures; and a
replay of the journal decides all of it again."""

from collections.abc import Mapping

import openai

from tests.journeys.clusters import cluster
from tests.journeys.serving import run_tandem, succeeded

CLUSTER = """
model: tandem-mini
block_size: 16
serve: {{port: 0, max-num-seqs: 4, kv-cache-memory: 64MiB, threads: 1}}
journal: {{directory: "{folder}"}}
pools:
  - {{name: worker, role: both, device: cpu}}
policies: {{admission: {{name: prediction, breaker: {{window_s: 10s}}}}}}
slo: {{ttft: 30s}}
classes:
  - {{name: free, default: true, degrade: {{no_n: true}}}}
"""


def complete(client: openai.OpenAI, headers: Mapping[str, str] | None = None, **fields):
    return client.completions.with_raw_response.create(
        model="tandem-mini",
        prompt="Tell me about bread.",
        temperature=1.0,
        seed=3,
        extra_headers=headers,
        extra_body={"ignore_eos": True},
        **fields,
    )


def test_calls_are_cut_and_refused_as_the_journal_says(tmp_path):
    folder = tmp_path / "journal"
    with cluster(CLUSTER.format(folder=folder), tmp_path) as running:
        client = running.client
        cut = complete(client, n=8, max_tokens=40)
        assert cut.headers["X-Tandem-Degraded"] == "n=4"
        assert [choice.index for choice in cut.parse().choices] == [0, 1, 2, 3]
        assert "left out of its call" in running.succeed("explain", cut.headers["x-request-id"])

        late = complete(client, {"X-Request-Timeout": "1"}, max_tokens=3000).parse()
        (choice,) = late.choices
        assert choice.finish_reason == "length"
        assert choice.model_extra["stop_reason"] == "deadline"
        assert 0 < late.usage.completion_tokens < 3000

        metrics = running.metrics()
        assert 'degraded_requests_total{model_name="tandem-mini",step="n"} 4.0' in metrics
        assert 'breaker_share{model_name="tandem-mini",service_class="free"} 1.0' in metrics
        status = running.status()
        (gateway,) = status["gateways"]
        assert [each["stage"] for each in gateway["breakers"]] == ["closed"]
    shown = succeeded(run_tandem("replay", str(folder)))
    assert "all equal" in shown
