"""The response cache: exact, opt-in, a tenant's own, bounded; over a socket and by itself."""

import sys
from array import array
from dataclasses import replace

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.choice import ChoiceReader, Presentation
from tandem.api.choice_deltas import choice_deltas
from tandem.api.config import ApiConfig, ResponseCacheConfig
from tandem.api.degradation import Degradation
from tandem.api.response_cache import (
    TURN_TOKENS,
    CachedResponse,
    CacheUse,
    ResponseCache,
    response_key,
)
from tandem.facts.adapter import Adapter
from tandem.facts.errors import EngineFailed
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ANYBODY
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.tool_calls import ToolFormat
from tests.api.server import client_of, serving
from tests.observe.metrics_text import text_of

GREEDY = {"prompt": "hello", "temperature": 0, "max_tokens": 50}
CACHE = ResponseCacheConfig(limit_bytes=1 << 20)
KEYS = {"key-of-acme": "acme", "key-of-other": "other", "key-of-third": "third"}


@pytest.fixture(scope="module")
def cached_port(the_generator, text):
    with serving(build_app(the_generator, text, ApiConfig(response_cache=CACHE))) as port:
        yield port


@pytest.fixture
def ask(cached_port, generator):
    """Asks, and gives the choices and how many sequences were generated for them."""
    generator.script.answer = "a fox " * 9

    def ask(headers=None, **fields):
        before = len(generator.requests)
        url = f"http://127.0.0.1:{cached_port}/v1/completions"
        body = GREEDY | fields
        answer = httpx2.post(url, json=body, headers=headers, timeout=30)
        return answer, len(generator.requests) - before

    return ask


def test_an_equal_greedy_request_is_answered_without_computing(ask):
    first, computed = ask(cache_salt="equal")
    again, computed_again = ask(cache_salt="equal")
    assert (computed, computed_again) == (1, 0)
    assert again.json()["choices"] == first.json()["choices"]
    assert again.json()["usage"]["completion_tokens"] == first.json()["usage"]["completion_tokens"]
    cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == again.json()["usage"]["prompt_tokens"]


def test_a_scored_prompt_is_computed_each_time_and_further_choices_are_not(cached_port, generator):
    url = f"http://127.0.0.1:{cached_port}/v1/chat/completions"
    messages = [{"role": "user", "content": "a prompt that is scored"}]
    body = {"messages": messages, "temperature": 0, "n": 2, "prompt_logprobs": 0}
    before = len(generator.requests)
    first, again = (httpx2.post(url, json=body, timeout=30).json() for _ in range(2))
    assert [each.choice for each in generator.requests[before:]].count(0) == 2
    assert len(generator.requests) - before == 3
    for name in ("choices", "prompt_logprobs"):
        assert again[name] == first[name]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_seed_of_the_client_makes_an_answer_certain_and_none_does_not(ask):
    sampled = {"temperature": 0.9, "cache_salt": "seeds"}
    assert [ask(**sampled, seed=seed)[1] for seed in (1, 1, 2)] == [1, 0, 1]
    assert [ask(**sampled)[1] for _ in range(2)] == [1, 1]
    # Greedy answers draw nothing: their seed does not matter.
    assert [ask(cache_salt="seeds", seed=seed)[1] for seed in (1, 2)] == [1, 0]


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "hello "},
        {"max_tokens": 49},
        {"logit_bias": {"5": 1}},
        {"allowed_token_ids": [5]},
        {"bad_words": ["fox"]},
        {"typical_p": 0.5},
        {"dry_multiplier": 0.8},
        {"stop": "fox"},
        {"min_tokens": 2},
        {"cache_salt": "another"},
        {"logprobs": 1},
        {"presence_penalty": 0.5},
    ],
)
def test_a_request_that_differs_misses(ask, other):
    salt = {"cache_salt": f"differs {other}"}
    ask(**salt)
    assert ask(**salt)[1] == 0
    assert ask(**(salt | other))[1] == 1


def test_streams_stop_strings_log_probabilities_and_choices_are_alike(ask):
    for number, fields in enumerate(({"stop": " fox a"}, {"logprobs": 2}, {"n": 3, "seed": 4})):
        fields |= {"cache_salt": f"alike {number}"}
        computed, _ = ask(**fields)
        found, count = ask(**fields)
        assert count == 0
        assert found.json()["choices"] == computed.json()["choices"]
        streamed, count = ask(**fields, stream=True)
        assert count == 0
        assert '"finish_reason":"stop"' in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")


def test_stop_strings_end_an_answer_by_the_text_in_which_they_are_looked_for(ask, generator):
    generator.script.answer = "a fox <|im_start|> and on"
    hidden = {"cache_salt": "hidden", "stop": ["<|im_start|>"]}
    shown = hidden | {"skip_special_tokens": False}
    for _ in range(2):
        answers = [ask(**fields)[0].json()["choices"][0] for fields in (shown, hidden)]
        assert [each["text"] for each in answers] == ["a fox ", "a fox  and on"]
        assert [each["stop_reason"] for each in answers] == ["<|im_start|>", None]


def test_what_was_not_computed_is_not_stopped_either(ask, generator):
    fields = {"cache_salt": "satisfied", "stop": " fox a"}
    stopped = len(generator.satisfied_ids)
    assert [ask(**fields)[1] for _ in range(2)] == [1, 0]
    assert len(generator.satisfied_ids) == stopped + 1


def test_limits_count_what_is_computed(ask, generator):
    def size(**fields):
        _, computed = ask(cache_salt="sizes", temperature=0.9, seed=4, **fields)
        call = generator.callers[-1].call
        return computed, call and (call.requests, call.prompt_tokens)

    assert size() == (1, None)
    assert size(n=2) == (1, None)
    length = len(generator.requests[-1].prompt_tokens)
    assert size(n=4) == (2, (2, length))
    # Of the two prompts one is computed.
    assert size(prompt=["hello", "and hello"], n=2)[1] == (
        2,
        len(generator.requests[-1].prompt_tokens),
    )


def test_a_client_may_have_it_computed_anew_or_not_kept(ask):
    no_store, no_cache = {"Cache-Control": "no-store"}, {"Cache-Control": "no-cache"}
    salt = {"cache_salt": "control"}
    assert [ask(no_store, **salt)[1], ask(**salt)[1], ask(**salt)[1]] == [1, 1, 0]
    assert [ask(no_cache, **salt)[1], ask(**salt)[1]] == [1, 0]


def test_other_weights_and_mixed_workers_are_no_hit(ask, generator):
    salt = {"cache_salt": "weights"}
    ask(**salt)
    generator.script.model_identity = "other weights"
    assert [ask(**salt)[1] for _ in range(2)] == [1, 0]
    generator.script.model_identity = None
    assert [ask(**salt)[1] for _ in range(2)] == [1, 1]


def test_what_broke_off_is_not_kept(ask, generator):
    salt = {"cache_salt": "broken"}
    generator.script.fail_after, generator.script.failure = 3, EngineFailed("it broke")
    assert ask(**salt)[0].status_code == 503
    generator.script.fail_after, generator.script.failure = 0, None
    assert [ask(**salt)[1] for _ in range(2)] == [1, 0]


def test_tenants_opt_in_and_never_share(the_generator, text, generator):
    cache = ResponseCacheConfig(1 << 20, frozenset({"acme", "other"}))
    config = ApiConfig(tenants=KEYS, response_cache=cache)
    with client_of(build_app(the_generator, text, config)) as client:

        def computed(key: str) -> int:
            before = len(generator.requests)
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post("/v1/completions", json=GREEDY, headers=headers).status_code == 200
            return len(generator.requests) - before

        assert [computed("key-of-acme") for _ in range(2)] == [1, 0]
        assert [computed("key-of-other") for _ in range(2)] == [1, 0]
        assert [computed("key-of-third") for _ in range(2)] == [1, 1]
        metrics = client.get("/metrics").text
    assert 'tandem:response_cache_hits_total{model_name="tiny"} 2.0' in metrics
    assert 'tandem:response_cache_queries_total{model_name="tiny"} 4.0' in metrics


@pytest.fixture
def use(generator):
    return CacheUse(ResponseCache(CACHE, "m"), generator, looks_up=True, keeps=True)


ASKED = Request("asked-0", (1, 2, 3), SamplingParameters(temperature=0, max_tokens=50))
STOP = TokenOutput((7,), finish_reason=FinishReason.STOP)


@pytest.mark.parametrize(
    ("last", "identity", "kept"),
    [
        (STOP, "scripted", True),
        (replace(STOP, finish_reason=None), "scripted", True),
        (replace(STOP, finish_reason=FinishReason.LENGTH), "scripted", True),
        (replace(STOP, finish_reason=FinishReason.ABORT), "scripted", False),
        (replace(STOP, finish_reason=FinishReason.DEADLINE), "scripted", False),
        (replace(STOP, degraded="max_tokens=2"), "scripted", False),
        (STOP, "other weights", False),
        (STOP, None, False),
    ],
)
def test_only_what_was_asked_for_is_kept(use, generator, last, identity, kept):
    lookup = use.look_up(ASKED)
    for output in (TokenOutput((5, 6)), last):
        lookup.add(output)
    generator.script.model_identity = identity
    lookup.complete(last)
    generator.script.model_identity = "scripted"
    found = use.look_up(ASKED).found
    assert (found.tokens.tolist() if found else None) == ([5, 6, 7] if kept else None)


def test_no_more_is_recorded_than_may_be_kept(use):
    lookup, logprob = use.look_up(ASKED), TokenLogprobs(-1.0, 1)
    for _ in range(100):
        lookup.add(TokenOutput((5,) * 100, (logprob,) * 100))
    assert sys.getrefcount(logprob) < 10
    lookup.complete(STOP)
    assert use.look_up(ASKED).found is None


@pytest.mark.parametrize("tokens_per_output", [1, 2, 50])
async def test_an_answer_that_was_kept_too_short_is_dropped_and_computed(
    use, generator, text, tokens_per_output
):
    script = generator.script
    script.answer, script.tokens_per_output = "a fox on a box", tokens_per_output
    tokens = text.tokenizer.encode(script.answer, add_special_tokens=False)
    short = CachedResponse(array("I", tokens[:3]), (), None, False)
    use.cache.keep(use.key_of(ASKED), short)

    async def answer():
        reader = ChoiceReader(0, text, Presentation())
        deltas = choice_deltas(use.look_up(ASKED), reader, ANYBODY, Degradation())
        return [delta async for delta in deltas]

    for _ in range(3):
        deltas = await answer()
        assert "".join(delta.text for delta in deltas) == script.answer
        assert [token for delta in deltas for token in delta.tokens] == list(tokens)
    # Once in place of the short one, and once more to be kept.
    assert len(generator.requests) == 2


def test_tenants_opt_in_and_out_while_the_server_runs(the_generator, text, generator):
    of_acme = ResponseCacheConfig(1 << 20, frozenset({"acme"}))
    config = ApiConfig(tenants=KEYS, response_cache=of_acme)
    cache = ResponseCache(of_acme, "tiny")
    with client_of(build_app(the_generator, text, config, cache=cache)) as client:

        def computed(key: str) -> list[int]:
            counts = []
            for _ in range(2):
                before = len(generator.requests)
                headers = {"Authorization": f"Bearer {key}"}
                client.post("/v1/completions", json=GREEDY, headers=headers)
                counts.append(len(generator.requests) - before)
            return counts

        assert [computed("key-of-acme"), computed("key-of-other")] == [[1, 0], [1, 1]]
        cache.reconfigure(replace(of_acme, tenants=frozenset({"other"})))
        assert [computed("key-of-acme"), computed("key-of-other")] == [[1, 1], [1, 0]]


def response(tokens: int) -> CachedResponse:
    return CachedResponse(array("I", range(tokens)), (), FinishReason.LENGTH, False)


def held(cache: ResponseCache) -> int:
    """Bytes, as the metrics have them."""
    (line,) = [
        each
        for each in text_of(cache.metric_families()).splitlines()
        if each.startswith("tandem:response_cache_bytes{")
    ]
    return round(float(line.rpartition(" ")[2]))


def test_memory_is_bounded_and_the_least_used_leave_first():
    size = response(10).size_bytes
    cache = ResponseCache(ResponseCacheConfig(10 * size), "m")
    for number in range(10):
        cache.keep(bytes([number]), response(10))
    assert held(cache) == 10 * size
    assert cache.find(b"\0")
    cache.keep(b"new", response(10))
    assert held(cache) == 10 * size
    assert cache.find(b"\0")
    assert not cache.find(b"\1")
    # The same answer again takes no further room; one that is too large is not kept.
    cache.keep(b"new", response(10))
    cache.keep(b"large", response(size))
    assert held(cache) == 10 * size
    assert not cache.find(b"large")
    cache.drop(b"new")
    assert held(cache) == 9 * size
    assert not cache.find(b"new")


@pytest.mark.parametrize("tokens", [1, TURN_TOKENS, TURN_TOKENS + 1, 3 * TURN_TOKENS])
def test_a_kept_answer_comes_in_turns_that_join_to_it(tokens):
    logprobs = tuple(TokenLogprobs(-1.0, 1) for _ in range(tokens))
    kept = replace(response(tokens), logprobs=logprobs, stopped_by_token=True)
    outputs = list(kept.outputs(7))
    assert [token for each in outputs for token in each.tokens] == list(range(tokens))
    assert sum(len(each.logprobs) for each in outputs) == tokens
    *others, last = outputs
    assert last.finish_reason is FinishReason.LENGTH
    assert last.stopped_by_token
    assert not any(each.finish_reason or each.stopped_by_token for each in others)
    assert max(len(each.tokens) for each in outputs) <= TURN_TOKENS


def test_keys_are_those_of_everything_that_decides():
    request = Request("r", (1, 2, 3), SamplingParameters(seed=1))
    others = [
        replace(request, prompt_tokens=(1, 2, 4)),
        replace(request, sampling=SamplingParameters(seed=2)),
        replace(request, tenant="t"),
        replace(request, cache_salt="t"),
        replace(request, adapter=Adapter("a" * 32, "/a", 1)),
        replace(request, adapter=Adapter("b" * 32, "/a", 1)),
    ]
    keys = {response_key("m", each, ()) for each in (request, *others)}
    stops = Presentation(AhoCorasick(["x"]))
    endings = [
        each.endings
        for each in (
            stops,
            replace(stops, stops=AhoCorasick(["y"])),
            replace(stops, skip_special_tokens=False),
            replace(stops, tool_format=ToolFormat.HERMES),
        )
    ]
    keys |= {response_key("m", request, each) for each in endings}
    keys |= {response_key("n", request, ())}
    assert len(keys) == 12
    # Where no stop string ends it, the tokens are those of the engine.
    assert Presentation(skip_special_tokens=False).endings == ()
    same = replace(request, request_id="other", prompt_tokens=array("I", (1, 2, 3)), priority=4)
    assert response_key("m", same, ()) == response_key("m", request, ())
