"""LangChain's ChatOpenAI, over chat and over responses."""

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from outcomes import URL, aborted, check, report
from questions import (
    CHEST,
    GREETING,
    HELLO,
    STORY,
    SUM,
    SUM_ANSWER,
    WEATHER,
    WEATHER_REPLY,
    WEATHER_RESULT,
    Treasure,
)

# settings
TANDEM = {"base_url": f"{URL}/v1", "api_key": "none", "model": "tandem-mini"}
chat = ChatOpenAI(**TANDEM, temperature=0)
# end of settings

over_responses = ChatOpenAI(**TANDEM, temperature=0, use_responses_api=True)


def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: Name of the city
    """
    return WEATHER_RESULT


@check("text")
def text():
    answer = chat.invoke(HELLO)
    assert answer.text == GREETING
    assert answer.usage_metadata["output_tokens"] > 1


@check("text")
def text_over_responses():
    assert over_responses.invoke(HELLO).text == GREETING


@check("stream")
def stream():
    pieces = [piece.text for piece in chat.stream(SUM)]
    assert len(pieces) > 2
    assert SUM_ANSWER in "".join(pieces)


@check("stream")
async def stream_over_responses():
    pieces = [piece.text async for piece in over_responses.astream(SUM)]
    assert SUM_ANSWER in "".join(pieces)


@check("tools")
def tools():
    use_tools(chat)


@check("tools")
def tools_over_responses():
    use_tools(over_responses)


def use_tools(model):
    able = model.bind_tools([get_weather])
    called = able.invoke(WEATHER)
    (call,) = called.tool_calls
    assert call["args"] == {"city": "Paris"}
    result = ToolMessage(WEATHER_RESULT, tool_call_id=call["id"])
    assert able.invoke([HumanMessage(WEATHER), called, result]).text == WEATHER_REPLY


@check("structured output")
def structured_output():
    for method in ("json_schema", "function_calling"):
        able = chat.with_structured_output(Treasure, method=method)
        assert isinstance(able.invoke(CHEST), Treasure), method


@check("structured output")
def structured_output_over_responses():
    assert isinstance(over_responses.with_structured_output(Treasure).invoke(CHEST), Treasure)


@check("errors")
def errors():
    for error, model in (
        (openai.BadRequestError, ChatOpenAI(**TANDEM, max_tokens=-1)),
        (openai.NotFoundError, ChatOpenAI(**{**TANDEM, "model": "another"})),
    ):
        try:
            model.invoke(HELLO)
        except error:
            continue
        raise AssertionError(f"{error.__name__} was not raised")


@check("cancellation")
def cancellation():
    endless = ChatOpenAI(**TANDEM, max_tokens=3000, extra_body={"ignore_eos": True})
    with aborted():
        pieces = endless.stream(STORY)
        next(pieces)
        pieces.close()


@check("completions")
def completions():
    assert OpenAI(**TANDEM, temperature=0, max_tokens=12).invoke("Once")


@check("log-probabilities")
def logprobs():
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(HELLO)
    assert len(answer.response_metadata["logprobs"]["content"]) > 1


report("langchain-openai")
