"""Toy workers whose engine is not as it should be, and answers that end as they should."""

import pytest

from tandem.facts.errors import RequestFailed
from tandem.facts.request import Request
from tandem.facts.serving import Generator
from tests.cluster.ledger_engine import LedgerEngine, answer
from tests.live.toy_cluster import CONTEXT_TOKENS, ToyWorker


class OddLedger(LedgerEngine):
    """A ledger as large as another one."""

    def __init__(self, other: LedgerEngine) -> None:
        super().__init__(other.block_size, len(other.kv), len(other.tables))

    def take_place(self, worker: ToyWorker, ledgers: dict[str, LedgerEngine]) -> None:
        """Of the engine of this worker, before it starts; its peers find the KV in `ledgers`."""
        worker.engine.ledger = ledgers[worker.registration.worker] = self
        worker.node._transfers._own = self


def whole(wanted: Request) -> list[int]:
    """The answer to a request, computed alone."""
    return answer(wanted.prompt_tokens, wanted.sampling, CONTEXT_TOKENS)


async def read_to_failure(gateway: Generator, wanted: Request, reason: str) -> list[int]:
    """The tokens up to there."""
    tokens: list[int] = []
    with pytest.raises(RequestFailed, match=reason):
        async for output in gateway.generate(wanted):
            tokens += output.tokens
    return tokens
