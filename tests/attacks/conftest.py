"""The text model that the attacked front doors have, and a loop for tests that are coroutines."""

import asyncio
import inspect

import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator

# Whatever hangs, the attack has succeeded: what a test waits for has its own, shorter patience.
LONGEST_S = 60.0


@pytest.fixture(scope="session")
def text() -> TextModel:
    """Of the bundled model."""
    return TextModel.load(BUNDLED_MODEL)


@pytest.fixture
def generator(text: TextModel) -> ScriptedGenerator:
    return ScriptedGenerator(text)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs each coroutine among the tests of this folder on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    scenario = pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(scenario, LONGEST_S))
    return True
