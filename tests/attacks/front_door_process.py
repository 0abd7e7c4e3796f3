"""The front door of a gateway of the bundled model in a process of its own, over a script in place
of workers: `python -m tests.attacks.front_door_process` prints its port and serves."""

import asyncio
from dataclasses import replace
from pathlib import Path

import tandem
from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.live.http_server import http_server_over, listen
from tandem.text.model import TextModel
from tests.attacks.long_answers import LongWinded

CONTEXT_TOKENS = 4096


def main() -> None:
    text = TextModel.load(Path(tandem.__file__).parent / "bundled" / "tandem-mini")
    generator = LongWinded(text)
    # As when the workers are far ahead of the front door.
    generator.tokens_per_output = 32
    generator.different_alternatives = 2
    generator._card = replace(generator.card, context_tokens=CONTEXT_TOKENS)
    with listen("127.0.0.1", 0) as listener:
        api = ApiConfig()
        server = http_server_over(build_app(generator, text, api), api.connections, "critical")
        print(listener.getsockname()[1], flush=True)
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
