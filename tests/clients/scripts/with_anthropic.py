"""Anthropic's client for Python: messages, counted tokens."""

import anthropic
from outcomes import URL, aborted, check, report
from questions import (
    CHEST,
    CITY,
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
    WEATHER_TOOL,
    Treasure,
)

# settings
client = anthropic.Anthropic(base_url=URL, api_key="none")
# end of settings

GREEDY = {"temperature": 0}
TOOL = {
    "name": WEATHER_TOOL["name"],
    "description": WEATHER_TOOL["description"],
    "input_schema": CITY,
}


def wish(text: str, **options):
    """The version of the client decides what is a parameter: temperature is none any more."""
    extra = {**GREEDY, **options.pop("extra_body", {})}
    return {
        "model": MODEL,
        "max_tokens": 256,
        "messages": [{"role": "user", "content": text}],
        "extra_body": extra,
        **options,
    }


@check("text")
def text():
    message = client.messages.create(**wish(HELLO, system="Be kind."))
    # Another system prompt may bring another greeting.
    assert message.content[0].text.startswith(GREETING.split()[0])
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens > 1


@check("stream")
def stream():
    with client.messages.stream(**wish(SUM)) as events:
        said = "".join(events.text_stream)
    assert SUM_ANSWER in said
    assert events.get_final_message().content[0].text == said


@check("stream")
async def stream_of_the_asynchronous_client():
    async with (
        anthropic.AsyncAnthropic(base_url=URL, api_key="none") as other,
        other.messages.stream(**wish(SUM)) as events,
    ):
        assert SUM_ANSWER in await events.get_final_text()


@check("tools")
def tools():
    called = client.messages.create(**wish(WEATHER, tools=[TOOL]))
    assert called.stop_reason == "tool_use"
    use = called.content[-1]
    assert use.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": WEATHER_RESULT}
    conversation = [
        {"role": "user", "content": WEATHER},
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    said = client.messages.create(**wish("", tools=[TOOL], messages=conversation))
    assert said.content[0].text == WEATHER_REPLY


@check("tools")
def tools_in_a_stream():
    with client.messages.stream(
        **wish(WEATHER, tools=[TOOL], tool_choice={"type": "any"})
    ) as events:
        use = events.get_final_message().content[-1]
    assert use.name == "get_weather"
    assert set(use.input) == {"city"}


@check("tools")
def tools_that_the_client_runs():
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city

        Args:
            city: Name of the city
        """
        return WEATHER_RESULT

    said = client.beta.messages.tool_runner(**wish(WEATHER, tools=[get_weather])).until_done()
    assert said.content[0].text == WEATHER_REPLY


@check("structured output")
def structured_output():
    answer = client.messages.parse(**wish(CHEST, output_format=Treasure))
    assert isinstance(answer.parsed_output, Treasure)


@check("errors")
def errors():
    for error, options in (
        (anthropic.BadRequestError, {"messages": []}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
        (anthropic.NotFoundError, {"model": "another"}),
    ):
        try:
            client.messages.create(**wish(HELLO, **options))
        except error as refusal:
            assert refusal.body["error"]["message"], refusal
        else:
            raise AssertionError(f"{options} was not refused")


@check("cancellation")
def cancellation():
    with aborted():
        form = {"format": {"type": "json_schema", "schema": LONG_LIST}}
        with client.messages.stream(**wish(STORY, max_tokens=3000, output_config=form)) as events:
            next(iter(events))


@check("models")
def models():
    assert MODEL in [model.id for model in client.models.list()]


@check("counted tokens")
def counted_tokens():
    counted = client.messages.count_tokens(
        model=MODEL, messages=[{"role": "user", "content": HELLO}]
    )
    used = client.messages.create(**wish(HELLO)).usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


report("anthropic")
