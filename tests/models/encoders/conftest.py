"""Each tiny encoder is written once a run."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tandem.kernels.faces import Kernels, choose_kernels
from tests.models.encoders.tiny import CLASSIFIERS, MODELS, build


@dataclass(frozen=True)
class EncoderCheckpoint:
    directory: Path
    oracle: PreTrainedModel


@pytest.fixture(scope="session")
def encoders(tmp_path_factory):
    """Gives the checkpoint of a variant by name."""

    @cache
    def get(name: str) -> EncoderCheckpoint:
        directory = tmp_path_factory.mktemp(name)
        return EncoderCheckpoint(directory, build((MODELS | CLASSIFIERS)[name], directory))

    return get


@pytest.fixture(scope="session")
def native() -> Kernels:
    """The kernels of which the bits of a row are promised."""
    chosen, why = choose_kernels(torch.device("cpu"), torch.float32, allow_native=True)
    if not chosen.batch_invariant:
        pytest.skip(why)
    return chosen
