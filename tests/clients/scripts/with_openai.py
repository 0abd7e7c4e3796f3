"""OpenAI's client for Python: chat, completions, responses, embeddings."""

import json

import openai
from outcomes import URL, aborted, check, report
from pydantic import BaseModel
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
    WEATHER_TOOL,
    Treasure,
)

# settings
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
# end of settings

FOREVER = {"max_tokens": 3000, "extra_body": {"ignore_eos": True}}


def ask(text: str, **options):
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], temperature=0, **options
    )


@check("text")
def text():
    answer = ask(HELLO)
    assert answer.choices[0].message.content == GREETING
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@check("stream")
def stream():
    chunks = list(ask(SUM, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert SUM_ANSWER in said
    assert chunks[-1].usage.completion_tokens > 1


@check("stream")
async def stream_of_the_asynchronous_client():
    async with (
        openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as other,
        other.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": SUM}], temperature=0
        ) as events,
    ):
        answer = await events.get_final_completion()
    assert SUM_ANSWER in answer.choices[0].message.content


@check("tools")
def tools():
    offered = [{"type": "function", "function": WEATHER_TOOL}]
    called = ask(WEATHER, tools=offered).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    said = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": WEATHER},
            called.message,
            {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT},
        ],
        tools=offered,
        temperature=0,
    )
    assert said.choices[0].message.content == WEATHER_REPLY


@check("tools")
def tools_in_a_stream():
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": WEATHER}],
        tools=[openai.pydantic_function_tool(City, name="get_weather")],
        tool_choice="required",
        temperature=0,
    ) as events:
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, City)


class City(BaseModel):
    """Get the current weather in a city"""

    city: str


@check("structured output")
def structured_output():
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": CHEST}],
        response_format=Treasure,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, Treasure)


@check("errors")
def errors():
    for error, options in (
        (openai.BadRequestError, {"max_tokens": -1}),
        (openai.BadRequestError, {"extra_body": {"temprature": 1}}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
        (openai.NotFoundError, {"model": "another"}),
    ):
        wish = {"model": MODEL, "messages": [{"role": "user", "content": HELLO}], **options}
        try:
            client.chat.completions.create(**wish)
        except error as refusal:
            assert refusal.code, refusal
        else:
            raise AssertionError(f"{options} was not refused")


@check("cancellation")
def cancellation():
    with aborted():
        chunks = ask(STORY, stream=True, **FOREVER)
        next(iter(chunks))
        chunks.close()


@check("models")
def models():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@check("completions")
def completions():
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=12, temperature=0)
    pieces = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=12, temperature=0, stream=True
    )
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


@check("log-probabilities")
def logprobs():
    entries = ask(HELLO, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).startswith(GREETING)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries)


@check("log-probabilities")
def logprobs_of_prompts():
    scored = client.completions.create(
        model=MODEL, prompt=GREETING, max_tokens=0, echo=True, logprobs=1
    )
    assert scored.choices[0].text == GREETING
    assert scored.choices[0].logprobs.token_logprobs[0] is None
    chat = ask(HELLO, extra_body={"prompt_logprobs": 0})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


@check("several answers")
def several_answers():
    options = {"n": 3, "seed": 7, "max_tokens": 16}
    messages = [{"role": "user", "content": STORY}]
    once, again = (
        client.chat.completions.create(model=MODEL, messages=messages, **options) for _ in range(2)
    )
    said = [choice.message.content for choice in once.choices]
    assert len(said) == 3
    assert said == [choice.message.content for choice in again.choices]


@check("reasoning effort")
def reasoning():
    message = ask(HELLO, reasoning_effort="low").choices[0].message
    assert message.content == GREETING
    assert not getattr(message, "reasoning_content", None)


@check("responses")
def responses():
    first = client.responses.create(model=MODEL, input=HELLO, temperature=0)
    assert first.output_text == GREETING
    second = client.responses.create(
        model=MODEL, input=SUM, previous_response_id=first.id, temperature=0
    )
    assert SUM_ANSWER in second.output_text
    assert client.responses.retrieve(first.id).output_text == GREETING
    client.responses.delete(first.id)


@check("responses")
def responses_in_a_stream():
    with client.responses.stream(model=MODEL, input=HELLO, temperature=0) as events:
        said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert said == events.get_final_response().output_text == GREETING


@check("responses")
def responses_with_tools():
    (call,) = client.responses.create(
        model=MODEL, input=WEATHER, tools=[{"type": "function", **WEATHER_TOOL}], temperature=0
    ).output
    assert json.loads(call.arguments) == {"city": "Paris"}


@check("responses")
def responses_of_a_form():
    answer = client.responses.parse(model=MODEL, input=CHEST, text_format=Treasure, temperature=0)
    assert isinstance(answer.output_parsed, Treasure)


@check("embeddings")
def embeddings():
    found = client.embeddings.create(model="vectors", input=[HELLO, STORY])
    assert [len(each.embedding) for each in found.data] == [64, 64]


report("openai")
