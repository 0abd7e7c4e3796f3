"""What one prompt or one answer may cost in work: prompts that can never fit, stop strings and tool
calls made to be slow, arguments nested beyond every stack, one prompt for many choices."""

import json
import time
from array import array

import msgspec
import pytest

from tandem.api.config import ApiConfig
from tandem.api.prompts import chat_prompt
from tandem.api.requests import ChatBody
from tandem.facts.blocks import PromptChains, grown_chain
from tandem.facts.errors import InvalidRequest, PromptTooLong
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.tool_calls import ToolCall
from tandem.text.tools import HermesParser, Llama3Parser


def test_a_prompt_that_cannot_fit_is_not_tokenised(text):
    for prompt in ("a" * (8 << 20), " " * (8 << 20), "the cat sat " * (1 << 20)):
        begun_s = time.thread_time()
        with pytest.raises(PromptTooLong, match="at least"):
            text.tokenizer.encode_within(prompt, 4096, add_special_tokens=False)
        assert time.thread_time() - begun_s < 0.25


def test_without_a_bound_it_is_counted_piece_by_piece(text, monkeypatch):
    tokenizer = text.tokenizer
    monkeypatch.setattr(tokenizer, "longest_token_bytes", 0)
    prompt = "the cat " * (1 << 20)
    with pytest.raises(PromptTooLong, match="at least"):
        tokenizer.encode_within(prompt, 4096, add_special_tokens=False)
    fits = "the cat " * 2000
    exact = tokenizer.encode(fits, add_special_tokens=False)
    assert tokenizer.encode_within(fits, len(exact), add_special_tokens=False) == exact


def test_the_bound_refuses_nothing_that_fits(text):
    longest = max(
        range(text.tokenizer.vocabulary_tokens), key=lambda i: len(text.token_bytes.bytes_of(i))
    )
    prompt = text.token_bytes.bytes_of(longest).decode() * 64
    tokens = text.tokenizer.encode(prompt, add_special_tokens=False)
    within = text.tokenizer.encode_within(prompt, len(tokens), add_special_tokens=False)
    assert within == tokens


class CountingAutomaton(AhoCorasick):
    steps = 0

    def step(self, node: int, char: str) -> int:
        CountingAutomaton.steps += 1
        return super().step(node, char)


def test_stop_strings_cost_one_step_a_character():
    stops = CountingAutomaton(["a" * 1000 + chr(0x4E00 + i) for i in range(64)])
    CountingAutomaton.steps, node = 0, 0
    begun_s = time.thread_time()
    for char in "a" * 20_000:
        node = stops.step(node, char)
    assert CountingAutomaton.steps == 20_000
    # Naively it is 64 million comparisons of strings.
    assert time.thread_time() - begun_s < 0.5


@pytest.mark.parametrize(
    "part",
    ["</tool_call>", "<tool_call>", '<tool_call>\\"</tool_call>', ',"</tool_call>', "x" * 12],
)
def test_the_tool_parser_is_linear(part):
    def cpu_s(parts: int) -> float:
        answer = '<tool_call>{"name": "f", "arguments": {"x": "' + part * parts
        parser, begun_s = HermesParser(), time.thread_time()
        for start in range(0, len(answer), 8):
            parser.feed(answer[start : start + 8])
        parser.finish()
        return time.thread_time() - begun_s

    cpu_s(500)
    # Ten times the text: a quadratic parser takes a hundred times as long.
    assert cpu_s(5000) < 40 * max(cpu_s(500), 1e-3)


def test_choices_of_one_prompt_are_hashed_once(monkeypatch):
    hashed = []
    monkeypatch.setattr(
        "tandem.facts.blocks.extend_chain",
        lambda chain, *_: hashed.append(chain) or chain.append(b"h"),
    )
    chains, prompt = PromptChains(16), array("I", range(131_072))
    found = [chains.chain(b"root", prompt) for _ in range(64)]
    # Over the wire each choice brings an equal prompt of its own.
    found += [chains.chain(b"root", array("I", prompt)) for _ in range(4)]
    assert len(hashed) == 1
    assert all(chain == (b"h",) for chain in found)
    chains.chain(b"other", prompt)
    chains.chain(b"other", prompt[:-1])
    assert len(hashed) == 3


def test_choices_share_their_chain_until_they_go_on_in_their_own_ways():
    chains, prompt = PromptChains(16), list(range(160))
    one, other = (chains.chain(b"root", prompt) for _ in range(2))
    assert one is other
    assert grown_chain(one, b"root", [*prompt, 7], 16) is one
    grown = grown_chain(one, b"root", prompt + [7] * 16, 16)
    assert grown[:10] == list(one)
    assert len(other) == len(chains.chain(b"root", prompt)) == 10
    # Its own from now on, it grows where it is.
    assert grown_chain(grown, b"root", prompt + [7] * 32, 16) is grown
    assert len(grown) == 12


def body_of(arguments: str) -> ChatBody:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "<|im_end|>"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    return msgspec.convert({"messages": messages}, ChatBody)


def nested(levels: int) -> str:
    """An object of so many levels."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


@pytest.mark.parametrize("levels", [9, 400, 900, 3000, 20_000])
def test_deep_arguments_are_refused(text, levels):
    with pytest.raises(InvalidRequest, match="messages have tool call arguments"):
        chat_prompt(body_of(nested(levels)), [], text, 100_000, ApiConfig(max_nesting=8))


def test_arguments_within_the_bound_are_taken(text):
    assert chat_prompt(body_of(nested(8)), [], text, 100_000, ApiConfig(max_nesting=8))
    assert chat_prompt(body_of(nested(64)), [], text, 100_000, ApiConfig())


@pytest.mark.parametrize("levels", [300, *range(960, 1000, 2), 5000])
def test_what_a_model_nests_is_a_call_or_content(levels):
    answer = json.dumps({"name": "f", "parameters": nested(levels)})
    for spelled in (answer, '{"name":"f","parameters":' + nested(levels) + "}"):
        llama, hermes = Llama3Parser(), HermesParser()
        for parser, whole in ((llama, spelled), (hermes, f"<tool_call>{spelled}</tool_call>")):
            pieces = parser.feed(whole) + parser.finish()
            assert pieces == [whole] or isinstance(pieces[0], ToolCall)
