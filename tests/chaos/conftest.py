"""One small cluster for the storms of the test suite."""

import pytest

from tests.chaos.run import up
from tests.chaos.shapes import SMALL


@pytest.fixture(scope="package")
def small_cluster(tmp_path_factory):
    """With two gateways, one prefill and two decode workers; whole again after each storm."""
    with up(SMALL, tmp_path_factory.mktemp("cluster")) as place:
        yield place
