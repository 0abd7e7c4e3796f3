"""Grammars of answers, through llguidance: JSON schemas, regular expressions, choices and Lark
become one kind of text, are checked, and say token by token what may follow.

What a grammar may cost is bounded in units of work, not in time, so that every process decides
alike.
"""

import json
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark, is_lark_syntax
from numpy.typing import NDArray

from tandem.facts.sampling import GRAMMAR_CHARS_LIMIT
from tandem.text.tokenizer import Tokenizer

# Compiled grammars are kept, those used last, up to so many.
KEPT_GRAMMARS = 64
# Between the parts of JSON: a space, or a line's end and what the next line is indented by. Without
# bounds, a small model fills an answer with nothing else.
WHITESPACE = r"[ \t]?(\r?\n[ \t]{0,32})?"
# Who looks for the place of a problem in a schema compiles so many parts of it at most.
_COMPILED_PARTS = 64
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
# Where a JSON schema has schemas inside: by name, in a list, or one.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains"})
_DEFINITIONS = ("$defs", "definitions")
# What in GBNF is no name: texts, sets of characters, comments.
_GBNF_LITERALS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')
Schema = Mapping[str, object]
# How llguidance begins what is more than one grammar in Lark's notation.
_SEVERAL = '{"grammars":'


# What the library advises is an option that callers do not have.
_SAYS_ONE_OF = (
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with "
    "anyOf"
)
_ONE_OF_REMEDY = "oneOf needs parts that exclude each other; use anyOf where several may hold"


class GrammarError(Exception):
    """A grammar that cannot be compiled; its text says what and where, on one line."""


def json_grammar(schema: Schema, whitespace: str | None = None) -> str:
    """JSON that this schema validates, with what `whitespace` matches between its parts (a regular
    expression; empty: nothing). Raises `GrammarError`."""
    options: Any = {"whitespace_pattern": whitespace or WHITESPACE}
    if whitespace == "":
        options = {"whitespace_flexible": False}
    try:
        return _bounded(LLMatcher.grammar_from_json_schema(dict(schema), defaults=options))
    except (ValueError, RecursionError) as error:
        raise GrammarError(_one_line(str(error))) from error


def regex_grammar(regex: str) -> str:
    """Texts that the whole of this regular expression matches."""
    return _bounded(LLMatcher.grammar_from_regex(regex))


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these texts."""
    return lark_grammar(f"start: {' | '.join(map(lark_text, choices))}")


def lark_text(text: str) -> str:
    """This very text, in Lark's notation. JSON leaves the one control character as it is that the
    notation does not take."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_grammar(grammar: str) -> str:
    """Texts of a grammar in Lark's notation, or in GBNF (EBNF as llama.cpp has it). Raises
    `GrammarError`."""
    if not is_lark_syntax(grammar):
        _check_rules(grammar)
        try:
            grammar = gbnf_to_lark(grammar)
        except (GbnfToLarkError, ValueError, LookupError, RecursionError) as error:
            raise GrammarError(_one_line(str(error))) from error
    return _bounded(LLMatcher.grammar_from_lark(grammar))


def within_grammar(outer: str, name: str, grammar: str) -> str:
    """Texts of a grammar in Lark's notation, `outer`, in which `@name` stands for texts of another
    `grammar`. Raises `GrammarError`."""
    inner: list[dict[str, Any]] = [{"lark_grammar": grammar}]
    if grammar.startswith(_SEVERAL):
        inner = json.loads(grammar)["grammars"]
    first, *others = inner
    grammars = [{"lark_grammar": outer}, {**first, "name": name}, *others]
    return _bounded(json.dumps({"grammars": grammars}, separators=(",", ":")))


class LlGuidanceGrammars:
    """Grammars over one tokenizer, whose tokens are looked at when they are first needed (a second
    for 150,000): every method raises `GrammarError` where they are of no use for that. May be used
    by several threads; each matcher by one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._source = tokenizer
        self._lock = threading.Lock()
        self._known: LLTokenizer | None = None
        self._mask_words = 0
        # Nothing is ever consumed by these: an answer begins with a copy.
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def load(self) -> "LlGuidanceGrammars":
        """Look at the tokens now."""
        with self._lock:
            self._tokens()
        return self

    def check(self, grammar: str) -> None:
        """Raises `GrammarError` for what cannot be compiled, is too large, or has no text."""
        compiled = self._compiled(grammar)
        if problem := compiled.get_error():
            raise GrammarError(_one_line(problem))
        first_RW = np.empty((1, self._mask_words), np.int32)
        self.fill_masks([LlGuidanceMatcher(compiled.deep_copy())], first_RW)
        if not first_RW.any():
            raise GrammarError("it allows no answer, or is too costly to follow")

    def check_schema(self, schema: Schema, whitespace: str | None = None) -> str:
        """The grammar of a JSON schema, as `json_grammar`. Raises `GrammarError` that names the
        place in it."""
        grammar = json_grammar(schema, whitespace)
        try:
            self.check(grammar)
        except GrammarError as error:
            place, problem = self._innermost(schema, str(error))
            raise GrammarError(f"{problem} (at {place})" if place else problem) from error
        return grammar

    def begin(self, grammar: str) -> "LlGuidanceMatcher":
        """For an answer without tokens so far."""
        return LlGuidanceMatcher(self._compiled(grammar).deep_copy())

    def fill_masks(
        self, matchers: Sequence["LlGuidanceMatcher"], allowed_RW: NDArray[np.int32]
    ) -> None:
        """Set the bit of each token that may come next. Of none where the answer has left its
        grammar, or the mask costs more than it may."""
        # The model may have more rows of logits than there are tokens, or fewer.
        words = self._mask_words
        masks_RW = np.zeros((len(matchers), words), np.int32)
        place = masks_RW.ctypes.data
        for row, core in enumerate(each.core for each in matchers):
            if not core.is_error():
                core.unsafe_compute_mask_ptr(place + 4 * words * row, 4 * words)
            if core.is_error():
                masks_RW[row] = 0
        common = min(words, allowed_RW.shape[1])
        allowed_RW[:, :common] = masks_RW[:, :common]
        allowed_RW[:, common:] = 0

    def _tokens(self) -> LLTokenizer:
        """Under the lock."""
        if self._known is None:
            ends = list(self._source.end_token_ids)
            if not ends:
                raise GrammarError("the model has no end-of-sequence token, which ends an answer")
            try:
                self._known = LLTokenizer(
                    self._source.core.to_str(),
                    # Ids may have gaps.
                    n_vocab=1 + max(self._source.core.get_vocab(True).values()),
                    eos_token=ends,
                )
            except ValueError as error:
                raise GrammarError(_one_line(str(error))) from error
            self._mask_words = -(-self._known.vocab_size // 32)
        return self._known

    def _compiled(self, grammar: str) -> LLMatcher:
        with self._lock:
            tokens = self._tokens()
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept
        # Other threads run meanwhile; two that compile the same come to the same.
        compiled = LLMatcher(tokens, grammar, log_level=0, limits=_LIMITS)
        if not compiled.is_error():
            with self._lock:
                self._kept[grammar] = compiled
                while len(self._kept) > KEPT_GRAMMARS:
                    self._kept.popitem(last=False)
        return compiled

    def _innermost(self, schema: Schema, problem: str) -> tuple[str, str]:
        """The place of the innermost part of a schema that fails by itself, as a JSON pointer, and
        what is said of it."""
        shared = {name: schema[name] for name in _DEFINITIONS if name in schema}
        place, left = "", _COMPILED_PARTS
        failing = _parts(schema)
        while failing:
            name, part = failing.pop(0)
            left -= 1
            if left < 0:
                break
            try:
                self.check(json_grammar(shared | dict(part)))
            except GrammarError as error:
                place, problem = place + name, str(error)
                failing = _parts(part)
        return place, problem


class LlGuidanceMatcher:
    """How far one answer is in its grammar."""

    def __init__(self, core: LLMatcher) -> None:
        self.core = core

    @property
    def complete(self) -> bool:
        """Whether the answer could end here."""
        return bool(self.core.is_accepting())

    def consume(self, tokens: Sequence[int]) -> None:
        """The answer goes on with these."""
        self.core.consume_tokens(list(tokens))

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first on, the answer may go on with."""
        return int(self.core.validate_tokens(list(tokens)))

    def rollback(self, tokens: int) -> None:
        """As if the last so many had not been consumed."""
        self.core.rollback(tokens)


def _parts(schema: Schema) -> list[tuple[str, Schema]]:
    """The schemas right inside of this one, with the last step of their place."""
    parts: list[tuple[str, Schema]] = []
    for key, value in schema.items():
        found: list[tuple[str, object]] = []
        if key in _NAMED and isinstance(value, Mapping):
            found = [(f"/{key}/{name}", each) for name, each in value.items()]
        elif key in _LISTED and isinstance(value, list):
            found = [(f"/{key}/{place}", each) for place, each in enumerate(value)]
        elif key in _SINGLE:
            found = [(f"/{key}", value)]
        parts += [(name, each) for name, each in found if isinstance(each, Mapping)]
    return parts


def _check_rules(gbnf: str) -> None:
    """Each rule that is named is there once, and there is a `root`. Raises `GrammarError`."""
    bare = _GBNF_LITERALS.sub(" ", gbnf)
    defined = Counter(re.findall(r"([A-Za-z][\w-]*)\s*::=", bare))
    named = dict.fromkeys(["root", *re.findall(r"[A-Za-z][\w-]*", bare)])
    for name in named:
        if defined[name] != 1:
            problem = "is defined more than once" if defined[name] else "is not defined"
            raise GrammarError(f"rule {name!r} {problem}")


def _bounded(grammar: str) -> str:
    if len(grammar) > GRAMMAR_CHARS_LIMIT:
        raise GrammarError(f"has more than {GRAMMAR_CHARS_LIMIT} characters")
    return grammar


def _one_line(text: str) -> str:
    """What a library says over several lines, some of which only point at places."""
    lines = [line.strip() for line in text.splitlines()]
    said = " ".join(line for line in lines if line.strip("^ "))
    return said.replace(_SAYS_ONE_OF, _ONE_OF_REMEDY)[:500]
