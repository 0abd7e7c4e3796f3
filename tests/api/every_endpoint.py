"""An application that has all endpoints there are: of the model, of adapters, of files and batches,
and of encoders that give numbers without computing any.

python -m tests.api.every_endpoint PORT serves it, for fuzzers that come from outside.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
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
from tandem.facts.errors import InvalidRequest
from tandem.facts.overview import (
    AppliedChange,
    ChangedSetting,
    ClassSlo,
    ClusterEvent,
    DetailEvent,
    Overview,
    Percentiles,
    PlannerOverview,
    QueueOverview,
    RequestDetail,
    RequestLine,
    TierOverview,
    TimeBin,
    WhatIfChange,
    WhatIfRun,
    WorkerOverview,
)
from tandem.facts.tracing import TraceContext
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
    """With a context for everything that is drawn. Of its workers an operator may drain `w0`."""

    @property
    def card(self):
        return replace(super().card, context_tokens=CONTEXT_TOKENS)

    async def overview(self, account: str | None, since_bin: int = 0) -> Overview:
        worker = WorkerOverview(
            worker="w0",
            role="both",
            state="ready",
            running=1,
            waiting=0,
            used_blocks=1,
            total_blocks=2,
            block_size=16,
        )
        half = Percentiles(1, 0.5, 0.5, 0.5)
        return Overview(
            server="g0",
            model="tiny",
            up_s=1.0,
            workers=(worker,),
            tiers=(TierOverview("w0", "host", 1, 2, 3, 0, 0),),
            queues=(QueueOverview("", account or "", 0, 1),),
            slos=(ClassSlo("", 1.0, None),),
            bin_s=5.0,
            current_bin=since_bin,
            bins=(TimeBin(since_bin, 1, 1, 0, {"queue": 1}, 2, 1, 3, half, None, half),),
            waiting=0,
            running=1,
            finished=1,
            events=(ClusterEvent(0.5, "joined", "w0 joined as both"),),
            planner=PlannerOverview("tandem", "advisory", "", (ClusterEvent(1.0, "flip", "why"),)),
            has_roles=True,
        )

    async def latest_requests(self, account: str | None, most: int) -> list[RequestLine]:
        return [self._detail().line][:most]

    async def request_details(self, account: str | None, name: str) -> list[RequestDetail]:
        return [self._detail()] if name == "r" else []

    def _detail(self) -> RequestDetail:
        line = RequestLine(
            request_id="r",
            ago_s=1.0,
            service_class="",
            tenant="",
            session="",
            prompt_tokens=2,
            cached_tokens=1,
            output_tokens=1,
            ttft_s=0.5,
            tpot_s=None,
            total_s=0.5,
            ending="finished",
            reason="stop",
        )
        return RequestDetail(line, 4, (DetailEvent(0.1, "routing", "to w0", {"ttft_s": 0.5}),))

    async def drain(self, worker: str, then_role: str, *, leave: bool) -> None:
        if worker != "w0":
            raise InvalidRequest("worker", f"cannot be drained: no worker is called {worker}")

    async def undrain(self, worker: str) -> None:
        await self.drain(worker, "", leave=False)

    async def apply(self, settings: Sequence[str], seen: int | None) -> AppliedChange:
        keys = (ChangedSetting("policies.routing", "cost", "random", "at once"),)
        return AppliedChange(3, keys, (), (), (), (), applied=seen == 3)

    async def what_if(self, change: WhatIfChange) -> list[WhatIfRun]:
        return [WhatIfRun("recorded", 1, 0.5, 1.0, 0.5, 0.5, None, None, 0.5, 0)]


class EverySpan:
    """A tracer that samples no call."""

    lost_spans = 0

    def begin_call(self, headers: Mapping[str, str]) -> TraceContext:
        return TraceContext("0" * 32, "0" * 16, sampled=False)


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
    generator: RoomyGenerator | None = None,
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
    generator = generator or RoomyGenerator(text)
    return build_app(
        generator,
        text,
        config,
        log,
        adapters=registry,
        encoders=encoders_of(text),
        batches=batches,
        observed=generator,
        operated=generator,
        tracer=EverySpan(),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = text_of(Path(folder))
        config = ApiConfig(api_keys=(CLIENT,))
        app = build_whole_app(text, Path(folder), config)
        uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
