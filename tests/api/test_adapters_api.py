"""Adapters as models over HTTP: what the `model` of a request means, and who may change them."""

import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, KeyFile
from tandem.live.adapters import AdapterRegistry
from tests.api.server import client_of
from tests.api.test_access import CHAT, bearer
from tests.engine.tiny import tiny_spec
from tests.models.adapter_files import write_adapter

OPERATOR, CLIENT = "operators-key", "clients-key"


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(("red", "green")):
        write_adapter(tmp_path / name, tiny_spec(), seed=seed)
    (tmp_path / "operators").write_text(f"# who may\n{OPERATOR}\n")
    return tmp_path


@pytest.fixture
def registry(folder):
    registry = AdapterRegistry(tiny_spec(), 16, ("tiny", "org/tiny"))
    registry.begin({"red": folder / "red"})
    return registry


def app_of(generator, text, folder, registry, *keys: str, operators: bool = True):
    files = (KeyFile(str(folder / "operators")),) if operators else ()
    config = ApiConfig(api_keys=keys, operator_key_files=files)
    return build_app(generator, text, config, adapters=registry)


def code_of(response) -> str:
    return response.json()["error"]["code"]


def load(client, folder, key: str | None = OPERATOR, name: str = "green"):
    body = {"lora_name": name, "lora_path": str(folder / "green")}
    return client.post("/v1/load_lora_adapter", json=body, headers=bearer(key) if key else {})


def test_the_model_of_a_call_names_its_adapter(generator, text, folder, registry):
    with client_of(app_of(generator, text, folder, registry)) as client:
        for model, adapter in (
            ("red", registry.served["red"].adapter),
            ("tiny", None),
            ("org/tiny", None),
            (None, None),
        ):
            answer = client.post("/v1/chat/completions", json=CHAT | {"model": model, "n": 2})
            assert answer.json()["model"] == ("red" if adapter else "tiny")
            assert [each.adapter for each in generator.requests] == [adapter] * 2
            generator.requests.clear()
        body = {"model": "red", "prompt": "hello", "stream": True, "max_tokens": 2}
        streamed = client.post("/v1/completions", json=body).text
        assert '"model":"red"' in streamed
        assert client.post("/tokenize", json={"model": "red", "prompt": "x"}).is_success
        generator.requests.clear()
        inferred = client.post("/v2/models/red/generate", json={"text_input": "hello"}).json()
        assert inferred["model_name"] == "red"
        assert generator.requests[0].adapter == registry.served["red"].adapter
        unknown = client.post("/v1/chat/completions", json=CHAT | {"model": "green"})
        assert (unknown.status_code, code_of(unknown)) == (404, "model_not_found")


def test_adapters_stand_beside_the_model(generator, text, folder, registry):
    with client_of(app_of(generator, text, folder, registry)) as client:
        models = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
        assert list(models) == ["tiny", "org/tiny", "red"]
        assert models["red"]["parent"] == "tiny"
        # Where it lies is the server's own affair.
        assert models["red"]["root"] == "red"
        assert client.get("/v1/models/red").json() == models["red"]
        assert client.get("/v1/models/green").status_code == 404


@pytest.mark.parametrize("keys", [(), (CLIENT,)])
def test_only_operators_change_what_there_is(generator, text, folder, registry, keys):
    with client_of(app_of(generator, text, folder, registry, *keys)) as client:
        for key in (None, CLIENT, "wrong"):
            refused = load(client, folder, key)
            has_entered = not keys or key in keys
            wanted = (403, "operator_key_required") if has_entered else (401, "invalid_api_key")
            assert (refused.status_code, code_of(refused)) == wanted
            body = {"lora_name": "red"}
            headers = bearer(key) if key else {}
            refused = client.post("/v1/unload_lora_adapter", json=body, headers=headers)
            assert refused.status_code == wanted[0]
        assert load(client, folder).json() == {"lora_name": "green", "status": "loaded"}
        # An operator's key opens everything else as well.
        chat = client.post("/v1/chat/completions", json=CHAT, headers=bearer(OPERATOR))
        assert chat.status_code == 200
    assert list(registry.served) == ["red", "green"]


def test_where_there_are_no_operators_nobody_changes_anything(generator, text, folder, registry):
    with client_of(app_of(generator, text, folder, registry, operators=False)) as client:
        assert load(client, folder).status_code == 403
    assert list(registry.served) == ["red"]


def test_only_operators_reset_the_prefix_cache(generator, text, folder):
    with client_of(app_of(generator, text, folder, None)) as client:
        refused = client.post("/reset_prefix_cache")
        assert (refused.status_code, code_of(refused)) == (403, "operator_key_required")
        assert generator.resets == []
        for query, external in (("", False), ("?reset_external=true", True)):
            answer = client.post(f"/reset_prefix_cache{query}", headers=bearer(OPERATOR))
            assert answer.json() == {"status": "reset"}
            assert generator.resets.pop() is external
        for query in ("reset_external=perhaps", "reset_running_requests=true"):
            refused = client.post(f"/reset_prefix_cache?{query}", headers=bearer(OPERATOR))
            assert refused.status_code == 400
            assert query.split("=")[0] in refused.json()["error"]["message"]
        assert generator.resets == []


def test_without_adapters_there_are_no_such_endpoints(generator, text, folder):
    with client_of(app_of(generator, text, folder, None)) as client:
        assert load(client, folder).status_code == 404
        assert len(client.get("/v1/models").json()["data"]) == 2
