"""Questions whose answers depend on nothing but model, parameters and seed, and how to ask them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import openai

FACTS = "\n".join(f"- thing {number}: {(number * 37) % 101}" for number in range(60))
LONG = f"Please remember these facts.\n{FACTS}\nWhat is the value of thing 17?"
STORY = "Tell me a story."
SOURCES = {"return_token_sources": True}


@dataclass(frozen=True)
class Answer:
    """What a client sees of one answer. `logprobs` are empty unless asked for."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    prompt_tokens: int
    output_tokens: int
    logprobs: tuple[float, ...] = ()


def complete(client: openai.OpenAI, prompt: str, max_tokens: int, **options):
    """An answer of exactly so many tokens, or its chunks."""
    body = {"ignore_eos": True} | options.pop("extra_body", {})
    return client.completions.create(
        model="tandem-mini", prompt=prompt, max_tokens=max_tokens, extra_body=body, **options
    )


def teller(chunk) -> str:
    """The worker that drew the last token of a chunk, of a stream with `SOURCES`."""
    return chunk.choices[0].token_sources[-1][0]


def joined(chunks) -> str:
    """The one text of a stream of completions."""
    return "".join(choice.text for chunk in chunks for choice in chunk.choices)


def _chat(client: openai.OpenAI, text: str, **options) -> Answer:
    answer = client.chat.completions.create(
        model="tandem-mini", messages=[{"role": "user", "content": text}], **options
    )
    logprobs = answer.choices[0].logprobs
    return Answer(
        tuple(choice.message.content for choice in answer.choices),
        tuple(choice.finish_reason for choice in answer.choices),
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        tuple(entry.logprob for entry in logprobs.content) if logprobs else (),
    )


def _streamed(client: openai.OpenAI, text: str, **options) -> Answer:
    texts, reason, usage = [], "", None
    for chunk in client.chat.completions.create(
        model="tandem-mini",
        messages=[{"role": "user", "content": text}],
        stream=True,
        stream_options={"include_usage": True},
        **options,
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    return Answer(("".join(texts),), (reason,), usage.prompt_tokens, usage.completion_tokens)


def _scored(client: openai.OpenAI, text: str, **options) -> Answer:
    """With the log-probabilities of the prompt, which is echoed, before those of the answer."""
    choice = client.completions.create(
        model="tandem-mini", prompt=text, echo=True, temperature=0, **options
    ).choices[0]
    scores = choice.logprobs.token_logprobs
    assert scores[0] is None
    return Answer(
        (choice.text,),
        (choice.finish_reason,),
        len(scores),
        options["max_tokens"],
        tuple(scores[1:]),
    )


def _completed(client: openai.OpenAI, text: str, **options) -> Answer:
    answer = client.completions.create(model="tandem-mini", prompt=text, **options)
    return Answer(
        tuple(choice.text for choice in answer.choices),
        tuple(choice.finish_reason for choice in answer.choices),
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )


LONG_ANSWER = {"max_tokens": 40, "extra_body": {"ignore_eos": True}}
TREASURE = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["copper", "silver", "gold"]},
        "count": {"type": "integer", "minimum": 10, "maximum": 99},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["colour", "count", "notes"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "treasure", "schema": TREASURE}}
BEST_OF_THREE = {"scaling": {"method": "best-of-n", "samples": 3}}
FILTERS = {
    "typical_p": 0.9, "xtc_probability": 0.5, "dry_multiplier": 0.8, "dry_allowed_length": 1,
}  # fmt: skip
QUESTIONS = {
    "greedy": lambda client: _chat(client, LONG, temperature=0, max_tokens=24),
    "greedy again": lambda client: _chat(client, LONG, temperature=0, max_tokens=24),
    "short": lambda client: _chat(client, "Hello!", temperature=0),
    "one token": lambda client: _chat(client, LONG, temperature=0, max_tokens=1),
    "sampled": lambda client: _chat(client, STORY, temperature=1, seed=5, max_tokens=60),
    "streamed": lambda client: _streamed(client, STORY, temperature=0.8, seed=9, max_tokens=60),
    "stop string": lambda client: _chat(client, LONG, temperature=0, stop=["s "], max_tokens=24),
    "logprobs": lambda client: _chat(
        client, LONG, temperature=0, logprobs=True, top_logprobs=2, max_tokens=12
    ),
    "a scored prompt": lambda client: _scored(client, LONG, logprobs=1, max_tokens=1),
    "a scored prompt alone": lambda client: _scored(client, LONG, logprobs=3, max_tokens=0),
    "three answers": lambda client: _chat(
        client, LONG, n=3, temperature=1, seed=3, **LONG_ANSWER
    ),
    "penalties": lambda client: _chat(
        client, STORY, temperature=0.7, seed=2, frequency_penalty=0.8, presence_penalty=0.4,
        **LONG_ANSWER,
    ),
    "best of three": lambda client: _chat(
        client, "What is 73 * 58?", seed=4, temperature=1, max_tokens=120, extra_body=BEST_OF_THREE
    ),
    "beams": lambda client: _completed(
        client, "Once " * 90, n=2, max_tokens=6, temperature=0, extra_body={"use_beam_search": True}
    ),
    "best of four, of many filters": lambda client: _completed(
        client, LONG, n=2, best_of=4, seed=12, max_tokens=24, temperature=1, extra_body=FILTERS
    ),
    "completion": lambda client: _completed(client, "Once " * 90, temperature=0, **LONG_ANSWER),
    "two of a schema": lambda client: _chat(
        client, LONG, n=2, temperature=1, seed=6, logprobs=True, frequency_penalty=0.5,
        max_tokens=60, response_format=FORMAT,
    ),
    "streamed, of a regular expression": lambda client: _streamed(
        client, STORY, temperature=1, seed=8, extra_body={"guided_regex": "([a-z ]{4,9}; ){2}end"}
    ),
}  # fmt: skip


def ask_everything(client: openai.OpenAI) -> dict[str, Answer]:
    """Every question once, all at the same time."""
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        asked = {name: pool.submit(ask, client) for name, ask in QUESTIONS.items()}
        return {name: answer.result() for name, answer in asked.items()}
