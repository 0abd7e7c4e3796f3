"""Keys, request ids, origins, and the probes that an operator's tools read."""

import pytest

from tandem.api.app import build_app
from tandem.api.auth import OPEN_PATHS
from tandem.api.config import ApiConfig
from tandem.api.key_ring import KeyRing
from tandem.facts.errors import EngineFailed, InvalidConfiguration
from tests.api.server import client_of
from tests.waiting import until

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def guarded(generator, text):
    config = ApiConfig(api_keys=("key-one", "key-two"), allowed_origins=("https://page.example",))
    with client_of(build_app(generator, text, config)) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_guard_the_model_and_nothing_else(guarded):
    for headers in (
        {},
        bearer("wrong"),
        bearer("key-on"),
        {"Authorization": "key-one"},
    ):
        for path in ("/v1/chat/completions", "/tokenize", "/detokenize", "/v1/completions"):
            response = guarded.post(path, json=CHAT, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]
        assert guarded.get("/v1/models", headers=headers).status_code == 401
        assert guarded.get("/v1/nothing", headers=headers).status_code == 401
    for key in ("key-one", "key-two"):
        response = guarded.post("/v1/chat/completions", json=CHAT, headers=bearer(key))
        assert response.status_code == 200
    for path in OPEN_PATHS:
        assert guarded.get(path).status_code == 200
    assert guarded.get("/tokenizer_info").status_code == 401


def test_pages_of_allowed_origins_may_call(guarded):
    preflight = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    response = guarded.options("/v1/chat/completions", headers=preflight)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    response = guarded.post("/v1/chat/completions", headers={"Origin": "https://page.example"})
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    stranger = guarded.get("/health", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in stranger.headers


def test_request_ids_come_back(http):
    response = http.get("/v1/models", headers={"X-Request-Id": "trace 42"})
    assert response.headers["x-request-id"] == "trace 42"
    first, second = (http.get("/v1/models").headers["x-request-id"] for _ in range(2))
    assert first != second
    streamed = http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert streamed.headers["x-request-id"]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    for bad in ("x" * 129, "", b"caf\xe9", "a\tb"):
        response = http.get("/v1/models", headers={"X-Request-Id": bad})
        assert response.status_code == 200
        assert response.headers["x-request-id"].startswith("req-")


def test_models(generator, client):
    assert [model.id for model in client.models.list()] == ["tiny", "org/tiny"]
    model = client.models.retrieve("org/tiny")
    assert model.max_model_len == 512
    assert model.vocabulary_tokens == generator.card.vocabulary_tokens
    answer = client.chat.completions.create(model="org/tiny", messages=CHAT["messages"])
    assert answer.model == "tiny"


def test_probes(http, generator):
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert http.get("/version").json()["version"]
    metrics = http.get("/metrics")
    assert "\ntandem:up 1.0\n" in metrics.text
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert http.get("/docs").status_code == 200


def test_probes_answer_head_without_a_body(http, generator):
    for failed, status in ((False, 200), (True, 503)):
        generator.failed = failed
        for path in ("/health", "/ping"):
            answer = http.head(path)
            assert (answer.status_code, answer.content) == (status, b"")
            assert http.get(path).status_code == status
            assert answer.headers["x-request-id"]
    for path in ("/ready", "/metrics", "/load"):
        assert (http.head(path).status_code, http.head(path).content) == (200, b"")


def test_load_counts_calls_until_their_answers_are_sent(http, generator):
    def load() -> int:
        return http.get("/load").json()["server_load"]

    assert load() == 0
    generator.script.hold_after = 1
    with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True, "n": 2}):
        generator.wait_until_running(2)
        # One call, of two sequences; what generates nothing does not count.
        assert load() == 1
    generator.wait_until_running(0)
    until(lambda: load() == 0, 20)
    assert http.post("/v1/chat/completions", json={}).status_code == 400
    assert load() == 0


def test_not_ready_refuses_work_and_only_that(http, generator):
    generator.ready = False
    assert http.get("/ready").status_code == 503
    assert http.get("/health").status_code == 200
    response = http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert response.headers["retry-after"] in ("1", "2")
    assert http.post("/tokenize", json={"prompt": "x"}).status_code == 200


def test_a_dead_engine_is_unhealthy_and_refuses_for_good(http, generator):
    generator.script.failure = EngineFailed("it died")
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 503
    generator.ready, generator.failed = False, True
    health = http.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "failed"})
    response = http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_failed"
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    "fields",
    [{"api_keys": ("",)}, {"api_keys": ("é",)}, {"max_body_bytes": 0}, {"max_choices": -1}],
)
def test_bad_configurations_are_refused(fields):
    with pytest.raises(InvalidConfiguration):
        ApiConfig(**fields)


def test_a_key_says_whose_request_it_is_and_tenants_share_no_cache(generator, text):
    config = ApiConfig(api_keys=("spare",), tenants={"red-key": "red", "blue-key": "blue"})
    with client_of(build_app(generator, text, config)) as client:
        for key in ("red-key", "blue-key", "spare"):
            headers = bearer(key) | {"x-tier": "gold"}
            for salt in ({}, {"cache_salt": "mine"}):
                body = CHAT | salt
                assert client.post("/v1/chat/completions", json=body, headers=headers).is_success
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 401
    requests, callers = generator.requests[-6:], generator.callers[-6:]
    # Its KV counts to the tenant's quota.
    tenants = ["red", "red", "blue", "blue", "", ""]
    assert [each.tenant for each in requests] == tenants
    assert [each.tenant for each in callers] == tenants
    assert all(caller.headers["x-tier"] == "gold" for caller in callers)
    assert len({request.salt for request in requests}) == 6
    assert [each.cache_salt for each in requests] == ["", "mine"] * 3
    # Whose share of the waiting places it is: the tenant's, or the key's where it has none.
    accounts = [caller.account for caller in callers]
    assert accounts[:4] == ["red", "red", "blue", "blue"]
    assert accounts[4] == accounts[5] and "spare" not in accounts[4]


def test_keys_come_and_go_while_the_server_runs(generator, text):
    def status(**headers: str) -> int:
        return client.get("/v1/models", headers=headers).status_code

    ring = KeyRing(ApiConfig())
    with client_of(build_app(generator, text, ApiConfig(), ring=ring)) as client:
        assert status() == 200
        ring.become(KeyRing(ApiConfig(api_keys=("one",), tenants={"two": "red"})))
        assert (status(), status(**bearer("one")), status(**bearer("two"))) == (401, 200, 200)
        ring.become(KeyRing(ApiConfig(tenants={"two": "red"})))
        assert (status(**bearer("one")), status(**bearer("two"))) == (401, 200)


def test_headers_say_which_session_goes_on_and_how_long_to_keep_it(http, generator):
    sent = {"X-Tandem-Session": "agent-7", "X-Tandem-Pin": "90.5"}
    assert http.post("/v1/chat/completions", json=CHAT, headers=sent).status_code == 200
    assert (generator.callers[-1].session, generator.callers[-1].pin_s) == ("agent-7", 90.5)
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert (generator.callers[-1].session, generator.callers[-1].pin_s) == ("", 0.0)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Tandem-Session", "s" * 129),
        ("X-Tandem-Pin", "soon"),
        ("X-Tandem-Pin", "-1"),
        ("X-Tandem-Pin", "inf"),
    ],
)
def test_headers_that_mean_nothing_are_refused(http, generator, header, value):
    asked = len(generator.requests)
    response = http.post("/v1/chat/completions", json=CHAT, headers={header: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == header
    assert len(generator.requests) == asked


def test_hints_say_what_headers_say_and_more(http, generator):
    hints = {"session": "agent-7", "expected_output_tokens": 40, "pause_s": 8, "pin_s": 2.5}
    assert http.post("/v1/chat/completions", json=CHAT | {"agent": hints}).status_code == 200
    caller = generator.callers[-1]
    assert (caller.session, caller.pin_s, caller.pause_s) == ("agent-7", 2.5, 8.0)
    assert caller.expected_output_tokens == 40
    dynamo = {"agent_hints": {"osl": 40, "priority": 5, "speculative_prefill": True}}
    sent = CHAT | {"nvext": dynamo, "agent": {"expected_output_tokens": 40}}
    headers = {"X-Tandem-Session": "agent-7"}
    assert http.post("/v1/chat/completions", json=sent, headers=headers).status_code == 200
    assert generator.callers[-1].expected_output_tokens == 40
    assert generator.requests[-1].priority == -5
    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert generator.callers[-1].pause_s is None


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("agent.session", {"agent": {"session": "s" * 129}}),
        ("agent.session", {"agent": {"session": "another"}}),
        ("agent.pin_s", {"agent": {"session": "agent-7", "pin_s": 5}}),
        ("agent.pause_s", {"agent": {"pause_s": 5}}),
        ("agent.pause_s", {"agent": {"pause_s": -1}}),
        ("agent.pauses", {"agent": {"pauses": 1}}),
        (
            "agent.expected_output_tokens",
            {"agent": {"expected_output_tokens": 9}, "nvext": {"agent_hints": {"osl": 8}}},
        ),
        ("nvext.agent_hints.priority", {"priority": 1, "nvext": {"agent_hints": {"priority": 1}}}),
        ("nvext.agent_hints.strict_priority", {"nvext": {"agent_hints": {"strict_priority": 1}}}),
    ],
)
def test_hints_that_mean_nothing_are_refused(http, generator, field, sent):
    headers = {"X-Tandem-Session": "agent-7", "X-Tandem-Pin": "90"}
    alone = sent in ({"agent": {"pause_s": 5}},)
    asked = len(generator.requests)
    response = http.post("/v1/chat/completions", json=CHAT | sent, headers={} if alone else headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert field.split(".")[-1] in f"{error['param']} {error['message']}"
    assert len(generator.requests) == asked


def test_what_can_be_read_answers_to_head(http):
    for path in ("/health", "/ready", "/v1/models", "/docs", "/openapi.json"):
        response = http.head(path)
        assert (response.status_code, response.content) == (200, b""), path
        assert response.headers["content-length"] == http.get(path).headers["content-length"]
    assert http.head("/v1/completions").status_code == 405
