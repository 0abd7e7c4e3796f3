"""Grammars on the official JSON Schema Test Suite: what a schema forbids is never allowed, and what
is not supported is refused."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import pytest

from tandem.text.grammars import GrammarError
from tests.text.test_grammars import GRAMMARS, TOKENIZER

SUITE = json.loads(
    lzma.decompress((Path(__file__).parent / "json_schema_suite" / "suite.json.xz").read_bytes())
)
REFUSED_KEYWORDS = {
    *("$dynamicAnchor", "$dynamicRef", "contains", "maxContains", "minContains"),
    *("dependencies", "dependentRequired", "dependentSchemas", "if", "then", "else", "not"),
    *("propertyNames", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
}
COUNTS = {
    "draft2020-12": {"accepted": 168, "refused": 213, "valid": 355, "invalid": 241},
    "draft7": {"accepted": 161, "refused": 94, "valid": 313, "invalid": 237},
}
# Drafts differ in what stands beside `$ref`, so each schema says its own.
DIALECTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
# In draft 7 a reference makes its neighbours void; the grammar keeps to both.
WRONGLY_FORBIDDEN = {
    "draft2020-12": set(),
    "draft7": {("ref overrides any sibling keywords", "ref valid, maxItems ignored")},
}
# Draft 2020-12 lets a format say nothing; a grammar always keeps to it.
ANNOTATION = "is only an annotation by default"


def orders(value: Any) -> Iterator[Any]:
    """The same value with its properties in other orders: grammars have one."""
    if not isinstance(value, dict):
        yield value
        return
    for items in islice(permutations(value.items()), 24):
        yield dict(items)


def whole(value: Any) -> Any:
    """With 1 for 1.0, which JSON Schema takes for the same."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    return value


def texts(value: Any) -> Iterator[str]:
    for same in (value, whole(value)):
        for ordered in orders(same):
            yield json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))
            yield json.dumps(ordered)
            yield json.dumps(ordered, indent=2)


def allows(grammar: str, text: str) -> bool:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    matcher = GRAMMARS.begin(grammar)
    if matcher.allows(tokens) < len(tokens):
        return False
    matcher.consume(tokens)
    return matcher.complete


@pytest.mark.parametrize("draft", SUITE)
def test_what_a_schema_forbids_is_never_allowed(draft):
    counts, refused_keywords = Counter(), set()
    wrongly_allowed, wrongly_forbidden = set(), set()
    cases = [case for file in SUITE[draft].values() for case in file]
    # Callers give objects; `true` and `false` are refused before there is a grammar.
    for case in (case for case in cases if isinstance(case["schema"], dict)):
        try:
            grammar = GRAMMARS.check_schema({"$schema": DIALECTS[draft]} | case["schema"])
        except GrammarError as error:
            assert str(error) and "\n" not in str(error)
            counts["refused"] += 1
            if keys := re.search(r"Unimplemented keys: (\[.*?\])", str(error)):
                refused_keywords |= set(json.loads(keys[1]))
            continue
        counts["accepted"] += 1
        for each in case["tests"]:
            counts["valid" if each["valid"] else "invalid"] += 1
            fits = any(allows(grammar, text) for text in texts(each["data"]))
            name = (case["description"], each["description"])
            if fits and not each["valid"]:
                wrongly_allowed.add(name)
            if each["valid"] and not fits and not name[1].endswith(ANNOTATION):
                wrongly_forbidden.add(name)
    assert not wrongly_allowed
    assert wrongly_forbidden == WRONGLY_FORBIDDEN[draft]
    assert refused_keywords <= REFUSED_KEYWORDS
    assert counts == COUNTS[draft]


def test_who_needs_any_of_is_told():
    parts = [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 4}]
    with pytest.raises(GrammarError, match=r"use anyOf where several may hold \(at /properties/a"):
        GRAMMARS.check_schema({"type": "object", "properties": {"a": {"oneOf": parts}}})


def test_each_keyword_that_is_not_supported_is_refused():
    for keyword in REFUSED_KEYWORDS:
        with pytest.raises(GrammarError, match=re.escape(f'"{keyword}"')):
            GRAMMARS.check_schema({"type": "object", keyword: {}})
