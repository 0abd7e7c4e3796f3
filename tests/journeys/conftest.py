from collections.abc import Iterator

import openai
import pytest

from tests.journeys.serving import serving


@pytest.fixture(scope="session")
def one_process() -> Iterator[openai.OpenAI]:
    """A client of the server whose answers every cluster must give too."""
    with serving("--max-num-seqs", "16", "--threads", "1") as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
