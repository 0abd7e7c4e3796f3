"""What a client is told of a call that was cut, or had no more time, over a socket."""

import openai
import pytest

from tandem.facts.errors import LeftOut, Overloaded
from tandem.facts.request import FinishReason, TokenOutput

HELLO = [{"role": "user", "content": "hello"}]


def ask(http, **fields):
    return http.post("/v1/chat/completions", json={"messages": HELLO} | fields)


def test_what_was_cut_stands_in_the_header_and_beside_the_usage(http, generator):
    generator.script.degraded, generator.script.left_out = "max_tokens=24", (1, 3)
    answer = ask(http, n=4)
    assert answer.headers["X-Tandem-Degraded"] == "n=2, max_tokens=24"
    body = answer.json()
    assert [choice["index"] for choice in body["choices"]] == [0, 2]
    assert body["usage"]["degraded"] == "n=2, max_tokens=24"


def test_a_stream_says_it_in_its_head_and_at_its_end(http, generator):
    generator.script.degraded, generator.script.left_out = "max_tokens=24", (1,)
    answer = ask(http, n=2, stream=True, stream_options={"include_usage": True})
    assert "max_tokens=24" in answer.headers["X-Tandem-Degraded"]
    assert '"degraded":"n=1, max_tokens=24"' in answer.text
    assert '"index":1' not in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


def test_whole_calls_say_nothing(http, generator):
    answer = ask(http)
    assert "X-Tandem-Degraded" not in answer.headers
    assert "degraded" not in answer.json()["usage"]


def test_openais_client_reads_a_degraded_answer(client, generator):
    generator.script.left_out = (1,)
    answer = client.chat.completions.create(model="tiny", messages=HELLO, n=2)
    assert [choice.message.content for choice in answer.choices] == ["hello world"]
    chunks = list(client.completions.create(model="tiny", prompt=["a", "b"], n=2, stream=True))
    assert {chunk.choices[0].index for chunk in chunks} == {0, 2}


def test_a_call_of_which_the_first_answer_is_refused_is_refused(client, generator):
    generator.script.failure = Overloaded("predicted TTFT 3 s exceeds 2 s", 4.0)
    generator.script.left_out = (1,)
    with pytest.raises(openai.RateLimitError, match="predicted TTFT"):
        client.chat.completions.create(model="tiny", messages=HELLO, n=2)
    assert issubclass(LeftOut, Overloaded)


def test_a_deadline_comes_by_body_or_header(client, generator, http):
    client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        extra_body={"deadline_s": 2.5},
        extra_headers={"X-Request-Timeout": "7"},
    )
    assert generator.requests[-1].deadline_s == 2.5
    assert generator.callers[-1].deadline_s == 7
    for wrong in ("soon", "-1", "nan", "100000"):
        answer = http.post(
            "/v1/chat/completions", json={"messages": HELLO}, headers={"X-Request-Timeout": wrong}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "X-Request-Timeout"
    for wrong in (0, -3, 1e6):
        answer = ask(http, deadline_s=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "deadline_s"


def test_an_answer_cut_off_at_its_deadline_has_a_length_and_says_why(http, generator, monkeypatch):
    monkeypatch.setattr(
        generator,
        "_outputs",
        lambda *_: iter([TokenOutput((5,)), TokenOutput((), finish_reason=FinishReason.DEADLINE)]),
    )
    choice = ask(http).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
