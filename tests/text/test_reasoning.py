"""Laws of reasoning: it is split from the answer alike wherever the text is cut, and a grammar
begins behind it."""

import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.text.grammars import choice_grammar, json_grammar, regex_grammar
from tandem.text.model import TextModel
from tandem.text.reasoning import (
    END_THINK_TAG,
    THINK_TAG,
    ReasoningFormat,
    ReasoningSplitter,
    ReasoningStart,
    reasoning_start,
)
from tests.text.tiny_checkpoint import TEMPLATE, write_checkpoint

NONE, IF_TAGGED, INSIDE = ReasoningStart.NONE, ReasoningStart.IF_TAGGED, ReasoningStart.INSIDE
FRAGMENTS = st.sampled_from(
    [THINK_TAG, END_THINK_TAG, "<", "<th", "ink>", "</th", " ", "\n", "\t", "a", "b c", "</"]
)
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)


def split(start: ReasoningStart, pieces: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(start)
    told = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return "".join(said for said, _ in told), "".join(rest for _, rest in told)


def obvious_split(start: ReasoningStart, text: str) -> tuple[str, str]:
    begun = re.match(r"\s*<think>", text)
    if start is NONE or (start is IF_TAGGED and not begun):
        return "", text
    said, _, rest = text[begun.end() if begun else 0 :].partition(END_THINK_TAG)
    return said.strip(), rest.lstrip()


@settings(max_examples=600, deadline=None)
@given(start=st.sampled_from(ReasoningStart), text=TEXTS, data=st.data())
def test_reasoning_is_split_off_wherever_the_text_is_cut(start, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(start, pieces) == obvious_split(start, text)
    assert split(start, list(text)) == obvious_split(start, text)


def test_reasoning_is_told_while_it_comes():
    splitter = ReasoningSplitter(IF_TAGGED)
    assert splitter.feed("\n<thi") == ("", "")
    assert splitter.feed("nk>\nWell, ") == ("Well,", "")
    assert splitter.feed("yes") == (" yes", "")
    assert splitter.feed(" </thin") == ("", "")
    assert splitter.feed("k>\n\n") == ("", "")
    assert splitter.feed("Yes. ") == ("", "Yes. ")


def test_the_work_is_linear():
    """A quarter million characters, one by one: 30 GB of text if each looked at all so far."""
    for text in ("<think>" + "a \n" * 85_000, " " * 250_000, "<think>" + " " * 250_000 + "</"):
        began_s = time.process_time()
        assert split(IF_TAGGED, list(text)) == obvious_split(IF_TAGGED, text)
        assert time.process_time() - began_s < 5


@pytest.mark.parametrize(
    ("reasoning", "prompt_end", "continued", "start"),
    [
        (ReasoningFormat.QWEN3, "<|im_start|>assistant\n", None, IF_TAGGED),
        (ReasoningFormat.QWEN3, "<|im_start|>assistant\n<think>\n", None, INSIDE),
        (ReasoningFormat.QWEN3, "assistant\n<think>\n\n</think>\n\n", None, NONE),
        (ReasoningFormat.QWEN3, "assistant\nYes", "Yes", NONE),
        (ReasoningFormat.QWEN3, "assistant\n<think>Hm", "<think>Hm", INSIDE),
        (ReasoningFormat.QWEN3, "</think>So", "<think>Hm</think>So", NONE),
        (ReasoningFormat.DEEPSEEK_R1, "<\uff5cAssistant\uff5c>", None, INSIDE),
        (ReasoningFormat.DEEPSEEK_R1, "<\uff5cAssistant\uff5c><think>\n", None, INSIDE),
        (ReasoningFormat.DEEPSEEK_R1, "<\uff5cAssistant\uff5c></think>", None, NONE),
    ],
)
def test_the_prompt_says_how_the_answer_begins(reasoning, prompt_end, continued, start):
    assert reasoning_start(reasoning, prompt_end, continued) is start


@pytest.fixture(scope="module", params=[(), (THINK_TAG, END_THINK_TAG)], ids=["text", "tokens"])
def thinker(request, tmp_path_factory) -> TextModel:
    """With tags that are text, and with such that are tokens."""
    directory: Path = tmp_path_factory.mktemp("thinker")
    template = TEMPLATE + "{# <think></think> #}"
    return TextModel.load(write_checkpoint(directory, request.param, chat_template=template))


FORMS = [
    (json_grammar({"type": "object"}), '{"a": 1}', "[]"),
    (regex_grammar("a+b"), "aab", "b"),
    (choice_grammar(["yes", "no"]), "no", "never"),
]


@pytest.mark.parametrize(("form", "answer", "other"), FORMS, ids=["json", "regex", "lark"])
def test_a_grammar_begins_behind_the_reasoning(thinker, form, answer, other):
    def fits(start: ReasoningStart, text: str) -> bool:
        grammar = thinker.after_reasoning(form, start)
        thinker.grammars.check(grammar)
        matcher = thinker.grammars.begin(grammar)
        matcher.consume(thinker.tokenizer.encode(text, add_special_tokens=False))
        return matcher.complete

    thought = 'Any {"text"} at\nall, <b>.\n</think>'
    for text in (f"{thought}\n\n{answer}", f"</think>{answer}"):
        assert fits(INSIDE, text), text
        assert fits(IF_TAGGED, f"<think>\n{text}"), text
        assert not fits(NONE, text), text
    assert fits(IF_TAGGED, answer)
    assert fits(NONE, answer)
    for text in (f"{thought}{other}", thought, answer, "", f"{thought}{answer}</think>{answer}"):
        assert not fits(INSIDE, text), text
        assert not fits(IF_TAGGED, f"<think>{text}"), text


def test_drawn_answers_split_where_their_form_begins(thinker):
    """Also where the tag is spelled with other tokens than its own."""

    def encode(text: str) -> tuple[int, ...]:
        return thinker.tokenizer.encode(text, add_special_tokens=False)

    spelled = tuple(token for char in END_THINK_TAG for token in encode(char))
    chunks = [spelled, spelled[:-1], *map(encode, ("a", "\n", "yes", "no", END_THINK_TAG))]
    grammar = thinker.after_reasoning(choice_grammar(["yes", "no"]), INSIDE)
    ended = 0
    for seed in range(60):
        draw, tokens = random.Random(seed), []
        matcher = thinker.grammars.begin(grammar)
        for chunk in draw.choices(chunks, k=12):
            # What is allowed of it.
            for token in chunk[: matcher.core.validate_tokens(list(chunk))]:
                matcher.consume([token])
                tokens.append(token)
        if matcher.complete:
            ended += 1
            text = thinker.tokenizer.decode(tokens, skip_special_tokens=False)
            assert split(INSIDE, [text])[1] in ("yes", "no"), text
    assert ended > 10
