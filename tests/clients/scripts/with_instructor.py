"""Instructor: answers as Pydantic models, by schemas or by tools."""

import instructor
import openai
from instructor.core.exceptions import InstructorRetryException
from outcomes import URL, check, not_offered, report
from questions import CHEST, MODEL, Treasure

# settings
openai_client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
client = instructor.from_openai(openai_client, mode=instructor.Mode.JSON_SCHEMA)
# end of settings

ASKED = {"model": MODEL, "messages": [{"role": "user", "content": CHEST}], "temperature": 0}


@check("text")
def text():
    _, completion = client.create_with_completion(response_model=Treasure, **ASKED)
    assert completion.usage.completion_tokens > 1


@check("stream")
def stream():
    *_, last = client.create_partial(response_model=Treasure, **ASKED)
    Treasure.model_validate(last.model_dump())


@check("tools")
def tools():
    by_tools = instructor.from_openai(openai_client, mode=instructor.Mode.TOOLS)
    assert isinstance(by_tools.create(response_model=Treasure, **ASKED), Treasure)


@check("structured output")
def structured_output():
    assert isinstance(client.create(response_model=Treasure, **ASKED), Treasure)


@check("errors")
def errors():
    try:
        client.create(response_model=Treasure, max_retries=0, **{**ASKED, "model": "another"})
    except InstructorRetryException as refusal:
        assert "another" in str(refusal)
    else:
        raise AssertionError("nothing was refused")


not_offered("cancellation", "a stream that is left stays open until Python collects it")

report("instructor")
