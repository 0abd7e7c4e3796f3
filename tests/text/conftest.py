from pathlib import Path

import pytest

from tandem.text.model import TextModel
from tests.text.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path)
