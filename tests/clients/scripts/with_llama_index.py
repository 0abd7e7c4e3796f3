"""LlamaIndex: a model that is like OpenAI's."""

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from outcomes import URL, check, not_offered, report
from questions import (
    CHEST,
    GREETING,
    HELLO,
    SUM,
    SUM_ANSWER,
    WEATHER,
    WEATHER_REPLY,
    WEATHER_RESULT,
    Treasure,
)

# settings
TANDEM = {
    "model": "tandem-mini",
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "context_window": 4096,
    "is_chat_model": True,
    "is_function_calling_model": True,
    "should_use_structured_outputs": True,
}
model = OpenAILike(**TANDEM, temperature=0)
# end of settings


def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return WEATHER_RESULT


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


@check("text")
def text():
    assert model.chat([user(HELLO)]).message.content == GREETING


@check("stream")
def stream():
    pieces = [piece.delta for piece in model.stream_chat([user(SUM)])]
    assert len(pieces) > 2
    assert SUM_ANSWER in "".join(pieces)


@check("stream")
async def stream_of_the_asynchronous_calls():
    pieces = [piece.delta async for piece in await model.astream_chat([user(SUM)])]
    assert SUM_ANSWER in "".join(pieces)


@check("tools")
def tools():
    tool = FunctionTool.from_defaults(get_weather)
    called = model.chat_with_tools([tool], chat_history=[user(WEATHER)])
    (call,) = model.get_tool_calls_from_response(called)
    assert call.tool_kwargs == {"city": "Paris"}
    result = ChatMessage(
        role="tool", content=WEATHER_RESULT, additional_kwargs={"tool_call_id": call.tool_id}
    )
    said = model.chat_with_tools([tool], chat_history=[user(WEATHER), called.message, result])
    assert said.message.content == WEATHER_REPLY


@check("structured output")
def structured_output():
    answer = model.as_structured_llm(Treasure).chat([user(CHEST)])
    assert isinstance(answer.raw, Treasure)


@check("errors")
def errors():
    for error, options in (
        (openai.BadRequestError, {"additional_kwargs": {"n": 0}}),
        (openai.NotFoundError, {"model": "another"}),
    ):
        try:
            OpenAILike(**{**TANDEM, **options}).chat([user(HELLO)])
        except error:
            continue
        raise AssertionError(f"{options} was not refused")


not_offered("cancellation", "a stream that is left stays open until Python collects it")


@check("completions")
def completions():
    plain = OpenAILike(**{**TANDEM, "is_chat_model": False}, temperature=0, max_tokens=12)
    assert plain.complete("Once").text


report("llama-index-llms-openai-like")
