"""An application that has all endpoints there are: of the model, of adapters, of files and batches,
and of encoders that give numbers without computing any.

python -m tests.api.every_endpoint PORT serves it, for fuzzers that come from outside.
"""

import sys
import tempfile
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import uvicorn
from starlette.applications import Starlette
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tandem.api.access_log import LineSink
from tandem.api.app import build_app
from tandem.api.batches.runner import BatchRunner
from tandem.api.batches.store import BatchStore
from tandem.api.config import ApiConfig, BatchConfig, KeyFile
from tandem.facts.encoder import EncodedText, LabelSpec
from tandem.facts.encoding import EncoderCard, Numbers, Wanted
from tandem.live.adapters import AdapterRegistry
from tandem.live.encoders import LiveEncoders, ServedEncoder
from tandem.observe.encoder_metrics import EncoderMetrics
from tandem.text.model import TextModel
from tests.api.scripted_generator import ScriptedGenerator
from tests.engine.tiny import tiny_spec
from tests.models.adapter_files import write_adapter
from tests.text.tiny_checkpoint import TEMPLATE, write_checkpoint

OPERATOR, CLIENT = "operators-key", "clients-key"
# Room for what is drawn, and for a beam search to the end of it.
CONTEXT_TOKENS = 2048
FEATURES = 8


class RoomyGenerator(ScriptedGenerator):
    """With a context for everything that is drawn."""

    @property
    def card(self):
        return replace(super().card, context_tokens=CONTEXT_TOKENS)


class Numberless:
    """A `LiveEncoder` without a model: numbers follow from how many tokens there are."""

    failed = False

    def __init__(self, name: str, labels: int) -> None:
        self._labels = labels
        self.metrics = EncoderMetrics(name, lambda: 0)

    async def encode(
        self, texts: Sequence[EncodedText], wanted: Wanted, *, priority: int, timeout_s: float
    ) -> list[Numbers]:
        size = FEATURES if wanted == "vector" else self._labels
        return [np.cos(np.arange(size) + len(text.token_ids), dtype=np.float32) for text in texts]


# Takes the system's messages wherever they stand: that is a matter of templates, not of schemas.
PLAIN_TEMPLATE = TEMPLATE.replace("and not loop.first", "and false")


def text_of(folder: Path) -> TextModel:
    return TextModel.load(write_checkpoint(folder, chat_template=PLAIN_TEMPLATE))


def encoders_of(text: TextModel) -> LiveEncoders:
    """The first has a label, which relevance needs. Every text has a special token at least."""
    tokens = copy(text.tokenizer)
    tokens.core = Tokenizer.from_str(tokens.core.to_str())
    tokens.core.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B", special_tokens=[("<|endoftext|>", 0)]
    )
    served = []
    for name, labels in (("judge", ("relevant",)), ("vectors", ())):
        head = LabelSpec(labels, "multi_label_classification") if labels else None
        card = EncoderCard(name, 0, CONTEXT_TOKENS, tokens.vocabulary_tokens, FEATURES, head)
        served.append(ServedEncoder(card, tokens, Numberless(name, len(labels))))
    return LiveEncoders(served)


def build_whole_app(
    text: TextModel,
    folder: Path,
    config: ApiConfig | None = None,
    generator: ScriptedGenerator | None = None,
    log: LineSink | None = None,
) -> Starlette:
    """Operators have the key `OPERATOR`; an adapter lies in `folder`/green."""
    write_adapter(folder / "green", tiny_spec(), seed=1)
    (folder / "operators").write_text(f"{OPERATOR}\n")
    config = replace(
        config or ApiConfig(), operator_key_files=(KeyFile(str(folder / "operators")),)
    )
    registry = AdapterRegistry(tiny_spec(), 16, ("tiny", "org/tiny"))
    registry.begin({"green": folder / "green"})
    batches = BatchRunner(BatchStore(BatchConfig(str(folder / "batches")), shared=False))
    return build_app(
        generator or RoomyGenerator(text),
        text,
        config,
        log,
        adapters=registry,
        encoders=encoders_of(text),
        batches=batches,
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = text_of(Path(folder))
        config = ApiConfig(api_keys=(CLIENT,))
        app = build_whole_app(text, Path(folder), config)
        uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
