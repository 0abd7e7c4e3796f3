from collections.abc import Iterator

import httpx2
import openai
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.text.model import TextModel
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.api.server import serving
from tests.text.tiny_checkpoint import write_checkpoint

MAX_BODY_BYTES = 1 << 20


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="session")
def the_generator(text: TextModel) -> ScriptedGenerator:
    return ScriptedGenerator(text)


@pytest.fixture(scope="session")
def port(the_generator: ScriptedGenerator, text: TextModel) -> Iterator[int]:
    config = ApiConfig(max_body_bytes=MAX_BODY_BYTES, max_choices=8, body_timeout_s=0.3)
    with serving(build_app(the_generator, text, config)) as port:
        yield port


@pytest.fixture
def generator(the_generator: ScriptedGenerator) -> Iterator[ScriptedGenerator]:
    """The server's generator, with a fresh script; nothing may run once the test is over."""
    the_generator.script = Script()
    the_generator.requests.clear()
    yield the_generator
    the_generator.wait_until_running(0)
    the_generator.ready, the_generator.failed = True, False


@pytest.fixture
def client(port: int, generator: ScriptedGenerator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=30
    ) as client:
        yield client


@pytest.fixture
def http(port: int, generator: ScriptedGenerator) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client
