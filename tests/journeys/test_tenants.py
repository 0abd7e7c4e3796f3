"""A cluster that is sold to tenants: rate limits as the openai client meets them, an access log
that is moved away meanwhile, metrics by tenant, what admission cuts of calls, deadlines and the
breaker's figures; and a journal that decides all of it the same."""

import json
from collections.abc import Mapping

import openai
import pytest

from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.questions import complete
from tests.journeys.serving import run_tandem, succeeded
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve: {{port: 0, max-num-seqs: 4, kv-cache-memory: 64MiB, threads: 1, access-log: "{log}"}}
journal: {{directory: "{journal}"}}
pools:
  - {{name: both, device: cpu, count: 1}}
tenants:
  - {{name: free, api_keys: [free-key], limits: {{requests_per_minute: 4, tokens_per_minute: 1k}}}}
  - {{name: paid, api_keys: [paid-key]}}
policies: {{admission: {{name: prediction, breaker: {{window_s: 10s}}}}}}
slo: {{ttft: 30s}}
classes:
  - {{name: cut, default: true, degrade: {{no_n: true}}}}
"""


def lines_of(log) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_tenant_gets_what_it_was_sold_and_the_log_says_so(tmp_path):
    log, moved, journal = (tmp_path / name for name in ("access.log", "access.log.1", "journal"))
    with cluster(TEXT.format(log=log, journal=journal), tmp_path) as running:
        free = running.client.with_options(api_key="free-key")
        paid = running.client.with_options(api_key="paid-key")
        complete(free, "Hello", 8, n=3)
        with pytest.raises(openai.RateLimitError) as refused:
            complete(free, "Hello", 8, n=2)
        assert refused.value.code == "rate_limit_exceeded"
        assert 10 <= int(refused.value.response.headers["retry-after"]) <= 20
        assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "1"
        assert list(complete(free, "Hello", 8, stream=True))
        until(lambda: len(lines_of(log)) == 3)
        log.rename(moved)
        for _ in range(6):
            complete(paid, "Hello", 8)
        until(lambda: len(lines_of(log)) == 6)
        of_paid = lines_of(log)
        calls_are_cut(running, paid)
        metrics = running.metrics()
        running.assert_nothing_held()
    told = [(line["tenant"], line["status"], line["output_tokens"]) for line in lines_of(moved)]
    assert told == [("free", 200, 24), ("free", 429, 0), ("free", 200, 8)]
    assert {line["workers"][0] for line in of_paid} == {"both-0"}
    of_free = 'model_name="tandem-mini",reason="requests_per_minute",tenant="free"'
    assert f"tandem:tenant_rejections_total{{{of_free}}} 2.0" in metrics
    assert 'degraded_requests_total{model_name="tandem-mini",step="n"} 4.0' in metrics
    assert 'breaker_share{model_name="tandem-mini",service_class="cut"} 1.0' in metrics

    played = succeeded(run_tandem("replay", str(journal)))
    # Two by a rate limit, and four choices of the call that was cut.
    assert "21 requests (6 rejected)" in played
    assert "all equal" in played


def calls_are_cut(running: ClusterProcess, client: openai.OpenAI) -> None:
    """A call of more answers than run at once, and an answer that does not end in time."""
    cut = ask(client, n=8, max_tokens=40)
    assert cut.headers["X-Tandem-Degraded"] == "n=4"
    assert [choice.index for choice in cut.parse().choices] == [0, 1, 2, 3]
    assert "left out of its call" in running.succeed("explain", cut.headers["x-request-id"])
    late = ask(client, {"X-Request-Timeout": "1"}, max_tokens=3000).parse()
    (choice,) = late.choices
    assert choice.finish_reason == "length"
    assert choice.model_extra["stop_reason"] == "deadline"
    assert 0 < late.usage.completion_tokens < 3000
    (gateway,) = running.status()["gateways"]
    assert [each["stage"] for each in gateway["breakers"]] == ["closed"]


def ask(client: openai.OpenAI, headers: Mapping[str, str] | None = None, **fields):
    return client.completions.with_raw_response.create(
        model="tandem-mini",
        prompt="Tell me about bread.",
        temperature=1.0,
        seed=3,
        extra_headers=headers,
        extra_body={"ignore_eos": True},
        **fields,
    )
