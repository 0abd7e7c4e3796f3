"""DSPy: programs of signatures, here over LiteLLM."""

from typing import Literal

import dspy
import litellm
from outcomes import URL, check, not_offered, report
from questions import CHEST, HELLO, MODEL, WEATHER

# settings: what LiteLLM is told about the model lets DSPy ask for schemas and tools
litellm.register_model(
    {
        "hosted_vllm/tandem-mini": {
            "litellm_provider": "hosted_vllm",
            "mode": "chat",
            "supports_response_schema": True,
            "supports_function_calling": True,
        }
    }
)
TANDEM = {"api_base": f"{URL}/v1", "api_key": "none", "engine": "litellm", "cache": False}
lm = dspy.LM("hosted_vllm/tandem-mini", temperature=0, **TANDEM)
dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
# end of settings


class Treasure(dspy.Signature):
    """What is in the chest."""

    question: str = dspy.InputField()
    colour: Literal["copper", "silver", "gold"] = dspy.OutputField()
    is_heavy: bool = dspy.OutputField()


class Weather(dspy.Signature):
    """Call the tool."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return city


@check("text")
def text():
    (answer,) = lm(HELLO)
    assert answer
    assert lm.history[-1]["usage"]["completion_tokens"] > 1


@check("stream")
async def stream():
    pieces = [piece async for piece in dspy.streamify(dspy.Predict(Treasure))(question=CHEST)]
    assert len(pieces) > 2
    assert pieces[-1].colour in ("copper", "silver", "gold")


@check("tools")
def tools():
    adapter = dspy.JSONAdapter(use_native_function_calling=True)
    with dspy.context(adapter=adapter):
        found = dspy.Predict(Weather)(
            question=WEATHER, tools=[dspy.Tool(get_weather)], config={"tool_choice": "required"}
        )
    (call,) = found.calls.tool_calls
    assert call.name == "get_weather"
    assert set(call.args) == {"city"}


@check("structured output")
def structured_output():
    found = dspy.Predict(Treasure)(question=CHEST)
    assert found.colour in ("copper", "silver", "gold")
    assert isinstance(found.is_heavy, bool)


@check("errors")
def errors():
    try:
        dspy.LM("hosted_vllm/another", num_retries=0, **TANDEM)(HELLO)
    except dspy.LMUnsupportedModelError as refusal:
        assert MODEL in str(refusal)
    else:
        raise AssertionError("nothing was refused")


not_offered("cancellation", "a program runs to its end")

report("dspy")
