"""What a client of a cascade sees over a socket: headers, usage, the answers of one model each, and
what the response cache keeps."""

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig, ResponseCacheConfig
from tandem.facts.errors import Overloaded
from tandem.live.cascade import Cascade
from tandem.policy.cascade import ConfidenceFloor
from tests.api.scripted_generator import ScriptedGenerator
from tests.api.server import serving
from tests.waiting import until

SURE, UNSURE = -0.05, -2.0
CACHE = ResponseCacheConfig(limit_bytes=1 << 20)


class Lines(list):
    """An access log."""

    lost_lines = 0
    write = list.append


@pytest.fixture(scope="module")
def models(text):
    return ScriptedGenerator(text), ScriptedGenerator(text)


@pytest.fixture(scope="module")
def log() -> Lines:
    return Lines()


@pytest.fixture(scope="module")
def port(models, text, log):
    cascade = Cascade(*models, ConfidenceFloor(0.7, 2))
    with serving(build_app(cascade, text, ApiConfig(response_cache=CACHE), log)) as port:
        yield port


@pytest.fixture
def ask(port, models):
    """Asks for completions, after scripts of the small and of the large model."""
    small, large = models
    small.script, large.script = type(small.script)(), type(large.script)()
    small.script.answer, large.script.answer = "a small fox", "a large fox"
    small.requests.clear()
    large.requests.clear()

    def ask(prompt: str, headers=None, **fields):
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, **fields}
        url = f"http://127.0.0.1:{port}/v1/completions"
        return httpx2.post(url, json=body, headers=headers, timeout=30)

    yield ask
    for each in models:
        each.wait_until_running(0)


def texts(answer) -> list[str]:
    return [choice["text"] for choice in answer.json()["choices"]]


def test_the_header_the_usage_and_the_log_say_who_answered(ask, models, log):
    models[0].script.logprobs = {0: SURE}
    answer = ask("one")
    assert (texts(answer), answer.headers["X-Tandem-Cascade"]) == (["a small fox"], "small")
    assert answer.json()["usage"]["cascade"] == "small"
    assert answer.json()["choices"][0]["logprobs"] is None
    models[0].script.logprobs = {0: UNSURE}
    answer = ask("two", stream=True, stream_options={"include_usage": True})
    assert answer.headers["X-Tandem-Cascade"] == "large"
    assert '"cascade":"large"' in answer.text
    assert "small" not in answer.text
    # The line is written once the client has the end of the answer.
    until(lambda: '"cascade":"large"' in log[-1].decode())


def test_each_choice_is_answered_by_one_model(ask, models):
    models[0].script.logprobs = {0: SURE, 1: UNSURE, 2: SURE, 3: SURE}
    answer = ask("several", n=4, temperature=1, seed=4)
    small, large = "a small fox", "a large fox"
    assert texts(answer) == [small, large, small, small]
    assert answer.headers["X-Tandem-Cascade"] == "large=1, small=3"
    asked, passed_on = models[0].requests, models[1].requests
    assert [each.choice for each in passed_on] == [1]
    assert passed_on[0].sampling.seed == asked[1].sampling.seed


def test_a_stop_string_ends_the_small_model_as_it_would_alone(ask, models):
    models[0].script.logprobs = {0: SURE}
    models[0].script.answer, models[0].script.hold_after = "a small fox and a hound", 9
    answer = ask("stops", stop=["fox"], logprobs=0)
    choice = answer.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("a small ", "stop")
    assert answer.headers["X-Tandem-Cascade"] == "small"
    assert models[0].satisfied_ids[-1] == models[0].requests[-1].request_id
    assert len(choice["logprobs"]["tokens"]) == answer.json()["usage"]["completion_tokens"]


def test_a_cached_answer_says_who_gave_it_and_chance_is_not_kept(ask, models):
    models[0].script.logprobs = {0: UNSURE}
    first, again = ask("kept"), ask("kept")
    assert again.headers["X-Tandem-Response-Cache"] == "hit"
    assert again.headers["X-Tandem-Cascade"] == first.headers["X-Tandem-Cascade"] == "large"
    assert texts(again) == texts(first) == ["a large fox"]
    models[0].script.refusals = {0: Overloaded("full", 1.0)}
    assert texts(ask("chance")) == ["a large fox"]
    models[0].script.refusals, models[0].script.logprobs = {}, {0: SURE}
    later = ask("chance")
    assert later.headers["X-Tandem-Response-Cache"] == "miss"
    assert texts(later) == ["a small fox"]


def test_the_models_are_one_to_clients(port):
    listed = httpx2.get(f"http://127.0.0.1:{port}/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["tiny", "org/tiny"]
    assert "tandem:cascade_requests_total" in httpx2.get(f"http://127.0.0.1:{port}/metrics").text
