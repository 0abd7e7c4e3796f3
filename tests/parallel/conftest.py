"""One world of ranks a module, and the tiny checkpoints of the model tests."""

from collections.abc import Iterator

import pytest

from tests.models.conftest import checkpoints
from tests.parallel.ranks import Ranks

__all__ = ["checkpoints", "ranks"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Iterator[Ranks]:
    world = Ranks(tmp_path_factory.mktemp("ranks"))
    yield world
    world.close()
