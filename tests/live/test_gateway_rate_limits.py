"""Rate limits as a client of the HTTP API meets them: 429 with what is left and when to come back,
metrics by tenant, and the access log."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ResponseCacheConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.facts.rate_limits import LimitTerms, RateLimits
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.terms import GatewayTerms
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.text.model import TextModel
from tests.live.toy_cluster import (
    ToyWorker,
    gateway_config,
    make_gateway,
    serving,
    until,
    working,
)
from tests.observe.metrics_text import text_of
from tests.text.tiny_checkpoint import write_checkpoint

KEYS = ApiConfig(
    api_keys=("plain-key",),
    tenants={"acme-key": "acme", "rich-key": "rich"},
    response_cache=ResponseCacheConfig(1 << 20, frozenset({"rich"})),
)
DEFAULT_CLASSES = Classes()
ACME = RateLimits(requests_per_minute=6, tokens_per_minute=600, concurrent_requests=5)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@dataclass
class Front:
    """The HTTP application of a gateway over one toy worker, and the lines of its access log."""

    gateway: Gateway
    worker: ToyWorker
    http: httpx2.AsyncClient
    lines: list[dict] = field(default_factory=list)
    lost_lines: int = 0

    def write(self, line: bytes) -> None:
        self.lines.append(json.loads(line))

    async def ask(self, key: str, **body) -> httpx2.Response:
        body = {"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": True} | body
        headers = {"Authorization": f"Bearer {key}"}
        return await self.http.post("/v1/completions", json=body, headers=headers)


@asynccontextmanager
async def front(
    text: TextModel, terms: LimitTerms, classes: Classes = DEFAULT_CLASSES, **gateway_terms
):
    config = replace(gateway_config(), limits=terms)
    machine = GatewayMachine(replace(config, router=replace(config.router, classes=classes)))
    terms_of = GatewayTerms("i", tenants=("acme", "rich"), **gateway_terms)
    gateway = Gateway(make_gateway().card, machine, terms_of)
    worker = ToyWorker("w")
    async with serving(gateway) as endpoint, working(worker, at=endpoint):
        await until(lambda: gateway.ready)
        made = Front(gateway, worker, httpx2.AsyncClient())
        transport = httpx2.ASGITransport(app=build_app(gateway, text, KEYS, made))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            made.http = http
            yield made


def left(answer: httpx2.Response, what: str) -> tuple[int, int]:
    headers = answer.headers
    reset = headers[f"x-ratelimit-reset-{what}"]
    assert reset.endswith("s")
    return int(headers[f"x-ratelimit-limit-{what}"]), int(headers[f"x-ratelimit-remaining-{what}"])


async def test_what_is_left_is_told_with_every_answer_until_nothing_is(text):
    async with front(text, LimitTerms({"acme": ACME})) as door:
        answer = await door.ask("acme-key")
        assert answer.status_code == 200, answer.text
        assert (left(answer, "requests"), left(answer, "tokens")) == ((6, 5), (600, 591))
        answer = await door.ask("acme-key", n=3, stream=True)
        assert left(answer, "requests") == (6, 2)
        whole = await door.ask("acme-key", n=3)
        assert whole.status_code == 429
        error = whole.json()["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert "6 requests a minute" in error["message"]
        assert 8 <= int(whole.headers["retry-after"]) <= 14
        # It cost nothing, and none of its answers was begun.
        assert left(whole, "requests") == (6, 2)
        assert not door.gateway.machine.router.requests
        assert (await door.ask("acme-key", n=2)).status_code == 200
        assert (await door.ask("acme-key")).status_code == 429
        for key in ("rich-key", "plain-key"):
            other = await door.ask(key)
            assert other.status_code == 200
            assert not [name for name in other.headers if name.startswith("x-ratelimit")]


async def test_each_key_of_no_tenant_has_the_limits_of_all(text):
    limits = LimitTerms(others=RateLimits(requests_per_minute=1))
    async with front(text, limits) as door:
        assert (await door.ask("plain-key")).status_code == 200
        refused = await door.ask("plain-key")
        assert (refused.status_code, left(refused, "requests")) == (429, (1, 0))
        # The file names these, and no limits of theirs: others' are not theirs.
        assert (await door.ask("rich-key")).status_code == 200


async def test_metrics_tell_tenants_apart_and_nobody_else(text):
    async with front(text, LimitTerms({"acme": RateLimits(requests_per_minute=2)})) as door:
        for key in ("acme-key", "acme-key", "acme-key", "plain-key", "rich-key"):
            await door.ask(key)
        told = text_of(door.gateway.metric_families())

    def value(name: str, **labels: str) -> float:
        wanted = [f'{label}="{text}"' for label, text in labels.items()]
        lines = [each for each in told.splitlines() if each.startswith(f"tandem:tenant_{name}{{")]
        (line,) = [each for each in lines if all(label in each for label in wanted)]
        return float(line.rpartition(" ")[2])

    assert value("requests_total", tenant="acme") == 3
    assert value("rejections_total", tenant="acme", reason="requests_per_minute") == 1
    assert value("rejections_total", tenant="rich", reason="requests_per_minute") == 0
    assert value("open_requests", tenant="acme") == 0
    assert value("prompt_tokens_total", tenant="acme") == 8
    assert value("cached_tokens_total", tenant="acme") >= 0
    assert value("generation_tokens_total", tenant="acme") == 10
    assert value("time_to_first_token_seconds_count", tenant="acme") == 2
    assert value("time_per_output_token_seconds_count", tenant="acme") == 2
    # Whoever is no tenant of the file shares one series.
    assert value("requests_total", tenant="") == 1
    assert "plain" not in told


async def test_the_access_log_tells_how_each_call_ended_and_not_what_was_said(text):
    async with front(text, LimitTerms({"acme": ACME})) as door:
        answer = await door.ask("acme-key", n=2)
        await door.ask("acme-key", n=6)
        await door.ask("acme-key", n=5)
        await door.ask("wrong-key")
        await door.ask("rich-key", secret_field="secret text")
        door.worker.engine.gate.clear()
        waiting = asyncio.create_task(door.ask("rich-key"))
        await until(lambda: door.gateway.machine.router.requests)
        waiting.cancel()
        await until(lambda: len(door.lines) == 6)
        door.worker.engine.gate.set()
        await door.http.get("/metrics")
        await door.http.get("/v1/models/nobody", headers={"Authorization": "Bearer rich-key"})
        lines = door.lines
    assert [line["status"] for line in lines] == [200, 400, 429, 401, 400, 499, 404]
    assert [line["code"] for line in lines] == [
        None,
        "invalid_value",
        "rate_limit_exceeded",
        "invalid_api_key",
        "unknown_parameter",
        "client_gone",
        "model_not_found",
    ]
    first = lines[0]
    assert first["request_id"] == answer.headers["x-request-id"]
    assert (first["tenant"], first["model"], first["stream"], first["answers"]) == (
        "acme",
        "toy",
        False,
        2,
    )
    assert (first["prompt_tokens"], first["output_tokens"]) == (4, 10)
    assert first["finish_reasons"] == ["length", "length"]
    assert first["workers"] == ["w"]
    assert 0 < first["ttft_s"] <= first["total_s"] < 60
    assert first["tpot_s"] is not None
    assert lines[2]["reason"].startswith("the limit of 6 requests a minute")
    assert lines[5]["workers"] == ["w"]
    written = json.dumps(lines)
    for secret in ("acme-key", "rich-key", "wrong-key", "secret"):
        assert secret not in written
    # Keys are told apart all the same.
    assert len({line["key"] for line in lines}) == 3


async def test_the_access_log_has_the_class_of_each_call_also_where_nothing_was_computed(text):
    classes = Classes((ServiceClass("free"),), default="free")
    async with front(text, LimitTerms(), classes) as door:
        for _ in range(2):
            await door.ask("rich-key", temperature=0)
        computed, found = door.lines
    assert (computed["class"], found["class"]) == ("free", "free")
    assert (computed["cached"], found["cached"]) == (False, True)
    assert (computed["workers"], found["workers"]) == (["w"], [])


async def test_a_call_that_finds_no_place_to_wait_costs_nothing(text):
    async with front(text, LimitTerms({"acme": ACME}), max_waiting=2) as door:
        door.worker.engine.gate.clear()
        full = await door.ask("acme-key", n=4)
        assert (full.status_code, full.json()["error"]["code"]) == (429, "overloaded")
        limiter = door.gateway.machine.limits.limiter
        await until(lambda: not limiter.running())
        door.worker.engine.gate.set()
        answer = await door.ask("acme-key")
        assert left(answer, "requests") == (6, 5)
