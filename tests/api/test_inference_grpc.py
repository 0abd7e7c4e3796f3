"""The Open Inference Protocol over gRPC: the bytes of its messages, and calls of a real server."""

import dataclasses
import json
import queue
import threading
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.kserve.grpc_messages import (
    ModelInferRequest,
    ModelMetadataResponse,
    ModelStreamInferResponse,
    ServerMetadataResponse,
    message_class,
)
from tandem.facts.errors import EngineFailed, InvalidConfiguration, Overloaded
from tandem.live.grpc_server import GrpcLimits, GrpcServer
from tests.api.grpc_calls import (
    LIMITS,
    Stubs,
    infer_request,
    output_texts,
    running_grpc,
    stubs_of,
)
from tests.api.test_access_log import Lines

PATIENCE_S = 20.0
Code = grpc.StatusCode
# As the generated classes of the protocol's own file write them.
REQUEST = (
    "0a016d1201311a016922100a0a626f6f6c5f706172616d1202080122190a0c646f75626c655f706172616d12092100"
    "0000000000e03f221a0a0b696e7436345f706172616d120b10feffffffffffffffff0122130a0c737472696e675f70"
    "6172616d12031a0173221b0a0c75696e7436345f706172616d120b28808080808080808080012a560a016e12054259"
    "5445531a0b01ffffffffffffffffff0122070a0161120208012a340a0101120affffffffffffffffff011a0afeffff"
    "ffffffffffff012201032a010432040000003f3a08000000000000d03f4201ff320d0a016f12080a016212031a0178"
    "3a020102"
)
STREAMED = (
    "0a016512480a016d1201311a0169221b0a15747269746f6e5f66696e616c5f726573706f6e7365120208012a1d0a01"
    "6e1204465033321a010122070a0161120210012a0632040000c03f320103"
)
METADATA = (
    "0a016d1201311a017022160a0161120542595445531a0affffffffffffffffff012a160a01621204465033321a0bff"
    "ffffffffffffffff0102"
)


@pytest.fixture(scope="module")
def stubs(the_generator, text):
    with stubs_of(build_app(the_generator, text, ApiConfig(max_choices=8))) as stubs:
        yield stubs


def refusal(call) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value


def fed() -> tuple["queue.Queue", Iterator]:
    """What is put into the queue is sent; None ends the stream."""
    waiting: queue.Queue = queue.Queue()
    return waiting, iter(waiting.get, None)


def test_messages_have_the_bytes_of_the_protocol():
    request = ModelInferRequest(model_name="m", model_version="1", id="i")
    values = {"bool": True, "int64": -2, "string": "s", "double": 0.5, "uint64": 2**63}
    for kind, value in values.items():
        setattr(request.parameters[f"{kind}_param"], f"{kind}_param", value)
    tensor = request.inputs.add(name="n", datatype="BYTES", shape=[1, -1])
    tensor.parameters["a"].bool_param = True
    contents = {"bool": True, "int": -1, "int64": -2, "uint": 3, "uint64": 4, "fp32": 0.5}
    for kind, value in (contents | {"fp64": 0.25, "bytes": b"\xff"}).items():
        getattr(tensor.contents, f"{kind}_contents").append(value)
    request.outputs.add(name="o").parameters["b"].string_param = "x"
    request.raw_input_contents.append(b"\x01\x02")
    assert request.SerializeToString(deterministic=True).hex() == REQUEST
    streamed = ModelStreamInferResponse(error_message="e")
    response = streamed.infer_response
    response.model_name, response.model_version, response.id = "m", "1", "i"
    response.parameters["triton_final_response"].bool_param = True
    output = response.outputs.add(name="n", datatype="FP32", shape=[1])
    output.parameters["a"].int64_param = 1
    output.contents.fp32_contents.append(1.5)
    response.raw_output_contents.append(b"\x03")
    assert streamed.SerializeToString(deterministic=True).hex() == STREAMED
    metadata = ModelMetadataResponse(name="m", versions=["1"], platform="p")
    metadata.inputs.add(name="a", datatype="BYTES", shape=[-1])
    metadata.outputs.add(name="b", datatype="FP32", shape=[-1, 2])
    assert metadata.SerializeToString().hex() == METADATA
    server = ServerMetadataResponse(name="n", version="v", extensions=["e", "f"])
    assert server.SerializeToString().hex() == "0a016e1201761a01651a0166"
    for name, field in (("ServerLive", "live"), ("ServerReady", "ready"), ("ModelReady", "ready")):
        response = message_class(f"{name}Response")(**{field: True})
        assert response.SerializeToString().hex() == "0801"
    for name in ("ModelReady", "ModelMetadata"):
        request = message_class(f"{name}Request")(name="m", version="1")
        assert request.SerializeToString().hex() == "0a016d120131"


def test_server_and_models_say_what_they_are(stubs, generator):
    assert stubs.call("ServerLive").live
    assert stubs.call("ServerReady").ready
    assert stubs.call("ServerMetadata").name == "tandem"
    ready, about = message_class("ModelReadyRequest"), message_class("ModelMetadataRequest")
    assert stubs.call("ModelReady", ready(name="org/tiny", version="1")).ready
    assert not stubs.call("ModelReady", ready(name="tiny", version="2")).ready
    assert not stubs.call("ModelReady", ready(name="nobody")).ready
    metadata = stubs.call("ModelMetadata", about(name="tiny"))
    assert metadata.versions == ["1"]
    assert metadata.inputs[0].name == "text_input"
    assert list(metadata.inputs[0].shape) == [-1]
    # What stands under a model is not a model.
    for name, version in (("nobody", ""), ("nobody", "1"), ("tiny/ready", ""), ("tiny", "1/ready")):
        error = refusal(lambda: stubs.call("ModelMetadata", about(name=name, version=version)))  # noqa: B023
        assert error.code() is Code.NOT_FOUND
        assert f"'{name}' does not exist" in error.details()
    generator.ready = False
    assert not stubs.call("ServerReady").ready
    assert stubs.call("ServerLive").live


def test_texts_are_continued_as_bytes_or_as_contents(stubs, generator):
    request = infer_request("a", "日本", max_tokens=20, seed=3)
    request.id = "7"
    response = stubs.call("ModelInfer", request)
    assert (response.model_name, response.model_version, response.id) == ("tiny", "1", "7")
    assert output_texts(response) == ["hello world"] * 2
    assert [list(each.shape) for each in response.outputs] == [[2]] * 4
    request.ClearField("raw_input_contents")
    request.inputs[0].contents.bytes_contents.extend([b"a", "日本".encode()])
    top = request.inputs.add(name="top_p", datatype="FP32", shape=[1])
    top.contents.fp32_contents.append(0.7)
    response = stubs.call("ModelInfer", request)
    assert not response.raw_output_contents
    outputs = {each.name: each.contents for each in response.outputs}
    assert list(outputs["text_output"].bytes_contents) == [b"hello world"] * 2
    assert list(outputs["num_output_tokens"].uint_contents) == [4, 4]
    assert generator.requests[-1].sampling.top_p == 0.7
    request.outputs.add(name="finish_reason")
    assert [each.name for each in stubs.call("ModelInfer", request).outputs] == ["finish_reason"]


def test_streams_bring_text_as_it_comes(stubs):
    streamed = [
        each.infer_response
        for each in stubs.stream(iter([infer_request("a", stream=True, max_tokens=20)]))
    ]
    assert len(streamed) > 2
    assert "".join(output_texts(each)[0] for each in streamed) == "hello world"
    finals = [each.parameters["triton_final_response"].bool_param for each in streamed]
    assert finals == [False] * (len(streamed) - 1) + [True]
    assert "finish_reason" in {each.name for each in streamed[-1].outputs}


def test_requests_of_one_stream_are_answered_side_by_side(stubs, generator):
    generator.script.hold_after = 1
    waiting, requests = fed()
    responses = stubs.stream(requests)
    for name in ("one", "two"):
        request = infer_request("a", stream=True, max_tokens=20)
        request.id = name
        waiting.put(request)
    assert {next(responses).infer_response.id for _ in range(2)} == {"one", "two"}
    generator.wait_until_running(2)
    generator.script.hold_after = None
    # An error is one answer of several, and a request without `stream` has one.
    spoilt = infer_request("a", max_tokens=-5)
    spoilt.id = "spoilt"
    for request in (spoilt, b"\xff\xff", infer_request("a", "b", max_tokens=20)):
        waiting.put(request)
    others = [next(responses) for _ in range(3)]
    errors = {each.error_message: each.infer_response.id for each in others if each.error_message}
    assert sorted(errors.values()) == ["", "spoilt"]
    assert any("max_tokens" in message for message in errors)
    whole = next(each.infer_response for each in others if not each.error_message)
    assert output_texts(whole) == ["hello world"] * 2
    assert whole.parameters["triton_final_response"].bool_param
    responses.cancel()
    generator.wait_until_running(0)
    waiting.put(None)


def test_a_stream_that_breaks_says_so_and_goes_on(stubs, generator):
    generator.script.failure, generator.script.fail_after = EngineFailed("it broke"), 2
    waiting, requests = fed()
    responses = stubs.stream(requests)
    waiting.put(infer_request("a", stream=True, max_tokens=20))
    said = next(responses)
    while not said.error_message:
        said = next(responses)
    assert said.error_message == "it broke"
    generator.script.failure = None
    waiting.put(infer_request("a", max_tokens=20))
    assert output_texts(next(responses).infer_response) == ["hello world"]
    waiting.put(None)
    assert list(responses) == []


def test_a_client_who_leaves_frees_what_it_holds(stubs, generator):
    generator.script.hold_after = 1
    call = stubs.method("ModelInfer").future(infer_request("a", "b", max_tokens=20))
    generator.wait_until_running(2)
    call.cancel()
    generator.wait_until_running(0)
    error = refusal(lambda: stubs.method("ModelInfer")(infer_request("a"), timeout=0.3))
    assert error.code() is Code.DEADLINE_EXCEEDED
    generator.wait_until_running(0)


def with_contents(datatype: str, **contents):
    request = ModelInferRequest(model_name="tiny")
    request.inputs.add(name="text_input", datatype=datatype, shape=[1], contents=contents)
    return request


def twice():
    request = with_contents("BYTES", bytes_contents=[b"a"])
    request.raw_input_contents.append(b"")
    return request


REFUSED = [
    (infer_request("a", model="nobody"), Code.NOT_FOUND, "nobody"),
    (infer_request("a", model=""), Code.NOT_FOUND, "does not exist"),
    (infer_request("a", temperatur=1.0), Code.INVALID_ARGUMENT, "temperatur"),
    (infer_request("a", stream=True), Code.INVALID_ARGUMENT, "ModelStreamInfer"),
    (infer_request("a" * 9000), Code.INVALID_ARGUMENT, "text_input has 9000 tokens"),
    (infer_request(*"abcdefghi"), Code.INVALID_ARGUMENT, "text_input has 9 texts"),
    (with_contents("BYTES", int_contents=[1]), Code.INVALID_ARGUMENT, "bytes_contents"),
    (with_contents("FP16"), Code.INVALID_ARGUMENT, "raw_input_contents"),
    (with_contents("WORDS"), Code.INVALID_ARGUMENT, "datatype"),
    (with_contents("INT8", int_contents=[300]), Code.INVALID_ARGUMENT, "INT8"),
    (with_contents("BYTES", bytes_contents=[b"\xff"]), Code.INVALID_ARGUMENT, "UTF-8"),
    (twice(), Code.INVALID_ARGUMENT, "raw_input_contents"),
    (ModelInferRequest(model_name="tiny"), Code.INVALID_ARGUMENT, "inputs"),
    (b"\xff\xff", Code.INVALID_ARGUMENT, "cannot be read"),
]


@pytest.mark.parametrize(("request_", "code", "words"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(stubs, generator, request_, code, words):
    error = refusal(lambda: stubs.call("ModelInfer", request_))
    assert error.code() is code
    assert words in error.details()


CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from(["text_input", "max_tokens", "stop", "top_p", "sampling_parameters", "x"])
DATATYPES = st.sampled_from(["BOOL", "INT32", "UINT64", "FP16", "FP32", "BYTES", "x"])


@st.composite
def messages(draw):
    request = ModelInferRequest(model_name=draw(st.sampled_from(["tiny", "", "a/\n%2f", "tiny/x"])))
    request.model_version = draw(st.sampled_from(["", "", "1", "\x00", "../.."]))
    request.id = draw(CHARACTERS)
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2), max_size=3))
        tensor = request.inputs.add(name=draw(NAMES), datatype=draw(DATATYPES), shape=shape)
        tensor.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=8), max_size=2)))
        tensor.contents.int_contents.extend(draw(st.lists(st.integers(-9, 9), max_size=2)))
        if draw(st.booleans()):
            tensor.ClearField("contents")
    request.raw_input_contents.extend(draw(st.lists(st.binary(max_size=12), max_size=3)))
    for name in draw(st.lists(NAMES | CHARACTERS, max_size=2)):
        request.parameters[name].double_param = draw(st.floats())
    return request


@settings(
    max_examples=80, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(messages() | st.binary(max_size=60))
def test_no_message_makes_it_fail(stubs, generator, message):
    try:
        stubs.call("ModelInfer", message)
    except grpc.RpcError as error:
        assert error.code() in (Code.INVALID_ARGUMENT, Code.NOT_FOUND), error
    (streamed,) = stubs.stream(iter([message]))
    assert streamed.error_message or streamed.infer_response.outputs


PARTS = st.sampled_from(["tiny", "ready", "infer", "versions", "1", "", "..", "%2f", "?", "\x00"])


@settings(
    max_examples=40, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    st.sampled_from(["ModelMetadata", "ModelReady"]),
    st.lists(PARTS | CHARACTERS, max_size=4).map("/".join),
    st.lists(PARTS | CHARACTERS, max_size=2).map("/".join),
)
def test_no_name_makes_it_fail(stubs, generator, method, name, version):
    try:
        stubs.call(method, message_class(f"{method}Request")(name=name, version=version))
    except grpc.RpcError as error:
        assert error.code() is Code.NOT_FOUND, error


def test_keys_limits_and_the_log_are_those_of_http(generator, text):
    lines = Lines()
    config = ApiConfig(api_keys=("sesam",))
    app = build_app(generator, text, config, lines)
    limits = GrpcLimits(1 << 10, 1 << 20, calls=100, connections=100)
    with stubs_of(app, limits, config) as stubs:
        key = (("authorization", "Bearer sesam"), ("x-request-id", "mine"))
        assert stubs.call("ServerLive").live
        assert stubs.call("ServerReady").ready
        asked = infer_request("a", max_tokens=20)
        for call in (
            lambda: stubs.call("ServerMetadata"),
            lambda: stubs.call("ModelInfer", asked),
            lambda: stubs.call("ModelInfer", asked, metadata=(("authorization", "Bearer x"),)),
            # Before anything more is read.
            lambda: list(stubs.stream(fed()[1])),
        ):
            assert refusal(call).code() is Code.UNAUTHENTICATED
        assert output_texts(stubs.call("ModelInfer", asked, metadata=key)) == ["hello world"]
        assert output_texts(next(stubs.stream(iter([asked]), metadata=key)).infer_response)
        generator.script.refusals = {0: Overloaded("too many wait", 3.0)}
        busy = refusal(lambda: stubs.call("ModelInfer", asked, metadata=key))
        assert busy.code() is Code.RESOURCE_EXHAUSTED
        assert busy.details() == "too many wait"
        told = dict(busy.trailing_metadata())
        assert int(told["retry-after"]) >= 3
        assert told["x-request-id"] == "mine"
        large = infer_request("a" * (1 << 17))
        large = refusal(lambda: stubs.call("ModelInfer", large, metadata=key))
        assert large.code() is Code.RESOURCE_EXHAUSTED
    logged = next(line for line in lines if line["answers"] == 1)
    assert logged["path"] == "/v2/models/tiny/infer"
    assert logged["request_id"] == "mine"
    assert logged["key"]
    assert logged["output_tokens"] == 4


def test_its_end_waits_for_calls_under_way(generator, text):
    generator.script.hold_after = 1
    with running_grpc(build_app(generator, text, ApiConfig())) as running:
        stubs = Stubs(running.server.port)
        method = stubs.method("ModelInfer")
        # The answer that is held is over at its deadline.
        call = method.future(infer_request("a", deadline_s=0.4))
        generator.wait_until_running(1)
        running.run(running.server.stop(PATIENCE_S))
        assert output_texts(call.result(PATIENCE_S)) == ["he"]
        stubs.channel.close()


def test_its_end_does_not_wait_for_idle_streams(generator, text):
    with running_grpc(build_app(generator, text, ApiConfig())) as running:
        stubs, (waiting, requests) = Stubs(running.server.port), fed()
        with stubs.channel:
            responses = stubs.stream(requests)
            waiting.put(infer_request("a", max_tokens=20))
            assert output_texts(next(responses).infer_response) == ["hello world"]
            # Forever, if it did.
            running.run(running.server.stop(2 * PATIENCE_S))
            assert list(responses) == []
            waiting.put(None)


def test_a_message_that_does_not_come_ends_its_call(generator, text):
    limits = dataclasses.replace(LIMITS, message_timeout_s=0.1)
    with stubs_of(build_app(generator, text, ApiConfig()), limits) as stubs:
        waiting, requests = fed()
        error = refusal(lambda: list(stubs.stream(requests, "ModelInfer")))
        waiting.put(None)
    assert error.code() is Code.DEADLINE_EXCEEDED
    assert "in time" in error.details()


def test_who_takes_nothing_of_an_answer_is_left(caplog):
    left = threading.Event()

    async def app(scope, receive, send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        part = answer_event("x" * (1 << 18))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while True:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            left.set()

    limits = dataclasses.replace(LIMITS, message_timeout_s=0.2)
    with stubs_of(app, limits) as stubs:
        waiting, requests = fed()
        waiting.put(infer_request("a", stream=True))
        responses = stubs.stream(requests)
        assert output_texts(next(responses).infer_response)
        assert left.wait(PATIENCE_S)
        with pytest.raises(grpc.RpcError):
            list(responses)
        waiting.put(None)
    assert "Traceback" not in caplog.text


def answer_event(text: str) -> bytes:
    output = {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [text]}
    return b"data: %b\n\n" % json.dumps({"model_name": "tiny", "outputs": [output]}).encode()


def test_a_fault_of_the_application_is_told_and_logged(caplog):
    async def fail(scope, receive, send) -> None:
        raise RuntimeError("a fault")

    with stubs_of(fail) as stubs:
        error = refusal(lambda: stubs.call("ModelInfer", infer_request("a")))
    assert error.code() is Code.INTERNAL
    assert error.details() == "internal error"
    assert "POST /v2/models/tiny/infer failed" in caplog.text
    assert "a fault" in caplog.text


def test_a_call_that_outlasts_the_patience_is_ended(generator, text):
    generator.script.hold_after = 1
    with running_grpc(build_app(generator, text, ApiConfig())) as running:
        stubs = Stubs(running.server.port)
        call = stubs.method("ModelInfer").future(infer_request("a"))
        generator.wait_until_running(1)
        running.run(running.server.stop(0))
        assert refusal(lambda: call.result(PATIENCE_S)).code() is not Code.OK
        generator.wait_until_running(0)
        stubs.channel.close()


def test_a_taken_port_is_said(generator, text):
    app = build_app(generator, text, ApiConfig())
    with running_grpc(app) as running:
        address = f"127.0.0.1:{running.server.port}"
        other = GrpcServer(app, address, LIMITS, lambda headers: True)
        with pytest.raises(InvalidConfiguration, match="choose another --grpc-port"):
            running.run(other.start())
