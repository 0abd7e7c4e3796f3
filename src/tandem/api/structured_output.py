"""Structured output: the fields by which a client asks for an answer of some form, in the words of
OpenAI and of vLLM, as one grammar."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tandem.api.requests import GenerationBody, StructuredOutputs
from tandem.facts.errors import InvalidRequest
from tandem.facts.sampling import GRAMMAR_CHARS_LIMIT, SamplingParameters
from tandem.facts.serving import ModelCard
from tandem.text.grammars import (
    GrammarError,
    LlGuidanceGrammars,
    choice_grammar,
    lark_grammar,
    regex_grammar,
)
from tandem.text.model import TextModel
from tandem.text.reasoning import ReasoningStart

CHOICES_LIMIT = 1024
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def wants_form(body: GenerationBody) -> bool:
    """Whether the client wants another answer than any text. Raises `InvalidRequest`."""
    return bool(_constraints(body))


def answer_grammar(body: GenerationBody, grammars: LlGuidanceGrammars) -> str:
    """What the answer must be a text of; empty where the client wants any text. May take some
    milliseconds. Raises `InvalidRequest` naming the field, and the place in a schema."""
    constraints = _constraints(body)
    if not constraints:
        return ""
    if len(constraints) > 1:
        (first, *_), (second, *_) = constraints[:2]
        raise InvalidRequest(second, f"asks for a form of the answer, as {first} does already")
    field, kind, value = constraints[0]
    try:
        if kind == "json":
            return grammars.check_schema(_schema(value), _whitespace(body))
        return _grammar(kind, value, grammars)
    except GrammarError as error:
        raise InvalidRequest(field, f"cannot be used: {error}") from error


def grammar_after_reasoning(
    make_grammar: Callable[[], str], start: ReasoningStart, text: TextModel
) -> str:
    """The grammar of an answer that begins so, with what `make_grammar` gives after its reasoning.
    May take some milliseconds. Raises `InvalidRequest`."""
    grammar = make_grammar()
    if start is ReasoningStart.NONE:
        return grammar
    try:
        grammar = text.after_reasoning(grammar, start)
        text.grammars.check(grammar)
    except GrammarError as error:
        problem = f"makes a form that cannot be used after reasoning: {error}"
        raise InvalidRequest("response_format", problem) from error
    return grammar


def constrained(sampling: SamplingParameters, grammar: str, card: ModelCard) -> SamplingParameters:
    """With that grammar: its end is the end of the answer, also where a client ignores others or
    wants more tokens."""
    ends = tuple(dict.fromkeys([*card.end_token_ids, *sampling.stop_token_ids]))
    return replace(sampling, grammar=grammar, stop_token_ids=ends, min_tokens=0)


def _constraints(body: GenerationBody) -> list[tuple[str, str, Any]]:
    """The fields that ask for a form, each with its kind and what it has."""
    found: list[tuple[str, str, Any]] = []
    wanted = body.response_format
    if wanted is not None and wanted.type == "json_object":
        found.append(("response_format", "json", _ANY_OBJECT))
    elif wanted is not None and wanted.type == "json_schema":
        if wanted.json_schema is None or wanted.json_schema.schema is None:
            raise InvalidRequest("response_format.json_schema.schema", "is missing")
        found.append(("response_format.json_schema.schema", "json", wanted.json_schema.schema))
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(body, f"guided_{kind}")
        if value is not None:
            found.append((f"guided_{kind}", kind, value))
    if body.structured_outputs is not None:
        found += _structured(body.structured_outputs)
    return found


def _structured(wanted: StructuredOutputs) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = []
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(wanted, kind)
        if value is not None:
            found.append((f"structured_outputs.{kind}", kind, value))
    if wanted.json_object:
        found.append(("structured_outputs.json_object", "json", _ANY_OBJECT))
    if wanted.disable_additional_properties:
        problem = "is not supported; let the schema say additionalProperties: false"
        raise InvalidRequest("structured_outputs.disable_additional_properties", problem)
    if not found:
        raise InvalidRequest(
            "structured_outputs", "needs one of json, json_object, regex, choice and grammar"
        )
    return found


def _grammar(kind: str, value: Any, grammars: LlGuidanceGrammars) -> str:
    if kind == "choice":
        grammar = choice_grammar(_choices(value))
    else:
        if not value or len(value) > GRAMMAR_CHARS_LIMIT:
            raise GrammarError(f"needs 1 to {GRAMMAR_CHARS_LIMIT} characters")
        grammar = regex_grammar(value) if kind == "regex" else lark_grammar(value)
    grammars.check(grammar)
    return grammar


def _whitespace(body: GenerationBody) -> str | None:
    wanted = body.structured_outputs
    if wanted is not None and wanted.disable_any_whitespace:
        return ""
    return body.guided_whitespace_pattern or (wanted and wanted.whitespace_pattern) or None


def _schema(value: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(value, str):
        return value
    if len(value) > GRAMMAR_CHARS_LIMIT:
        raise GrammarError(f"has more than {GRAMMAR_CHARS_LIMIT} characters")
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise GrammarError("is no JSON") from error
    if not isinstance(schema, dict):
        raise GrammarError("is no JSON object")
    return schema


def _choices(value: Sequence[str]) -> Sequence[str]:
    if not 0 < len(value) <= CHOICES_LIMIT or not all(value):
        raise GrammarError(f"needs 1 to {CHOICES_LIMIT} texts, none empty")
    return value
