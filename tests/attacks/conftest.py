"""The text model that the attacked front doors have."""

import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator


@pytest.fixture(scope="session")
def text() -> TextModel:
    """Of the bundled model."""
    return TextModel.load(BUNDLED_MODEL)


@pytest.fixture
def generator(text: TextModel) -> ScriptedGenerator:
    return ScriptedGenerator(text)
