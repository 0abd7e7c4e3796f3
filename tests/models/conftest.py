"""Each tiny checkpoint is written once a run, and each face of the kernels is chosen once."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tandem.kernels.faces import Kernels, choose_kernels, reference_kernels
from tests.models.tiny import VARIANTS, build


@dataclass(frozen=True)
class Checkpoint:
    directory: Path
    oracle: PreTrainedModel


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Gives the checkpoint of a variant by name."""

    @cache
    def get(name: str) -> Checkpoint:
        directory = tmp_path_factory.mktemp(name)
        return Checkpoint(directory, build(VARIANTS[name], directory))

    return get


@pytest.fixture(scope="session", params=["reference", "native"])
def kernels(request) -> Kernels:
    if request.param == "reference":
        return reference_kernels()
    chosen, why = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
    if chosen.name == "reference":
        pytest.skip(why)
    return chosen
