"""A user's first hour: the bundled model, the real command, the real `openai` client."""

import json
import random
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel, Field

from tests.api.grpc_calls import Stubs, infer_request, output_texts
from tests.api.inference_calls import binary_body, columns, events, raw_texts, texts
from tests.journeys.serving import free_port, run_here, run_tandem, serving
from tests.live.otlp_receiver import receiving
from tests.waiting import until

RECALL = (
    "Please remember these facts.\n- calm otter: copper\n- quiet fox: 42\n- bright lamp: silver\n"
    "What is the value of quiet fox?"
)


@pytest.fixture(scope="module")
def receiver():
    with receiving() as received:
        yield received


@pytest.fixture(scope="module")
def server(receiver):
    options = ("--max-num-seqs", "8", "--max-choices", "100", "--grpc-port", str(free_port()))
    with serving(*options, "--otlp-traces-endpoint", receiver.url) as process:
        yield process


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client, text: str, **options):
    return client.chat.completions.create(
        model="tandem-mini", messages=[{"role": "user", "content": text}], **options
    )


def metric(client, name: str) -> float:
    text = client.get("../metrics", cast_to=str)
    line = next(line for line in text.splitlines() if line.startswith(f"tandem:{name}{{"))
    return float(line.split()[-1])


def test_it_shows_how_to_try_it(server):
    assert "tandem chat" in server.greeting
    assert "curl" in server.greeting
    assert "KV cache" in server.greeting
    phases = "imports|looking at the model|tokenizer|weights|KV cache"
    shown = re.search(
        rf"started in ([\d.]+) s: ((?:(?:{phases}) [\d.]+(?:, )?){{5}})", server.greeting
    )
    seconds = [float(phase.rsplit(" ", 1)[1]) for phase in shown[2].split(", ")]
    assert sum(seconds) <= float(shown[1]) + 0.3


def grpc_stubs(server) -> Stubs:
    return Stubs(int(re.search(r"gRPC: 127\.0\.0\.1:(\d+)", server.greeting)[1]))


def test_an_inference_says_what_the_completion_says(server, client):
    """For drawn prompts and seeds: as JSON, as bytes, flat, streamed, and by gRPC."""
    chance, stubs = random.Random(5), grpc_stubs(server)
    with httpx2.Client(base_url=server.url, timeout=60) as http, stubs.channel:
        for _ in range(4):
            prompts = [" ".join(chance.sample(RECALL.split(), 5)) for _ in range(2)]
            fields = {"seed": chance.randrange(1 << 40), "temperature": 0.9, "max_tokens": 16}
            whole = client.completions.create(model="tandem-mini", prompt=prompts, **fields)
            wanted = [choice.text for choice in whole.choices]
            model = "/v2/models/tandem-mini"
            body = {"inputs": [texts(*prompts)], "parameters": fields}
            answer = http.post(f"{model}/infer", json=body).json()
            assert columns(answer)["text_output"] == wanted
            body["outputs"] = [{"name": "text_output", "parameters": {"binary_data": True}}]
            headers, content = binary_body(body, raw_texts(*map(str.encode, prompts)))
            answer = http.post(f"{model}/infer", headers=headers, content=content)
            assert answer.content.endswith(raw_texts(*map(str.encode, wanted)))
            flat = {"text_input": prompts, **fields}
            assert http.post(f"{model}/generate", json=flat).json()["text_output"] == wanted
            flat = {"text_input": prompts[0], **fields}
            streamed = events(http.post(f"{model}/generate_stream", json=flat).text)
            assert "".join(each["text_output"] for each in streamed) == wanted[0]
            request = infer_request(*prompts, model="tandem-mini", **fields)
            assert output_texts(stubs.call("ModelInfer", request)) == wanted
            request = infer_request(prompts[1], model="tandem-mini", stream=True, **fields)
            streamed = [each.infer_response for each in stubs.stream(iter([request]))]
            assert "".join(output_texts(each)[0] for each in streamed) == wanted[1]


def test_a_chat_is_answered_in_words_and_ends_by_itself(client):
    answer = ask(client, "Hello!", temperature=0).choices[0]
    assert answer.finish_reason == "stop"
    assert len(answer.message.content.split()) >= 2


def test_a_call_may_start_as_many_sequences_as_the_operator_allows(client):
    answer = ask(client, "Hello!", n=100, max_tokens=1)
    assert [each.index for each in answer.choices] == list(range(100))
    with pytest.raises(openai.BadRequestError, match="more than 100"):
        ask(client, "Hello!", n=101, max_tokens=1)


def test_greedy_streamed_and_batched_answers_are_one_and_the_same(client):
    whole = ask(client, RECALL, temperature=0, max_tokens=24)
    text = whole.choices[0].message.content

    def streamed(_: int) -> str:
        chunks = ask(client, RECALL, temperature=0, max_tokens=24, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(streamed, range(24))) == {text}


def test_a_seed_decides_whatever_else_runs(client):
    def sampled(seed: int) -> str:
        answer = ask(client, "Tell me a story.", temperature=1.0, seed=seed, max_tokens=40)
        return answer.choices[0].message.content

    alone = [sampled(seed) for seed in range(6)]
    with ThreadPoolExecutor(18) as pool:
        together = list(pool.map(sampled, [seed for seed in range(6) for _ in range(3)]))
    assert together == [text for text in alone for _ in range(3)]
    assert len(set(alone)) > 1


def test_the_samples_of_a_vote_are_the_choices_of_a_call(client):
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 120}
    choices = ask(client, "What is 73 * 58?", n=6, **sampling).choices
    written = [each.message.content.rpartition("Answer:")[2].strip() for each in choices]
    scaling = {"method": "self-consistency", "samples": 6, "vote": "after:Answer:"}
    answer = ask(client, "What is 73 * 58?", extra_body={"scaling": scaling}, **sampling)
    leader = max(written, key=lambda each: (written.count(each), -written.index(each)))
    assert answer.scaling["answer"] == leader
    assert answer.choices[0].message.content in [each.message.content for each in choices]
    assert metric(client, "num_requests_running") == 0


def test_logprobs_are_equal_to_the_last_bit_in_any_company(client):
    def logprobs(_: int) -> list[float]:
        answer = ask(client, "Hello!", temperature=0, max_tokens=12, logprobs=True, top_logprobs=3)
        return [entry.logprob for entry in answer.choices[0].logprobs.content]

    alone = logprobs(0)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == alone for found in pool.map(logprobs, range(8)))


def test_several_answers_share_their_prompt(client):
    prompt = " ".join(["The garden is green."] * 40)
    before = metric(client, "prefix_cache_hits_total")
    answer = client.completions.create(
        model="tandem-mini",
        prompt=prompt,
        n=4,
        temperature=1.0,
        seed=3,
        max_tokens=8,
        extra_body={"ignore_eos": True},
    )
    assert len({choice.text for choice in answer.choices}) > 1
    shared = metric(client, "prefix_cache_hits_total") - before
    assert shared == 3 * ((answer.usage.prompt_tokens - 1) // 16) * 16


def test_a_repeated_prompt_is_found_in_the_cache(client):
    text = "Read this list carefully.\n" + "\n".join(f"- thing {n}: {n}" for n in range(40))
    first = ask(client, text, max_tokens=1)
    again = ask(client, text, max_tokens=1)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens_details.cached_tokens > 100


def test_the_next_turn_goes_on_from_the_last_token_that_was_computed(client):
    known = [*range(100, 137)]
    first = client.completions.create(
        model="tandem-mini",
        prompt=known,
        temperature=0,
        max_tokens=8,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    said = first.choices[0].token_ids
    next_turn = [*known, *said, *range(200, 220)]
    again = client.completions.create(
        model="tandem-mini", prompt=next_turn, temperature=0, max_tokens=8
    )
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached == len(known) + len(said) - 1
    assert cached % 16
    # What it is made of is as good as what is computed anew.
    fresh = client.completions.create(
        model="tandem-mini",
        prompt=next_turn,
        temperature=0,
        max_tokens=8,
        extra_body={"cache_salt": "another"},
    )
    assert fresh.usage.prompt_tokens_details.cached_tokens == 0
    assert fresh.choices[0].text == again.choices[0].text


def test_a_client_who_leaves_frees_its_slot(client):
    stream = client.completions.create(
        model="tandem-mini",
        prompt="Once",
        max_tokens=3000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    for _ in range(2000):
        if metric(client, "num_requests_running") == 0:
            break
    assert metric(client, "num_requests_running") == 0
    assert metric(client, "kv_cache_usage_perc") == 0


def test_bad_requests_are_refused_and_disturb_nobody(client):
    with pytest.raises(openai.BadRequestError, match="context"):
        ask(client, "word " * 20_000)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        ask(client, "Hello!", max_tokens=-1)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert ask(client, "Hello!", temperature=0).choices[0].message.content


def test_the_terminal_commands_talk_to_it(server):
    completed = run_tandem(
        "complete", "Tell me a story.", "--url", server.url, "--temperature", "0", own_process=True
    )
    assert completed.returncode == 0, completed.stderr
    # It ends by itself, with a sentence.
    assert completed.stdout.strip().endswith(".")
    chatted = run_tandem("chat", "--url", server.url, stdin="Hello!\n")
    assert chatted.returncode == 0, chatted.stderr
    assert chatted.stdout.strip()


def test_bench_measures_it(server, tmp_path):
    output = tmp_path / "bench.json"
    done = run_tandem(
        "bench", "--url", server.url, "--num-prompts", "6", "--request-rate", "50",
        "--random-input-len", "32", "--random-output-len", "8", "--output", str(output),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
    assert json.loads(output.read_text())


def test_with_keys_and_no_compiled_kernels_it_serves_the_same_until_sigterm(client):
    asked = ("--api-key", "first", "--api-key", "second", "--grpc-port", str(free_port()))
    with serving("--no-native-kernels", "--max-num-seqs", "2", *asked) as process:
        assert "plain torch" in process.greeting
        wrong = openai.OpenAI(base_url=f"{process.url}/v1", api_key="third", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        right = openai.OpenAI(base_url=f"{process.url}/v1", api_key="second", max_retries=0)
        assert right.models.list().data[0].id == "tandem-mini"
        answers = [
            ask(one, RECALL, temperature=0, max_tokens=16).choices[0].message.content
            for one in (right, client)
        ]
        assert answers[0] == answers[1]
        # An answer by gRPC that has begun is finished first.
        fields = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.0}
        request = infer_request("Once", model="tandem-mini", stream=True, **fields)
        stubs, key = grpc_stubs(process), (("authorization", "Bearer first"),)
        with stubs.channel:
            streamed = stubs.stream(iter([request]), metadata=key)
            said = [next(streamed)]
            process.process.terminate()
            said += list(streamed)
        assert said[-1].infer_response.parameters["triton_final_response"].bool_param
        assert process.process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/such/model"], "no directory"),
        (["--max-model-len", "100000"], "max-model-len 100000"),
        (["--dtype", "fp32"], "dtype"),
        (["--block-size", "0"], "block-size"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments, words):
    failed = run_here("serve", "--port", "0", *arguments)
    assert failed.returncode == 2
    assert words in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_taken_port_is_one_line_and_nothing_else(option):
    """Of the whole process, imports, logs and threads included."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = [] if option == "--port" else ["--port", "0"]
        failed = run_tandem("serve", *own, option, str(taken.getsockname()[1]))
    assert failed.returncode == 2
    assert "cannot listen" in failed.stderr
    assert f"choose another {option}" in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr


def test_a_second_signal_ends_running_answers_with_an_error_that_the_client_gets():
    with serving("--max-num-seqs", "8") as process:
        client = openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model="tandem-mini",
            prompt="Once",
            n=8,
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        process.process.terminate()
        # The first signal has been heeded when nobody new is let in; a second one sent before that
        # would be one and the same to the system.
        while accepts_connections(process.url):
            pass
        process.process.terminate()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert process.process.wait(30) == 0
        assert "waiting for 1 request under way, 10 s at most" in process.process.stdout.read()


def test_a_cluster_says_what_its_end_waits_for_and_a_second_signal_kills_it():
    port = free_port()
    asked = ("--workers", "1", "--kv-cache-memory", "64MiB", "--grpc-port", str(port))
    with serving(*asked) as process:
        stubs = Stubs(port)
        with stubs.channel:
            request = infer_request("Once", model="tandem-mini", max_tokens=4)
            assert output_texts(stubs.call("ModelInfer", request))[0]
        client = openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model="tandem-mini",
            prompt="Once",
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        process.process.send_signal(signal.SIGINT)
        told = next(line for line in process.process.stdout if "ending" in line)
        assert "waiting for 1 request under way, 10 s at most; Ctrl-C again" in told
        process.process.send_signal(signal.SIGINT)
        # The answer has ten seconds, which nobody waits for any more.
        assert process.process.wait(5) == 0
        assert not accepts_connections(process.url)


def accepts_connections(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionError:  # refused, or reset when the listener closed just then
        return False
    return True


class Treasure(BaseModel, extra="forbid"):
    colour: Literal["copper", "silver", "gold"]
    count: Annotated[int, Field(ge=10, le=99)]
    notes: Annotated[list[Annotated[str, Field(max_length=12)]], Field(max_length=2)]


def test_an_answer_is_parsed_into_a_class_streamed_or_not(client):
    asked = {
        "model": "tandem-mini",
        "messages": [{"role": "user", "content": RECALL}],
        "response_format": Treasure,
        "max_tokens": 500,
        "temperature": 1.0,
    }

    def parsed(seed: int) -> Treasure:
        return client.beta.chat.completions.parse(seed=seed, **asked).choices[0].message.parsed

    alone = [parsed(seed) for seed in range(4)]
    assert all(isinstance(each, Treasure) for each in alone)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(parsed, range(4))) == alone
    with client.beta.chat.completions.stream(seed=0, **asked) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == alone[0]


def test_a_tool_that_is_demanded_is_called_with_arguments_that_fit(client):
    parameters = Treasure.model_json_schema()
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name in ("hide", "dig_up")
    ]
    named = {"type": "function", "function": {"name": "dig_up"}}
    for choice, names in (("required", {"hide", "dig_up"}), (named, {"dig_up"})):
        answer = ask(
            client, "Hello!", tools=tools, tool_choice=choice, temperature=1.0, seed=2,
            parallel_tool_calls=False, max_tokens=500,
        ).choices[0]  # fmt: skip
        (call,) = answer.message.tool_calls
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        assert call.function.name in names
        Treasure.model_validate_json(call.function.arguments)


def test_a_streamed_call_is_a_trace(client, receiver):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    assert list(ask(client, "Hello", max_tokens=12, stream=True, extra_headers=headers))

    def calls():
        return [span for span in receiver.named("POST /v1/chat/completions")
                if span.trace_id == trace]  # fmt: skip

    (call,) = until(calls)
    assert call.attributes["gen_ai.usage.output_tokens"] <= 12
    (whole,) = receiver.below(call)
    queue, prefill, decode = receiver.below(whole)
    assert [queue.name, prefill.name, decode.name] == ["queue", "prefill", "decode"]
    assert queue.end_ns == prefill.start_ns
    assert prefill.end_ns == decode.start_ns
    latency = whole.attributes["gen_ai.latency.time_to_first_token"]
    assert latency == (decode.start_ns - queue.start_ns) / 1e9
    receiver.assert_nested()
