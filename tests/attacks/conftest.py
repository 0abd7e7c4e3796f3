import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.text.model import TextModel


@pytest.fixture(scope="session")
def text() -> TextModel:
    """Of the bundled model."""
    return TextModel.load(BUNDLED_MODEL)
