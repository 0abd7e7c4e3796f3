"""Grammars: whatever is drawn under their masks fits them, and what cannot be used says where."""

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.config.environment import BUNDLED_MODEL
from tandem.facts.sampling import GRAMMAR_CHARS_LIMIT
from tandem.text.grammars import (
    KEPT_GRAMMARS,
    GrammarError,
    LlGuidanceGrammars,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)
from tandem.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(BUNDLED_MODEL)
GRAMMARS = LlGuidanceGrammars(TOKENIZER)
ENDS = TOKENIZER.end_token_ids
# More and fewer than there are tokens.
WIDTHS = (TOKENIZER.vocabulary_tokens + 77, TOKENIZER.vocabulary_tokens, 600)
names = st.sampled_from(["a", "name", "x y", 'q"', "ü"])
leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string"}]),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]{2,5}$"}, {"const": 7}]),
    st.sampled_from([{"type": "string", "maxLength": 6}, {"type": "string", "format": "date"}]),
    st.tuples(st.integers(-50, 50), st.integers(0, 200)).map(
        lambda each: {"type": "integer", "minimum": each[0], "maximum": each[0] + each[1]}
    ),
    st.just({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    st.lists(st.sampled_from(["red", 3, None, "x\ny"]), min_size=1, max_size=3, unique=True).map(
        lambda each: {"enum": each}
    ),
)


def _object(parts: dict, required: set) -> dict:
    return {
        "type": "object",
        "properties": parts,
        "required": sorted(required & parts.keys()),
        "additionalProperties": False,
    }


def nested(children: st.SearchStrategy[dict]) -> st.SearchStrategy[dict]:
    objects = st.builds(
        _object, st.dictionaries(names, children, max_size=3), st.sets(names, max_size=3)
    )
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "minItems": 1, "maxItems": most},
        children,
        st.integers(1, 3),
    )
    either = st.lists(children, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    return objects | arrays | either


schemas = st.recursive(leaves, nested, max_leaves=5)


def allowed(matcher, width: int = WIDTHS[0]) -> np.ndarray:
    masks = np.full((1, -(-width // 32)), -1, np.int32)
    GRAMMARS.fill_masks([matcher], masks)
    return np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little"))


def drawn_text(grammar: str, chance: random.Random, most_tokens: int = 400) -> str | None:
    """A text that is drawn as the sampler draws, each allowed token alike, but ends where it may;
    None where that takes too long."""
    matcher, tokens = GRAMMARS.begin(grammar), []
    for _ in range(most_tokens):
        choices = allowed(matcher)
        assert len(choices), "there is always a way to go on"
        # The end, where it may come; else short tokens, which leave strings soon.
        ends = [each for each in ENDS if each in choices]
        token = ends[0] if ends and chance.random() < 0.5 else int(chance.choice(choices))
        if token in ENDS:
            assert matcher.complete
            return TOKENIZER.decode(tokens)
        tokens.append(token)
        matcher.consume((token,))
    return None


@settings(max_examples=500, deadline=None)
@given(schemas, st.integers(0, 2**32))
def test_every_answer_validates_against_its_schema(schema, seed):
    text = drawn_text(GRAMMARS.check_schema(schema), random.Random(seed))
    if text is not None:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("regex", [r"\d{3}-[a-z]{2}", "(ab|c)+d?", r"[^x]{1,5}", "päß|日本", "a.b"])
def test_every_answer_matches_its_regular_expression(regex):
    for seed in range(20):
        text = drawn_text(regex_grammar(regex), random.Random(seed))
        assert text is None or re.fullmatch(regex, text)


def test_an_answer_is_one_of_its_choices():
    choices = ["red", "reddish", 'with "quotes"', "back\\slash", "two\nlines", "日本"]
    grammar = choice_grammar(choices)
    GRAMMARS.check(grammar)
    assert {drawn_text(grammar, random.Random(seed)) for seed in range(200)} == set(choices)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "yes" | "no" REST\nREST: /[!]+/',
        'root ::= "yes" | "no" [!]+   # "a" comment ::= [b]',
    ],
)
def test_a_grammar_may_be_written_in_two_notations(grammar):
    made = lark_grammar(grammar)
    GRAMMARS.check(made)
    texts = {drawn_text(made, random.Random(seed)) for seed in range(30)}
    assert "yes" in texts
    assert all(text is None or re.fullmatch("yes|no!+", text) for text in texts)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_mask_is_of_the_tokens_that_may_come(width):
    """Bit by bit, against trying each token."""
    grammar = regex_grammar("[a-f]{2}( the)?")
    text = TOKENIZER.encode("ab th", add_special_tokens=False)
    for end in range(len(text) + 1):
        matcher = GRAMMARS.begin(grammar)
        matcher.consume(text[:end])
        found = set(allowed(matcher, width).tolist())
        for token in range(min(width, TOKENIZER.vocabulary_tokens)):
            trial = GRAMMARS.begin(grammar)
            trial.consume((*text[:end], token))
            fits = trial.complete or bool(len(allowed(trial)))
            assert (token in found) == fits, (end, token)
        assert max(found) < TOKENIZER.vocabulary_tokens


def test_an_answer_that_left_its_grammar_goes_nowhere():
    matcher = GRAMMARS.begin(choice_grammar(["yes"]))
    matcher.consume(TOKENIZER.encode("no", add_special_tokens=False))
    assert not len(allowed(matcher))


def test_whitespace_in_json_is_bounded():
    def fits(text: str, **options) -> bool:
        matcher = GRAMMARS.begin(json_grammar(schema, **options))
        matcher.consume(TOKENIZER.encode(text, add_special_tokens=False))
        return matcher.complete

    schema = {"type": "array", "items": {"type": "integer"}}
    for text in ("[1,2]", "[ 1 , 2 ]", "[\n  1,\n  2\n]", "[\r\n\t1\r\n]"):
        assert fits(text), text
    assert not fits("[1,  2]")
    assert not fits("[1,\n\n2]")
    assert fits("[1,2]", whitespace="")
    assert not fits("[1, 2]", whitespace="")
    assert fits("[1,__2]", whitespace="_+")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objec"}, "objec"),
        ({"properties": {"a": {"items": {"not": {}}}}}, "(at /properties/a/items)"),
        ({"properties": {"a": {"anyOf": [{"type": "string", "pattern": "(?=a)"}]}}}, "a/anyOf/0)"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}, "$defs": {"b": {}}}, "$defs/gone"),
    ],
)
def test_a_schema_that_cannot_be_used_says_where(schema, said):
    with pytest.raises(GrammarError) as caught:
        GRAMMARS.check_schema({"type": "object", **schema})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: regex_grammar("(ab"),
        lambda: regex_grammar("a" * GRAMMAR_CHARS_LIMIT),
        lambda: lark_grammar("start: foo"),
        lambda: lark_grammar("%%%"),
        lambda: lark_grammar("root ::= gone"),
        lambda: lark_grammar('root ::= "a"\nroot ::= "b"'),
        lambda: lark_grammar('other ::= "a"'),
        lambda: lark_grammar("root ::= " + "(" * 5000),
        lambda: lark_grammar("root ::= root"),
        lambda: json_grammar({"enum": ["x" * 70_000]}),
        lambda: json_grammar({"type": "string", "minLength": 5, "maxLength": 2}),
    ],
)
def test_what_cannot_be_compiled_is_refused_on_one_line(make):
    with pytest.raises(GrammarError) as caught:
        GRAMMARS.check(make())
    assert 0 < len(str(caught.value)) <= 500
    assert "\n" not in str(caught.value)


def test_so_many_compiled_grammars_are_kept():
    grammars = LlGuidanceGrammars(TOKENIZER)
    for number in range(KEPT_GRAMMARS + 5):
        grammars.begin(choice_grammar([str(number)]))
    assert len(grammars._kept) == KEPT_GRAMMARS
