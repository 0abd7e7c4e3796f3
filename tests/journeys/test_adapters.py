"""Adapters beside the bundled model, as users ask for them: the real command and client."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import openai
import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.models.configuration import read_model_spec
from tests.journeys.serving import run_here, run_tandem, serving, succeeded
from tests.models.adapter_files import write_adapter

QUESTION = "Tell me a story."
OPERATOR_KEY = "the-operators-own-key"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Adapters that change answers without ruining them."""
    folder, spec = tmp_path_factory.mktemp("adapters"), read_model_spec(BUNDLED_MODEL)
    for seed, name in enumerate(("red", "green", "blue")):
        write_adapter(folder / name, spec, rank=8 << seed, seed=seed, strength=0.15)
    (folder / "operators").write_text(f"{OPERATOR_KEY}\n")
    return folder


@pytest.fixture(scope="module")
def server(folder):
    modules = (f"{name}={folder / name}" for name in ("red", "green"))
    with serving(
        *("--enable-lora", "--lora-modules", *modules, "--max-lora-rank", "32"),
        *("--operator-key-file", str(folder / "operators"), "--max-loras", "2"),
        *("--speculation", "ngram"),
    ) as process:
        yield process


def client_of(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def answer(client, model: str, text: str = QUESTION) -> str:
    messages = [{"role": "user", "content": text}]
    told = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=24, logprobs=True
    )
    assert told.model == model
    choice = told.choices[0]
    return repr([(each.token, each.logprob) for each in choice.logprobs.content])


def operate(server, verb: str, key: str = OPERATOR_KEY, **body: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx2.post(f"{server.url}/v1/{verb}_lora_adapter", json=body, headers=headers)


def test_adapters_are_models_of_their_own(server, client):
    assert "speculation: ngram" in server.greeting
    assert "adapters: red, green; 2 at once, of rank 32 at most" in server.greeting
    models = {model.id: model for model in client.models.list()}
    assert list(models) == ["tandem-mini", "red", "green"]
    assert (models["red"].parent, models["red"].root) == ("tandem-mini", "red")
    assert models["tandem-mini"].parent is None
    assert client.models.retrieve("green").parent == "tandem-mini"


def test_each_answers_in_its_own_way_whoever_else_is_asked(client):
    names = ("tandem-mini", "red", "green")
    alone = {name: answer(client, name) for name in names}
    assert len(set(alone.values())) == len(names)
    with ThreadPoolExecutor(9) as pool:
        together = pool.map(lambda name: (name, answer(client, name)), names * 6)
        assert all(told == alone[name] for name, told in together)


def test_metrics_count_what_memory_holds(server, client):
    answer(client, "red")
    text = httpx2.get(f"{server.url}/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if "lora" in line)
    labels = 'max_lora="2",model_name="tandem-mini",running_lora_adapters=""'
    assert f'tandem:lora_requests_info{{{labels},waiting_lora_adapters=""}}' in lines
    of_model = '{model_name="tandem-mini"}'
    assert float(lines[f"tandem:lora_loads_total{of_model}"]) >= 1
    held = float(lines[f"tandem:lora_memory_bytes{of_model}"])
    assert 0 < held <= float(lines[f"tandem:lora_memory_limit_bytes{of_model}"])


def test_a_name_that_nobody_has_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="'blue' does not exist"):
        answer(client, "blue")


def test_operators_load_and_unload_while_it_serves(server, client, folder):
    before = answer(client, "red")
    for key in ("", "another-key"):
        refused = operate(server, "load", key, lora_name="blue", lora_path=str(folder / "blue"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            403,
            "operator_key_required",
        )
    loaded = operate(server, "load", lora_name="blue", lora_path=str(folder / "blue"))
    assert loaded.json() == {"lora_name": "blue", "status": "loaded"}
    blue = answer(client, "blue")
    assert blue not in (before, answer(client, "tandem-mini"))
    red = str(folder / "red")
    for name, path, status, words in (
        ("blue", red, 400, "name of another model"),
        ("tandem-mini", red, 400, "name of another model"),
        ("x", "red", 400, "must be an absolute path"),
        ("x", str(folder), 404, "adapter_config.json does not exist"),
        ("x", "/nowhere", 404, "is no directory"),
        ("", red, 400, "printable characters"),
    ):
        refused = operate(server, "load", lora_name=name, lora_path=path)
        assert refused.status_code == status
        assert words in refused.json()["error"]["message"]
    assert operate(server, "unload", lora_name="blue").status_code == 200
    assert operate(server, "unload", lora_name="blue").status_code == 404
    with pytest.raises(openai.NotFoundError):
        answer(client, "blue")
    # The same name may mean another one from now on, and no KV of the former is found.
    assert operate(server, "load", lora_name="blue", lora_path=str(folder / "green")).is_success
    assert answer(client, "blue") == answer(client, "green")
    assert answer(client, "red") == before
    operate(server, "unload", lora_name="blue")


def test_a_merged_checkpoint_says_what_the_adapter_says(client, folder, tmp_path):
    out = tmp_path / "merged"
    succeeded(run_tandem("merge", "tandem-mini", str(folder / "red"), str(out)))
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"messages": messages, "temperature": 0, "max_tokens": 12}
    adapted = client.chat.completions.create(model="red", **asked)
    with serving(str(out)) as merged:
        told = client_of(merged).chat.completions.create(model="merged", **asked)
    assert told.choices[0].message.content == adapted.choices[0].message.content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lora-modules", "a=/b"], "lora-modules needs --enable-lora"),
        (["--enable-lora", "--lora-modules", "red"], "expected name=path, got 'red'"),
        (["--enable-lora", "--lora-modules", "a=/nowhere"], "adapter /nowhere is no directory"),
        (
            ["--enable-lora", "--lora-modules", "green={folder}/green", "--max-lora-rank", "8"],
            "has rank 16, more than the 8 that are allowed; raise --max-lora-rank",
        ),
        (
            ["--enable-lora", "--lora-modules", "tandem-mini={folder}/red"],
            "tandem-mini is the name of the model itself",
        ),
        (
            ["--enable-lora", "--lora-modules", "a={folder}/red", "a={folder}/green"],
            "a is named twice",
        ),
        (["--enable-lora", "--lora-memory", "much"], "lora-memory: expected a size"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_one_line(arguments, words, folder):
    given = [argument.format(folder=folder) for argument in arguments]
    failed = run_here("serve", "--port", "0", *given)
    assert failed.returncode == 2
    assert words in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr
