"""Encoders beside the bundled model, as users ask for them: the real command, the real client, and
transformers as the judge of numbers."""

import base64
import json

import httpx2
import numpy as np
import openai
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModel, AutoTokenizer

from tandem.config.environment import BUNDLED_MODEL
from tests.journeys.serving import run_tandem, serving
from tests.models.encoders.tiny import CLASSIFIERS, MODELS, build
from tests.models.encoders.tokens import write_tokenizer
from tests.waiting import until

# By served name: which of the tiny encoders it is, and whose tokenizer it gets.
ENCODERS = {
    "vectors": ("bert", "bert_labels"),
    "ranks": ("xlm_roberta_score", "xlm_roberta_score"),
    "labels": ("modernbert_labels", "modernbert_labels"),
    "topics": ("bert_labels", "bert_labels"),
}
TEXTS = ["Which planet has rings?", "Saturn.", "A cat sleeps on the mat. It is a happy cat."]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def oracles(tmp_path_factory):
    """By served name: folder, model, tokenizer."""
    found = {}
    for name, (variant, template) in ENCODERS.items():
        folder = tmp_path_factory.mktemp(name)
        model = build((MODELS | CLASSIFIERS)[variant], folder)
        found[name] = folder, model, write_tokenizer(folder, template, model.config.pad_token_id)
    return found


@pytest.fixture(scope="module")
def server(oracles, tmp_path_factory):
    folders = {name: str(folder) for name, (folder, _, _) in oracles.items()}
    with serving(
        # Transformers computes what the served model gives in it.
        *("--arithmetic", "float32"),
        "--encoder-models",
        f"vectors={folders['vectors']}",
        f'{{"name": "ranks", "path": "{folders["ranks"]}", "max_queue_delay_ms": 2}}',
        f"labels={folders['labels']}",
        f"topics={folders['topics']}",
        f'{{"name": "causal", "path": "{BUNDLED_MODEL}", "pooling": "mean", "normalize": false}}',
        "--embeddings",
        "--batch-directory",
        str(tmp_path_factory.mktemp("batches")),
    ) as process:
        yield process


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_an_inference_gives_the_embeddings(server, client):
    wanted = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="base64")
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    answer = httpx2.post(f"{server.url}/v2/models/vectors/infer", json=asked)
    head = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.content[head:] == b"".join(
        base64.b64decode(each.embedding) for each in wanted.data
    )


def test_an_inference_gives_the_scores_of_labels(server, oracles):
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    answer = httpx2.post(f"{server.url}/v2/models/labels/infer", json={"inputs": [tensor]}).json()
    (output,) = answer["outputs"]
    scores = np.concatenate([logits(oracles["labels"], [each]) for each in TEXTS])
    assert output["shape"] == list(scores.shape)
    assert output["data"] == pytest.approx(scores.ravel().tolist(), abs=TOLERANCE)


def post(server, path: str, **body) -> httpx2.Response:
    return httpx2.post(f"{server.url}/v1/{path}", json=body)


@torch.inference_mode()
def logits(oracle, *texts) -> np.ndarray:
    """Of the texts, or of pairs of both, one after the other."""
    _, model, tokenizer = oracle
    read = tokenizer(*texts, padding=True, return_tensors="pt")
    return model(**read).logits.numpy()


@torch.inference_mode()
def vector(oracle, text: str) -> np.ndarray:
    _, model, tokenizer = oracle
    states = model.base_model(**tokenizer([text], return_tensors="pt")).last_hidden_state
    return states[0].mean(0).numpy()


def test_encoders_are_models_of_their_own(server, client):
    assert "encoders: vectors, ranks, labels, topics, causal, tandem-mini" in server.greeting
    assert [model.id for model in client.models.list()] == ["tandem-mini", *ENCODERS, "causal"]
    assert client.models.retrieve("ranks").max_model_len == 96
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="ranks", messages=[{"role": "user", "content": "a"}])


def test_embeddings_are_those_of_transformers(client, oracles):
    found = client.embeddings.create(model="vectors", input=TEXTS)
    assert [each.index for each in found.data] == [0, 1, 2]
    for text, each in zip(TEXTS, found.data, strict=True):
        expected = vector(oracles["vectors"], text)
        assert np.allclose(each.embedding, expected, atol=TOLERANCE, rtol=0)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


@pytest.mark.parametrize("model", ["vectors", "tandem-mini", None])
def test_a_batch_embeds_as_single_calls_do(client, model):
    named = {} if model is None else {"model": model}
    lines = [
        {"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": body}
        for text in TEXTS
        for body in [{"input": text, "encoding_format": "float"} | named]
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )
    batch = until(lambda: ended(client, batch.id))
    assert (batch.status, batch.request_counts.completed) == ("completed", len(TEXTS))
    answers = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    found = {each["custom_id"]: each["response"]["body"]["data"][0] for each in answers}
    single = client.embeddings.create(model=model or "vectors", input=TEXTS)
    for text, each in zip(TEXTS, single.data, strict=True):
        assert np.allclose(found[text]["embedding"], each.embedding, atol=TOLERANCE, rtol=0)


def ended(client, batch_id: str):
    batch = client.batches.retrieve(batch_id)
    return batch if batch.completed_at or batch.failed_at else None


def test_forms_of_embeddings(server, oracles):
    whole = post(server, "embeddings", input=TEXTS[0]).json()["data"][0]["embedding"]
    coded = post(server, "embeddings", input=[TEXTS[0]], encoding_format="base64").json()
    numbers = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert numbers.tolist() == pytest.approx(whole, abs=0)
    cut = post(server, "embeddings", input=TEXTS[0], dimensions=8).json()["data"][0]["embedding"]
    expected = np.array(whole[:8]) / np.linalg.norm(whole[:8])
    assert np.allclose(cut, expected, atol=1e-6)
    _, _, tokenizer = oracles["vectors"]
    ids = tokenizer(TEXTS[0])["input_ids"]
    for given in (ids, [ids]):
        answer = post(server, "embeddings", input=given).json()
        assert answer["data"][0]["embedding"] == whole
        assert answer["usage"]["prompt_tokens"] == len(ids)


def test_metrics_tell_encoders_apart(server):
    for name, texts in (("vectors", TEXTS), ("labels", TEXTS[:1])):
        post(server, "embeddings", model=name, input=texts)
    page = httpx2.get(f"{server.url}/metrics").text
    values = {
        (sample.name, sample.labels["model_name"], sample.labels.get("outcome")): sample.value
        for each in text_string_to_metric_families(page)
        if each.name.startswith("tandem:encoder_")
        for sample in each.samples
        if "le" not in sample.labels
    }
    for name in ENCODERS:
        encoded = values["tandem:encoder_texts_total", name, "encoded"]
        assert values["tandem:encoder_queue_time_seconds_count", name, None] == encoded
        assert values["tandem:encoder_batch_texts_sum", name, None] == encoded
        assert values["tandem:encoder_texts_waiting", name, None] == 0
    assert values["tandem:encoder_texts_total", "vectors", "encoded"] >= len(TEXTS)
    assert values["tandem:encoder_tokens_total", "vectors", None] > len(TEXTS)
    assert page.count("# TYPE tandem:encoder_texts_total ") == 1


@pytest.fixture(scope="module")
def bundled():
    """As transformers reads it."""
    model = AutoModel.from_pretrained(BUNDLED_MODEL).float()
    return AutoTokenizer.from_pretrained(BUNDLED_MODEL), model


def test_the_served_model_and_other_decoders_give_embeddings(client, bundled):
    tokenizer, model = bundled
    with torch.inference_mode():
        states = [model(**tokenizer([text], return_tensors="pt"))[0][0] for text in TEXTS]
    for name, pooled in (
        ("tandem-mini", [each[-1] / each[-1].norm() for each in states]),
        ("causal", [each.mean(0) for each in states]),
    ):
        found = client.embeddings.create(model=name, input=TEXTS)
        assert found.model == name
        for each, expected in zip(found.data, pooled, strict=True):
            assert np.allclose(each.embedding, expected, atol=TOLERANCE, rtol=0)
    # It generates all the while.
    chat = client.chat.completions.create(
        model="tandem-mini", messages=[{"role": "user", "content": "7 + 5"}], max_tokens=4
    )
    assert chat.choices[0].message.content


def test_documents_are_ranked_as_transformers_scores_them(server, oracles):
    query, documents = TEXTS[0], [*TEXTS[1:], "rings", "planet?"]
    answer = post(
        server,
        "rerank",
        model="ranks",
        query=query,
        documents=[*documents[:3], {"text": "planet?"}],
    ).json()
    scores = logits(oracles["ranks"], [query] * 4, documents)[:, 0]
    shares = 1 / (1 + np.exp(-scores))
    order = [each["index"] for each in answer["results"]]
    assert order == np.argsort(-shares).tolist()
    for each in answer["results"]:
        assert each["relevance_score"] == pytest.approx(shares[each["index"]], abs=TOLERANCE)
        assert each["document"] == {"text": documents[each["index"]]}
    first = post(
        server,
        "rerank",
        model="ranks",
        query=query,
        documents=documents,
        top_n=1,
        return_documents=False,
    ).json()["results"]
    assert [each["index"] for each in first] == order[:1]
    assert "document" not in first[0]
    scored = post(server, "score", model="ranks", text_1=query, text_2=documents).json()["data"]
    assert [each["score"] for each in scored] == pytest.approx(shares.tolist(), abs=TOLERANCE)


def test_without_labels_relevance_is_a_cosine_and_with_several_there_is_none(server, oracles):
    answer = post(server, "score", model="vectors", text_1=TEXTS[0], text_2=TEXTS).json()
    vectors = [vector(oracles["vectors"], text) for text in TEXTS]
    units = [each / np.linalg.norm(each) for each in vectors]
    expected = [float(units[0] @ each) for each in units]
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=TOLERANCE)
    refused = post(server, "rerank", model="labels", query="a", documents=["b"])
    assert refused.status_code == 400
    assert "4 labels" in refused.json()["error"]["message"]


def test_classes_are_those_of_transformers(server, oracles):
    answer = post(server, "classify", model="labels", input=TEXTS).json()
    scores = torch.from_numpy(np.concatenate([logits(oracles["labels"], [each]) for each in TEXTS]))
    labels = oracles["labels"][1].config.id2label
    for each, expected in zip(answer["data"], scores.softmax(-1), strict=True):
        assert each["probs"] == pytest.approx(expected.tolist(), abs=TOLERANCE)
        assert each["label"] == labels[int(expected.argmax())]
        assert each["num_classes"] == 4
    # Several labels of which each may hold.
    found = post(server, "classify", model="topics", input=TEXTS[0]).json()["data"][0]
    expected = torch.from_numpy(logits(oracles["topics"], [TEXTS[0]]))[0].sigmoid()
    assert found["probs"] == pytest.approx(expected.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("embeddings", {"input": []}, "input", "must not be empty"),
        ("embeddings", {"input": ["a", 3]}, "input", "not both"),
        ("embeddings", {"input": [10**6]}, "input[0]", "beyond"),
        ("embeddings", {"input": "a " * 200}, "input[0]", "at most 96"),
        ("classify", {"model": "vectors", "input": "a"}, "model", "has no labels"),
        ("embeddings", {"input": "a", "dimensions": 65}, "dimensions", "at most 64"),
        (
            "embeddings",
            {"input": "a", "truncate_prompt_tokens": 97},
            "truncate_prompt_tokens",
            "96",
        ),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format", "Invalid"),
        ("score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1", "as many"),
        (
            "rerank",
            {"model": "ranks", "query": "a", "documents": ["b", "a " * 200]},
            "documents[1]",
            "at most 96",
        ),
        ("embeddings", {"input": "a", "dimension": 3}, "dimension", "did you mean 'dimensions'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(server, path, body, field, words):
    answer = post(server, path, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert words in error["message"]


def test_long_texts_are_cut_where_that_is_wished(server):
    answer = post(server, "embeddings", input="a " * 200, truncate_prompt_tokens=-1)
    assert answer.json()["usage"]["prompt_tokens"] == 96
    missing = post(server, "embeddings", model="tandem", input="a")
    assert missing.status_code == 404
    assert "vectors, ranks, labels, topics" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("nothing", "expected name=path"),
        ("a=/no/such/folder", "a: model '/no/such/folder'"),
        ('{"name": "a", "path": "b", "max_batch_size": 0}', "max_batch_size"),
        ('{"name": "a", "path": "b", "size": 1}', "size"),
    ],
    ids=str,
)
def test_encoders_that_cannot_be_are_said_at_the_start(wish, words):
    ended = run_tandem("serve", "--port", "0", "--encoder-models", wish)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_each_name_is_that_of_one_model(oracles):
    wish = f"tandem-mini={oracles['labels'][0]}"
    ended = run_tandem("serve", "--port", "0", "--encoder-models", wish)
    assert ended.returncode == 2
    assert "another model is served as 'tandem-mini'" in ended.stderr
