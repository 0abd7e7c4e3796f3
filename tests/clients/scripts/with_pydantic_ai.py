"""Pydantic AI: agents over chat, over responses and over Anthropic's messages."""

from outcomes import URL, aborted, check, report
from pydantic_ai import Agent, ModelHTTPError, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from questions import (
    CHEST,
    GREETING,
    HELLO,
    MODEL,
    STORY,
    SUM,
    SUM_ANSWER,
    WEATHER,
    WEATHER_REPLY,
    WEATHER_RESULT,
    Treasure,
)

# settings
provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
chat = OpenAIChatModel("tandem-mini", provider=provider)
# end of settings

MODELS = {
    "chat": chat,
    "responses": OpenAIResponsesModel(MODEL, provider=provider),
    "messages": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none")),
}
GREEDY = {"temperature": 0, "max_tokens": 256}


def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: Name of the city
    """
    assert city == "Paris"
    return WEATHER_RESULT


def agent(model=chat, **options) -> Agent:
    return Agent(model, **{"model_settings": GREEDY, "retries": 0, **options})


@check("text")
async def text():
    for name, model in MODELS.items():
        assert (await agent(model).run(HELLO)).output == GREETING, name


@check("stream")
async def stream():
    for name, model in MODELS.items():
        async with agent(model).run_stream(SUM) as run:
            pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
        assert len(pieces) > 2, name
        assert SUM_ANSWER in "".join(pieces), name


@check("tools")
async def tools():
    for name, model in MODELS.items():
        run = await agent(model, tools=[get_weather]).run(WEATHER)
        assert run.output == WEATHER_REPLY, name


@check("structured output")
async def structured_output():
    # Of models of Anthropic's API that it does not know by name it asks for tools instead.
    for name in ("chat", "responses"):
        run = await agent(MODELS[name], output_type=NativeOutput(Treasure)).run(CHEST)
        assert isinstance(run.output, Treasure), name


@check("structured output")
async def structured_output_as_a_tool():
    for name, model in MODELS.items():
        run = await agent(model, output_type=Treasure).run(CHEST)
        assert isinstance(run.output, Treasure), name


@check("errors")
async def errors():
    for name, model in MODELS.items():
        try:
            await agent(model, model_settings={"max_tokens": -1}).run(HELLO)
        except ModelHTTPError as refusal:
            assert refusal.status_code == 400, name
        else:
            raise AssertionError(f"{name}: nothing was refused")


@check("cancellation")
async def cancellation():
    endless = {"max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    async with aborted(), agent(model_settings=endless).run_stream(STORY) as run:
        async for _ in run.stream_text(delta=True):
            await run.cancel()
            break


report("pydantic-ai-slim")
