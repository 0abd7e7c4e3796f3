"""The Open Inference Protocol over HTTP, and the generate extension."""

import json
import struct
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.kserve.fields import FIELDS
from tandem.facts.encoder import EncodedText, LabelSpec
from tandem.facts.encoding import EncoderCard
from tandem.facts.errors import EngineFailed, InvalidRequest, Overloaded
from tests.api.inference_calls import (
    INFER,
    binary_body,
    columns,
    events,
    raw_texts,
    tensor,
    texts,
)
from tests.api.server import client_of
from tests.api.test_access_log import Lines

GENERATE = "/v2/models/tiny/generate"
STREAM = "/v2/models/tiny/generate_stream"
TOKENS = tensor("max_tokens", "INT32", 20)


def infer(http, *inputs: dict, **more) -> httpx2.Response:
    return http.post(INFER, json={"inputs": list(inputs)} | more)


def test_server_and_models_say_what_they_are(http, generator):
    assert http.get("/v2").json()["name"] == "tandem"
    assert "binary_tensor_data" in http.get("/v2").json()["extensions"]
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True}
    for path in ("tiny", "tiny/versions/1", "org/tiny", "org/tiny/versions/1"):
        name = path.partition("/versions")[0]
        ready = http.get(f"/v2/models/{path}/ready")
        assert ready.json() == {"name": name, "ready": True}
        metadata = http.get(f"/v2/models/{path}").json()
        assert metadata["name"] == name
        assert metadata["versions"] == ["1"]
        assert metadata["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [-1]}
        shapes = {each["name"]: (each["datatype"], each["shape"]) for each in metadata["inputs"]}
        assert shapes["temperature"] == ("FP32", [1])
        assert shapes["stop"] == ("BYTES", [-1])
        assert metadata["outputs"][0]["name"] == "text_output"
    generator.ready = False
    assert http.get("/v2/health/ready").status_code == 503
    assert http.get("/v2/models/tiny/ready").json() == {"name": "tiny", "ready": False}
    assert http.get("/v2/health/live").status_code == 200
    generator.failed = True
    assert http.get("/v2/health/live").json() == {"live": False}


@pytest.mark.parametrize("path", ["nobody", "tiny/versions/2", "nobody/ready", "nobody/infer"])
def test_unknown_models_and_versions_are_404(http, path):
    body = {"inputs": [texts("a")]}
    url = f"/v2/models/{path}"
    answer = http.post(url, json=body) if path.endswith("infer") else http.get(url)
    assert answer.status_code == 404
    assert list(answer.json()) == ["error"]


def test_texts_are_continued(http, generator):
    answer = infer(http, texts("a", "b"), TOKENS, id="7").json()
    assert answer["model_name"] == "tiny"
    assert answer["model_version"] == "1"
    assert answer["id"] == "7"
    assert [each["shape"] for each in answer["outputs"]] == [[2]] * 4
    said = columns(answer)
    assert said["text_output"] == ["hello world"] * 2
    assert said["finish_reason"] == ["stop", "stop"]
    usage = http.post(
        "/v1/completions", json={"prompt": ["a", "b"], "max_tokens": 20, "model": "tiny"}
    ).json()["usage"]
    assert sum(said["num_input_tokens"]) == usage["prompt_tokens"]
    assert sum(said["num_output_tokens"]) == usage["completion_tokens"]
    wide = infer(http, tensor("text_input", "BYTES", ["a"], ["b"], shape=[2, 1]), TOKENS).json()
    assert columns(wide) == said
    several = infer(http, texts("a", "b"), TOKENS, parameters={"n": 2}).json()
    assert several["outputs"][0]["shape"] == [2, 2]


def test_values_are_bytes_where_they_are_wanted_as_bytes(http):
    body = {"inputs": [texts("日本"), TOKENS], "parameters": {"binary_data_output": True}}
    raw = (raw_texts("日本".encode()), struct.pack("<i", 20))
    headers, content = binary_body(body, *raw)
    answer = http.post(INFER, headers=headers, content=content)
    assert answer.headers["content-type"] == "application/octet-stream"
    head = int(answer.headers["Inference-Header-Content-Length"])
    outputs = json.loads(answer.content[:head])["outputs"]
    sizes = [each["parameters"]["binary_data_size"] for each in outputs]
    assert len(answer.content) == head + sum(sizes)
    behind = answer.content[head:]
    assert behind[: sizes[0]] == raw_texts(b"hello world")
    assert behind[sizes[0] :][: sizes[1]] == raw_texts(b"stop")
    assert "data" not in outputs[0]
    # As Triton's client asks for one output of several.
    asked = [
        {"name": "text_output", "parameters": {"binary_data": False}},
        {"name": "finish_reason"},
    ]
    headers, content = binary_body(body | {"outputs": asked}, *raw)
    answer = http.post(INFER, headers=headers, content=content)
    head = int(answer.headers["Inference-Header-Content-Length"])
    outputs = json.loads(answer.content[:head])["outputs"]
    assert [each["name"] for each in outputs] == ["text_output", "finish_reason"]
    assert outputs[0]["data"] == ["hello world"]
    assert answer.content[head:] == raw_texts(b"stop")


def test_outputs_are_those_that_are_asked_for(http):
    asked = [{"name": "num_output_tokens"}, {"name": "text_output"}]
    answer = infer(http, texts("a"), TOKENS, outputs=asked).json()
    assert list(columns(answer)) == ["text_output", "num_output_tokens"]
    off = {"return_finish_reason": False, "return_num_input_tokens": False}
    answer = infer(http, texts("a"), TOKENS, parameters=off).json()
    assert list(columns(answer)) == ["text_output", "num_output_tokens"]
    echoed = infer(http, texts("a "), tensor("exclude_input_in_output", "BOOL", False), TOKENS)
    assert columns(echoed.json())["text_output"] == ["a hello world"]


def test_a_field_may_come_by_any_way(http, generator):
    ways = [
        infer(http, texts("a"), tensor("seed", "UINT64", 5), tensor("top_p", "FP32", 0.7)),
        infer(http, texts("a"), parameters={"seed": 5, "top_p": 0.7}),
        infer(http, texts("a"), tensor("sampling_parameters", "BYTES", '{"seed":5,"top_p":0.7}')),
        infer(http, texts("a"), parameters={"sampling_parameters": '{"seed":5}', "top_p": 0.7}),
        http.post(GENERATE, json={"text_input": "a", "seed": 5, "top_p": 0.7}),
        http.post(GENERATE, json={"text_input": "a", "parameters": {"seed": 5, "top_p": 0.7}}),
        http.post(
            GENERATE, json={"text_input": "a", "random_seed": 5, "parameters": {"top_p": 0.7}}
        ),
    ]
    raw = (raw_texts(b"a"), struct.pack("<q", 5), struct.pack("<f", 0.7))
    inputs = [texts("a"), tensor("seed", "INT64", 5), tensor("top_p", "FP32", 0.7)]
    headers, content = binary_body({"inputs": inputs}, *raw)
    ways.append(http.post(INFER, headers=headers, content=content))
    assert [each.status_code for each in ways] == [200] * len(ways)
    # As clients of Triton's vLLM backend write numbers.
    sampling = tensor("sampling_parameters", "BYTES", '{"seed": "5", "top_p": "0.7"}')
    assert infer(http, texts("a"), sampling).status_code == 200
    assert len(generator.requests) == len(ways) + 1
    assert {each.sampling for each in generator.requests} == {generator.requests[0].sampling}
    assert generator.requests[0].sampling.seed == 5
    # What 32 bits cannot say is what their client wrote.
    assert generator.requests[0].sampling.top_p == 0.7


DRAWN = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(1, 30),
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.25]),
        "top_p": st.sampled_from([0.1, 0.9, 1.0]),
        "top_k": st.integers(1, 50),
        "seed": st.integers(0, 1 << 40),
        "stop": st.lists(st.sampled_from(["o", "ld", "日"]), min_size=1, max_size=3),
        "stop_token_ids": st.lists(st.integers(5, 9), min_size=1, max_size=3),
        "ignore_eos": st.booleans(),
        "n": st.integers(1, 3),
    },
)
PROMPTS = st.lists(
    st.sampled_from(["a", "the fox", "日本 🎉", "two\nlines", ""]), min_size=1, max_size=2
)


@settings(
    max_examples=25, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(PROMPTS, DRAWN)
def test_an_inference_is_a_completion(http, generator, prompts, fields):
    """The same requests, and the same texts."""
    generator.requests.clear()
    fields = {"seed": 1} | fields
    whole = http.post("/v1/completions", json={"prompt": prompts, "model": "tiny", **fields})
    if whole.status_code != 200:
        assert infer(http, texts(*prompts), parameters=fields).status_code == whole.status_code
        return
    wanted = [each["text"] for each in whole.json()["choices"]]
    tensors, raw = [texts(*prompts)], [raw_texts(*(each.encode() for each in prompts))]
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        datatype = FIELDS[name].datatype
        tensors.append(tensor(name, datatype, *values))
        kinds = {"BOOL": "?", "INT64": "<i8", "FP32": "<f4"}
        raw.append(
            raw_texts(*(each.encode() for each in values))
            if datatype == "BYTES"
            else np.array(values, kinds[datatype]).tobytes()
        )
    answers = [infer(http, *tensors), infer(http, texts(*prompts), parameters=fields)]
    headers, content = binary_body({"inputs": tensors}, *raw)
    answers.append(http.post(INFER, headers=headers, content=content))
    for answer in answers:
        assert columns(answer.json())["text_output"] == wanted
    flat = http.post(GENERATE, json={"text_input": prompts, **fields}).json()["text_output"]
    assert (flat if isinstance(flat, list) else [flat]) == wanted
    asked = [(tuple(each.prompt_tokens), each.sampling) for each in generator.requests]
    count = len(wanted)
    assert len(asked) == 5 * count
    assert all(asked[at : at + count] == asked[:count] for at in range(count, 5 * count, count))


def test_generate_is_flat(http):
    answer = http.post(GENERATE, json={"text_input": "a", "max_tokens": 20, "id": "x"})
    assert answer.json() == {
        "model_name": "tiny",
        "model_version": "1",
        "id": "x",
        "text_output": "hello world",
        "finish_reason": "stop",
        "num_input_tokens": 1,
        "num_output_tokens": 4,
    }
    # As the examples of TensorRT-LLM's backend have it.
    words = {"bad_words": "", "stop_words": [""], "stream": False, "return_log_probs": False}
    body = {"text_input": "a", "parameters": {"max_tokens": 20, **words}}
    assert http.post(GENERATE, json=body).json()["text_output"] == "hello world"
    body["parameters"]["stop_words"] = ["wor"]
    assert http.post(GENERATE, json=body).json()["text_output"] == "hello "
    several = http.post(GENERATE, json={"text_input": ["a", "b"], "max_tokens": 20}).json()
    assert several["text_output"] == ["hello world"] * 2


def test_streams_bring_text_as_it_comes(http):
    answer = http.post(STREAM, json={"text_input": "a", "max_tokens": 20})
    assert answer.headers["content-type"].startswith("text/event-stream")
    said = events(answer.text)
    assert len(said) > 2
    assert "".join(each["text_output"] for each in said) == "hello world"
    assert "finish_reason" not in said[0]
    assert said[-1]["finish_reason"] == "stop"
    assert said[-1]["num_output_tokens"] == 4
    one = events(
        http.post(STREAM, json={"text_input": "a", "max_tokens": 20, "stream": False}).text
    )
    assert [each["text_output"] for each in one] == ["hello world"]
    streamed = events(infer(http, texts("a"), TOKENS, parameters={"stream": True}).text)
    assert "".join(columns(each)["text_output"][0] for each in streamed) == "hello world"
    finals = [each["parameters"]["triton_final_response"] for each in streamed]
    assert finals == [False] * (len(streamed) - 1) + [True]


def test_a_stream_that_breaks_ends_with_an_error(http, generator):
    generator.script.failure, generator.script.fail_after = EngineFailed("it broke"), 2
    said = events(http.post(STREAM, json={"text_input": "a", "max_tokens": 20}).text)
    assert said[-1] == {"error": "it broke"}


def test_a_client_who_leaves_frees_what_it_holds(http, generator):
    generator.script.hold_after = 1
    body = {"text_input": "a", "max_tokens": 20}
    with http.stream("POST", STREAM, json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        generator.wait_until_running(1)
    generator.wait_until_running(0)


@pytest.mark.parametrize("path", [INFER, GENERATE, STREAM])
def test_calls_count_as_load(http, generator, path):
    generator.script.hold_after = 1
    # The answer that is held is over at its deadline.
    fields = {"deadline_s": 0.2}
    body = {"inputs": [texts("a")]} if path == INFER else {"text_input": "a"}
    body["parameters"] = fields
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.post, path, json=body)
        generator.wait_until_running(1)
        assert http.get("/load").json() == {"server_load": 1}
        assert answer.result().status_code == 200


REFUSED = [
    ([texts()], "text_input"),
    ([TOKENS], "text_input is missing"),
    ([texts("a"), texts("b")], "'text_input' is there twice"),
    ([tensor("text_input", "BYTES", "a", shape=[2])], "1 elements; its shape [2] means 2"),
    ([tensor("text_input", "BYTES", "a", "b", shape=[1, 2])], "[batch] or [batch, 1]"),
    ([tensor("text_input", "INT32", 5)], "text_input must be BYTES"),
    ([tensor("text_input", "BYTES", 5)], "text_input is BYTES"),
    ([texts(*"abcdefghi")], "text_input has 9 texts, more than 8"),
    ([texts("a"), tensor("max_token", "INT32", 5)], "'max_token' is no input"),
    ([texts("a"), tensor("max_tokens", "INT8", 300)], "max_tokens is INT8"),
    ([texts("a"), tensor("max_tokens", "INT8", -3)], "max_tokens"),
    ([texts("a"), tensor("max_tokens", "FP32", 3.5)], "max_tokens"),
    ([texts("a"), tensor("max_tokens", "INT8", 3, 4)], "max_tokens must be the same"),
    ([texts("a"), tensor("max_tokens", "INT8")], "max_tokens must have one value"),
    ([texts("a"), tensor("temperature", "BYTES", "hot")], "temperature"),
    ([texts("a"), tensor("temperature", "BYTES", "[1]")], "temperature"),
    ([texts("a"), tensor("temperature", "FP32", -9.0)], "temperature"),
    ([texts("a"), tensor("temperature", "FP32", 1e39)], "temperature has a value"),
    ([texts("a"), tensor("temperature", "FP32", 10**400)], "temperature"),
    ([texts("a"), tensor("sampling_parameters", "BYTES", "{")], "sampling_parameters is not JSON"),
    ([texts("a"), tensor("sampling_parameters", "BYTES", "[]")], "must be a JSON object"),
    ([texts("a"), tensor("sampling_parameters", "BYTES", '{"tops":1}')], "'tops'"),
    ([texts("a"), tensor("logprobs", "INT32", 2)], "logprobs has no output"),
    ([texts("a"), tensor("beam_width", "INT32", 2)], "beam_width is not supported"),
    ([texts("a"), tensor("stream", "BOOL", True), tensor("n", "INT8", 2)], "stream needs one"),
    ([texts("a" * 9000)], "text_input has 9000 tokens"),
    ([tensor("text_input", "WORDS", "a")], "datatype"),
    ([tensor("text_input", "BYTES", "a", shape=[-1])], "shape"),
    ([tensor("text_input", "BYTES", "a", shape=[10**4000] * 8)], "shape"),
    ([{"name": "text_input", "datatype": "BYTES", "shape": [1]}], "text_input must have either"),
    ([texts("a") | {"parameters": {"shared_memory_region": "x"}}], "shared_memory_region"),
    ([texts("a") | {"more": 1}], "more"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "words"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(http, inputs, words):
    answer = infer(http, *inputs)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"outputs": [{"name": "sentiment"}]}, "'sentiment' is no output"),
        (
            {"outputs": [{"name": "text_output", "parameters": {"classification": 2}}]},
            "classificat",
        ),
        ({"parameters": {"timeout": 500}}, "say deadline_s"),
        ({"parameters": {"seed": 3, "sampling_parameters": '{"seed": 4}'}}, "seed is said twice"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output"),
        ({"parameters": {"prompt": "b"}}, "prompt"),
        ({"parameters": {"return_finish_reason": "no"}}, "return_finish_reason"),
        ({"model": "tiny"}, "model"),
    ],
)
def test_other_parts_of_a_call_are_refused_by_name(http, more, words):
    answer = infer(http, texts("a"), **more)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text_input": "a", "stream": True}, "/generate_stream"),
        ({"text_input": "a", "model": "nobody"}, "model is not that of the path"),
        ({"text_input": "a", "temperatur": 1}, "temperature"),
        ({"text_input": 5}, "text_input"),
        ({"text_input": "a", "parameters": {"end_id": 2}}, "end_id"),
        ({"text_input": []}, "text_input"),
    ],
)
def test_flat_bodies_are_refused_by_name(http, body, words):
    answer = http.post(GENERATE, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_bytes_that_do_not_fit_are_refused_by_name(http):
    body = {"inputs": [texts("a"), TOKENS]}
    number = struct.pack("<i", 5)
    for raw, words in {
        (b"\x05\0\0\0ab", number): "text_input breaks off in its element 0",
        (b"\x01\0", number): "text_input breaks off",
        (raw_texts(b"a", b"b"), number): "2 elements; its shape [1] means 1",
        (raw_texts(b"\xff"), number): "text_input element 0 is not UTF-8",
        (raw_texts(b"a"), b"\0\0\0"): "max_tokens has 3 bytes",
    }.items():
        headers, content = binary_body(body, *raw)
        answer = http.post(INFER, headers=headers, content=content)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
    headers, content = binary_body(body, raw_texts(b"a"), number)
    for spoilt in (content + b"x", content[:-1]):
        answer = http.post(INFER, headers=headers, content=spoilt)
        assert answer.status_code == 400
    for length in ("0", "-5", "abc", "9" * 400, str(len(content) + 1), "5"):
        named = {"Inference-Header-Content-Length": length}
        assert http.post(INFER, headers=named, content=content).status_code == 400
    # What a form may send, and what a page of another server may.
    for media_type in ("text/plain", "application/x-www-form-urlencoded"):
        answer = http.post(INFER, headers={"Content-Type": media_type}, content=b"{}")
        assert answer.status_code == 415
    answer = http.post(INFER, headers={"Origin": "http://a.b"}, content=b"{}")
    assert answer.status_code == 403
    assert http.post(INFER, content=b"x" * (2 << 20)).status_code == 413


@settings(
    max_examples=80, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.data())
def test_no_bytes_make_it_fail(http, data):
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    datatypes = st.sampled_from(["BOOL", "UINT8", "INT32", "UINT64", "FP16", "FP32", "BYTES"])
    names = st.sampled_from([*FIELDS, "sampling_parameters", "stop_words", "x"])
    inputs = [texts("a"), tensor(data.draw(names), data.draw(datatypes), shape=shape)]
    raw = [raw_texts(b"a"), data.draw(st.binary(max_size=24))]
    headers, content = binary_body({"inputs": inputs}, *raw)
    assert http.post(INFER, headers=headers, content=content).status_code in (200, 400)


def test_keys_limits_and_the_log_are_those_of_every_call(generator, text):
    lines = Lines()
    with client_of(build_app(generator, text, ApiConfig(api_keys=("sesam",)), lines)) as http:
        assert http.get("/v2/health/live").status_code == 200
        assert http.get("/v2/health/ready").status_code == 200
        for refused in (http.get("/v2"), infer(http, texts("a")), http.get("/v2/models/tiny")):
            assert refused.status_code == 401
            assert "API key" in refused.json()["error"]
        http.headers["Authorization"] = "Bearer sesam"
        assert infer(http, texts("a", "b"), TOKENS).status_code == 200
        generator.script.refusals = {0: Overloaded("too many wait", 3.0)}
        busy = infer(http, texts("a"), TOKENS)
        assert busy.status_code == 429
        assert busy.json() == {"error": "too many wait"}
        assert int(busy.headers["Retry-After"]) >= 3
        page = http.get("/metrics").text
    logged = next(line for line in lines if line["answers"] == 2)
    assert logged["path"] == INFER
    assert logged["model"] == "tiny"
    assert logged["finish_reasons"] == ["stop", "stop"]
    assert 'handler="/v2/models/{model}/infer"' in page


LABELS = LabelSpec(("good", "bad", "ugly"), "single_label_classification")


class Encoders:
    """Their vectors and scores say how long a text is."""

    failed = False
    cards = {  # noqa: RUF012
        "minilm": EncoderCard("minilm", 1, 64, 100, 2),
        "labels": EncoderCard("labels", 1, 64, 100, 2, LABELS),
        # That of the served model, whose embeddings are elsewhere.
        "tiny": EncoderCard("tiny", 1, 64, 100, 2),
    }

    def read(self, name, inputs, limit_tokens, *, truncate, field):
        if any(len(each) > limit_tokens for each in inputs) and not truncate:
            raise InvalidRequest(f"{field}[0]", "is too long")
        return [EncodedText((1,) * len(each), (0,) * len(each)) for each in inputs]

    async def encode(self, name, given, wanted, *, priority=0, timeout_s=0.0):
        more = [priority] if wanted == "vector" else [8, 9]
        return [np.array([len(each.token_ids), *more], np.float32) for each in given]


def test_encoders_with_labels_give_their_scores(generator, text):
    path = "/v2/models/labels"
    with client_of(build_app(generator, text, ApiConfig(), encoders=Encoders())) as http:
        outputs = http.get(path).json()["outputs"]
        assert [(each["name"], each["shape"]) for each in outputs] == [
            ("scores", [-1, 3]),
            ("embedding", [-1, 2]),
        ]
        body = {"inputs": [texts("abc", "d")]}
        answer = http.post(f"{path}/infer", json=body).json()
        assert columns(answer) == {"scores": [3.0, 8.0, 9.0, 1.0, 8.0, 9.0]}
        asked = [{"name": "embedding", "parameters": {"binary_data": True}}, {"name": "scores"}]
        answer = http.post(f"{path}/infer", json=body | {"outputs": asked})
        head = int(answer.headers["Inference-Header-Content-Length"])
        scores, embedding = json.loads(answer.content[:head])["outputs"]
        assert scores["data"] == [3.0, 8.0, 9.0, 1.0, 8.0, 9.0]
        assert embedding["shape"] == [2, 2]
        assert np.frombuffer(answer.content[head:], "<f4").tolist() == [3.0, 0.0, 1.0, 0.0]


def test_encoders_are_models_too(generator, text):
    path = "/v2/models/minilm"
    with client_of(build_app(generator, text, ApiConfig(), encoders=Encoders())) as http:
        metadata = http.get(path).json()
        assert metadata["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 2]}]
        assert http.get(f"{path}/ready").json()["ready"]
        body = {"inputs": [texts("abc", "d"), tensor("priority", "INT32", 4)], "id": "e"}
        answer = http.post(f"{path}/infer", json=body).json()
        assert answer["id"] == "e"
        assert answer["outputs"] == [
            {"name": "embedding", "datatype": "FP32", "shape": [2, 2], "data": [3.0, 4.0, 1.0, 4.0]}
        ]
        asked = {"outputs": [{"name": "embedding", "parameters": {"binary_data": True}}]}
        binary = http.post(f"{path}/infer", json=body | asked)
        head = int(binary.headers["Inference-Header-Content-Length"])
        assert np.frombuffer(binary.content[head:], "<f4").tolist() == [3.0, 4.0, 1.0, 4.0]
        for inputs, words in (
            ([texts("x" * 65)], "text_input[0] is too long"),
            ([texts("x"), tensor("temperature", "FP32", 1)], "temperature"),
            ([texts("x"), tensor("sentiment", "FP32", 1)], "sentiment"),
        ):
            refused = http.post(f"{path}/infer", json={"inputs": inputs})
            assert refused.status_code == 400
            assert words in refused.json()["error"]
        refused = http.post(f"{path}/infer", json=body | {"outputs": [{"name": "text_output"}]})
        assert refused.status_code == 400
        assert columns(infer(http, texts("a"), TOKENS).json())["text_output"] == ["hello world"]
        assert http.get("/v2/models/tiny").json()["outputs"][0]["name"] == "text_output"
