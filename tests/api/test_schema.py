"""Fuzzes the server with its own schema: no input makes it fail, and answers are as declared."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tandem.api.app import build_app
from tandem.api.config import ApiConfig

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
OPERATIONS = 21
EXAMPLES = 12


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_fuzzed_calls(generator, text, mode):
    app = build_app(generator, text, ApiConfig(max_choices=4))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == OPERATIONS
    for operation in operations:
        if mode is GenerationMode.POSITIVE or operation.method == "post":
            fuzz(operation.as_strategy(generation_mode=mode))


def fuzz(cases) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def one(case) -> None:
        case.call_and_validate(checks=CHECKS)

    one()


def test_the_schema_is_whole(http):
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
