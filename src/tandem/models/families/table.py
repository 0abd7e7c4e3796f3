"""Which families there are. A new one is a new file and a line in each table here."""

from tandem.models.families import llama, mistral, qwen2, qwen3
from tandem.models.families.traits import ReadTraits

FAMILIES: dict[str, ReadTraits] = {
    llama.ARCHITECTURE: llama.read_traits,
    mistral.ARCHITECTURE: mistral.read_traits,
    qwen2.ARCHITECTURE: qwen2.read_traits,
    qwen3.ARCHITECTURE: qwen3.read_traits,
}

# Some files name the model type alone.
ARCHITECTURE_OF_TYPE: dict[str, str] = {
    llama.MODEL_TYPE: llama.ARCHITECTURE,
    mistral.MODEL_TYPE: mistral.ARCHITECTURE,
    qwen2.MODEL_TYPE: qwen2.ARCHITECTURE,
    qwen3.MODEL_TYPE: qwen3.ARCHITECTURE,
}
