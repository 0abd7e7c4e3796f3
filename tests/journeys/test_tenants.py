"""A cluster that is sold to tenants: rate limits as the openai client meets them, an access log
that is moved away meanwhile, metrics by tenant, and a journal that decides the same."""

import json

import openai
import pytest

from tests.journeys.clusters import cluster
from tests.journeys.questions import complete
from tests.journeys.serving import run_tandem, succeeded
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve: {{port: 0, max-num-seqs: 8, kv-cache-memory: 32MiB, threads: 1, access-log: "{log}"}}
journal: {{directory: "{journal}"}}
pools:
  - {{name: both, device: cpu, count: 1}}
tenants:
  - {{name: free, api_keys: [free-key], limits: {{requests_per_minute: 4, tokens_per_minute: 1k}}}}
  - {{name: paid, api_keys: [paid-key]}}
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
        metrics = running.metrics()
        running.assert_nothing_held()
    told = [(line["tenant"], line["status"], line["output_tokens"]) for line in lines_of(moved)]
    assert told == [("free", 200, 24), ("free", 429, 0), ("free", 200, 8)]
    assert {line["workers"][0] for line in lines_of(log)} == {"both-0"}
    of_free = 'model_name="tandem-mini",reason="requests_per_minute",tenant="free"'
    assert f"tandem:tenant_rejections_total{{{of_free}}} 2.0" in metrics

    played = succeeded(run_tandem("replay", str(journal)))
    assert "12 requests (2 rejected)" in played
    assert "all equal" in played
