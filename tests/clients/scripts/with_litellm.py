"""LiteLLM: chat, completions and embeddings of OpenAI's shape, messages of Anthropic's."""

import json

import litellm
from outcomes import URL, aborted, check, report
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
TANDEM = {"model": "hosted_vllm/tandem-mini", "api_base": f"{URL}/v1", "api_key": "none"}
# or "openai/tandem-mini"; for Anthropic's API "anthropic/tandem-mini" with URL itself
# end of settings

MESSAGES = [{"role": "user", "content": HELLO}]


def ask(text: str, **options):
    messages = [{"role": "user", "content": text}]
    return litellm.completion(**{**TANDEM, "messages": messages, "temperature": 0, **options})


@check("text")
def text():
    answer = ask(HELLO)
    assert answer.choices[0].message.content == GREETING
    assert answer.usage.total_tokens > 1


@check("text")
def text_as_any_server_of_openai_s_shape():
    assert ask(HELLO, model=f"openai/{MODEL}").choices[0].message.content == GREETING


@check("text")
def text_in_anthropic_s_shape():
    answer = ask(HELLO, model=f"anthropic/{MODEL}", api_base=URL, max_tokens=64)
    assert answer.choices[0].message.content == GREETING


@check("stream")
def stream():
    chunks = ask(SUM, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert SUM_ANSWER in said


@check("stream")
async def stream_of_the_asynchronous_calls():
    chunks = await litellm.acompletion(
        **TANDEM, messages=[{"role": "user", "content": SUM}], temperature=0, stream=True
    )
    said = [chunk.choices[0].delta.content or "" async for chunk in chunks]
    assert SUM_ANSWER in "".join(said)


@check("tools")
def tools():
    offered = [{"type": "function", "function": WEATHER_TOOL}]
    called = ask(WEATHER, tools=offered).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    conversation = [
        {"role": "user", "content": WEATHER},
        called.message,
        {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT},
    ]
    said = ask("", messages=conversation, tools=offered)
    assert said.choices[0].message.content == WEATHER_REPLY


@check("structured output")
def structured_output():
    answer = ask(CHEST, response_format=Treasure)
    Treasure.model_validate_json(answer.choices[0].message.content)


@check("errors")
def errors():
    for error, options in (
        (litellm.BadRequestError, {"max_tokens": -1}),
        (
            litellm.ContextWindowExceededError,
            {"messages": [{"role": "user", "content": "a " * 9000}]},
        ),
        (litellm.NotFoundError, {"model": "hosted_vllm/another"}),
    ):
        try:
            ask(HELLO, **options)
        except error:
            continue
        raise AssertionError(f"{list(options)} was not refused")


@check("cancellation")
async def cancellation():
    async with aborted():
        chunks = await litellm.acompletion(
            **TANDEM,
            messages=[{"role": "user", "content": STORY}],
            max_tokens=3000,
            extra_body={"ignore_eos": True},
            stream=True,
        )
        await anext(aiter(chunks))
        await chunks.aclose()


@check("completions")
def completions():
    answer = litellm.text_completion(**TANDEM, prompt="Once", max_tokens=12, temperature=0)
    assert answer.choices[0].text


@check("responses")
def responses():
    answer = litellm.responses(
        model=f"openai/{MODEL}",
        api_base=TANDEM["api_base"],
        api_key="none",
        input=HELLO,
        temperature=0,
    )
    assert answer.output_text == GREETING


report("litellm")
