"""OpenAI's Agents SDK: agents over the Responses API, and over chat."""

import openai
from outcomes import URL, aborted, check, report
from questions import (
    CHEST,
    GREETING,
    HELLO,
    LONG_LIST,
    MODEL,
    STORY,
    SUM,
    SUM_ANSWER,
    WEATHER,
    WEATHER_REPLY,
    WEATHER_RESULT,
    Treasure,
)

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

# settings
set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none")
model = OpenAIResponsesModel("tandem-mini", client)  # or OpenAIChatCompletionsModel
# end of settings


@function_tool
def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: Name of the city
    """
    assert city == "Paris"
    return WEATHER_RESULT


def agent(**options) -> Agent:
    settings = options.pop("model_settings", ModelSettings(temperature=0))
    return Agent("Mini", **{"model": model, "model_settings": settings, **options})


@check("text")
async def text():
    assert (await Runner.run(agent(), HELLO)).final_output == GREETING


@check("text")
async def text_over_chat():
    over_chat = OpenAIChatCompletionsModel(MODEL, client)
    assert (await Runner.run(agent(model=over_chat), HELLO)).final_output == GREETING


@check("stream")
async def stream():
    run = Runner.run_streamed(agent(), SUM)
    said = [
        event.data.delta
        async for event in run.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert len(said) > 1
    assert SUM_ANSWER in "".join(said)


@check("tools")
async def tools():
    run = await Runner.run(agent(tools=[get_weather]), WEATHER)
    assert run.final_output == WEATHER_REPLY


@check("tools")
async def tools_over_chat():
    over_chat = OpenAIChatCompletionsModel(MODEL, client)
    run = await Runner.run(agent(model=over_chat, tools=[get_weather]), WEATHER)
    assert run.final_output == WEATHER_REPLY


@check("tools")
async def tools_in_a_stream():
    run = Runner.run_streamed(agent(tools=[get_weather]), WEATHER)
    kinds = [e.item.type async for e in run.stream_events() if e.type == "run_item_stream_event"]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert run.final_output == WEATHER_REPLY


@check("structured output")
async def structured_output():
    run = await Runner.run(agent(output_type=Treasure), CHEST)
    assert isinstance(run.final_output, Treasure)


@check("errors")
async def errors():
    try:
        await Runner.run(agent(model_settings=ModelSettings(max_tokens=-1)), HELLO)
    except openai.BadRequestError as refusal:
        assert refusal.code == "invalid_value"
    else:
        raise AssertionError("nothing was refused")


@check("cancellation")
async def cancellation():
    form = {"type": "json_schema", "name": "list", "schema": LONG_LIST}
    endless = ModelSettings(max_tokens=3000, extra_args={"text": {"format": form}})
    async with aborted():
        run = Runner.run_streamed(agent(model_settings=endless), STORY)
        async for event in run.stream_events():
            if event.type == "raw_response_event" and "delta" in event.data.type:
                run.cancel()


report("openai-agents")
