"""Fuzzes the server with its own schema, with all checks that schemathesis has: no input makes it
fail, answers are as declared, what the schema allows is accepted and what it forbids is refused.

TANDEM_SEEDS=all draws many more calls, and SCHEMA_SEED others.
"""

import os
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.api.every_endpoint import OPERATOR, build_whole_app, text_of
from tests.api.server import client_of
from tests.seeds import seeds

load_all_checks()
EVERY_CHECK = CHECKS.get_all()
OPERATIONS = 56
EXAMPLES = seeds(5, 400)
SEED = int(os.environ.get("SCHEMA_SEED", "0"))
HEADERS = {"Authorization": f"Bearer {OPERATOR}"}
# What no schema can say: what is refused for its content, or beside another field.
BEYOND_SCHEMAS = re.compile(
    "|".join(
        (
            "cannot be used:",
            "cannot be combined with",
            "cannot be held to by",
            "asks for a form of the answer, as .* does already",
            "asks for more than .* choices over all prompts",
            "belongs to",
            "end with a tool_use block",
            # Reasoning alone, of which there is nothing.
            "input must not be empty",
            "have tool call arguments that are no JSON",
            "allows .* which is none of the tools",
            "names .* which is none of the tools",
            "needs tools, and a model whose calls can be demanded",
            "contradicts",
            r"must be at least n\b",
            "must be between 0 and .*, got",
            "must be one text or as many as",
            "with scaling",
            "is too large for use_beam_search",
            "maximum context length",
            "is none of the list",
            "the model reads at most",
        )
    )
)
SERVED = {"model": "tiny", "version": "1"}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return build_whole_app(text_of(folder), folder)


def operations_of(app):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    return [result.ok() for result in schema.get_all_operations()]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_fuzzed_calls(app, mode):
    operations = operations_of(app)
    assert len(operations) == OPERATIONS
    for operation in operations:
        can_be_wrong = operation.method == "post" and (operation.body or operation.query)
        # Any text is a name: a call without more cannot be wrong.
        if mode is GenerationMode.POSITIVE or can_be_wrong:
            # What is drawn as the name of a model is none; a valid call of one has another.
            fuzz(operation.as_strategy(generation_mode=mode), names=mode is GenerationMode.POSITIVE)


def fuzz(cases, *, names: bool = False) -> None:
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(SEED)
    @given(case=cases)
    def one(case) -> None:
        served = names and case.path.startswith("/v2/") and case.method == "POST"
        if served:
            case.path_parameters = {name: SERVED[name] for name in case.path_parameters}
        response = case.call(headers=HEADERS)
        beyond = response.status_code == 400 and BEYOND_SCHEMAS.search(response.text)
        # No schema says which tensors a model takes.
        left_out = [positive_data_acceptance] if beyond or served else []
        # What is drawn for a form may be nothing once it is written as one.
        left_out += [negative_data_rejection] if case.path == "/v1/files" else []
        case.validate_response(
            response, checks=EVERY_CHECK, excluded_checks=left_out, headers=HEADERS
        )

    one()


def test_the_schema_is_whole(app):
    with client_of(app) as http:
        schema = http.get("/openapi.json").json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) == OPERATIONS
    chat = schema["components"]["schemas"]["ChatBody"]
    assert chat["required"] == ["messages"]
    assert chat["additionalProperties"] is False
    assert "user" in chat["properties"]
    responses = schema["components"]["schemas"]["ResponsesBody"]["properties"]
    assert responses["background"] == {"x-support": "refused", "enum": [None, False]}
    assert responses["max_tool_calls"] == {"x-support": "ignored"}
    assert "x-support" not in responses["metadata"]
    prompt = schema["components"]["schemas"]["CompletionBody"]["properties"]["prompt"]
    assert [option["type"] for option in prompt["anyOf"]] == ["string", *["array"] * 3]
    assert "HTTPValidationError" not in schema["components"]["schemas"]
