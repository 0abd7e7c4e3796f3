"""`tandem serve` over HTTP, of this environment or of another: each prompt is a streamed
completion of its own."""

import asyncio
import json
import uuid
from contextlib import ExitStack
from typing import Any

import aiohttp
from protocol import Answer, Generate, Watch, Wishes, serve

from tandem_process import serving

FORMS = {
    "bfloat16": ("--dtype", "bfloat16"),
    "int8": ("--quantization", "int8"),
    "int4": ("--quantization", "int4"),
}


def load_served(wishes: Wishes, running: ExitStack) -> Generate:
    options = [*FORMS[wishes.kind], "--threads", str(wishes.threads), "--port", "0"]
    options += ["--max-model-len", str(wishes.context_tokens), "--kv-cache-memory", "512MiB"]
    if wishes.instruction_set:
        options += ["--instruction-set", wishes.instruction_set]
    url = running.enter_context(
        serving("serve", wishes.model, *options, python=wishes.tandem_python)
    )

    def generate(prompts: list[list[int]], answers: list[int]) -> Answer:
        watch = Watch()

        async def answered(
            session: aiohttp.ClientSession, number: int, prompt: list[int]
        ) -> list[int]:
            body: dict[str, Any] = {"prompt": prompt, "max_tokens": answers[number]}
            body |= {"temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}
            if not wishes.prefix_caching:
                body["cache_salt"] = uuid.uuid4().hex
            said: list[int] = []
            async with session.post(f"{url}/v1/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    text = line.decode().removeprefix("data: ").strip()
                    if text and text != "[DONE]":
                        tokens = json.loads(text)["choices"][0].get("token_ids") or []
                        said += tokens
                        for _ in tokens:
                            watch.token_came(number)
            return said

        async def all_answered() -> list[list[int]]:
            timeout = aiohttp.ClientTimeout(total=600)
            async with aiohttp.ClientSession(timeout=timeout) as session:
                asked = [answered(session, *each) for each in enumerate(prompts)]
                return await asyncio.gather(*asked)

        return watch.answer(asyncio.run(all_answered()))

    return generate


with ExitStack() as running:
    serve(lambda wishes: load_served(wishes, running))
