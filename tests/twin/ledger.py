"""What lies in the blocks of simulated workers, as a ledger: each slot remembers the tokens that
its KV belongs to, so that KV that is used for anything else is an assertion, not a wrong answer."""

from collections import Counter
from dataclasses import dataclass, field

from tandem.cluster.worker.machine import WorkerConfig
from tandem.facts.blocks import extend_chain, salt_of
from tandem.facts.kv import BlockName, MoveKv
from tandem.facts.steps import StepResult
from tandem.twin.machine_configs import CACHE_ROOT
from tandem.twin.worker import SimulatedWorker
from tests.cluster.ledger_engine import ADAPTERS, KIND, NONSENSE, LedgerEngine

Keys = list[bytes]
# By what their KV looks like: the salts that requests of these laws have with each adapter.
ROOTS = [
    [
        CACHE_ROOT.hash(salt_of("", salt, "" if adapter is None else adapter.digest))
        for salt in ("", "tenant")
    ]
    for adapter in ADAPTERS
]


def digests_of(keys: Keys) -> list[bytes]:
    """The names that a block with this content may bear; none when it is no block's content."""
    tokens, found = list(keys[-1]), []
    if keys != [bytes(tokens[: len(tokens) - len(keys) + 1 + at]) for at in range(len(keys))]:
        return []
    kind = tokens[0] // KIND
    for root in ROOTS[kind]:
        chain: list[bytes] = []
        extend_chain(chain, root, [token - kind * KIND for token in tokens], len(keys))
        found.append(chain[-1])
    return found


@dataclass
class Ledger:
    """Of a whole cluster: the content of each block that a slower tier was given, by its digest,
    and what was `seen`."""

    kept: dict[bytes, Keys] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def of_worker(self, config: WorkerConfig) -> "LedgerContents":
        return LedgerContents(self, config)


class LedgerContents:
    """Of one start of a worker. `exports` are version and content of the blocks that others may
    read, `staged` is content by copy."""

    def __init__(self, ledger: Ledger, config: WorkerConfig) -> None:
        self.ledger = ledger
        self.engine = LedgerEngine(config.block_size, config.block_count, config.max_sequences)
        self.exports: dict[int, tuple[int, Keys]] = {}
        self.staged: dict[int, list[Keys]] = {}
        self.worker: SimulatedWorker | None = None

    def compute_step(self, plan) -> StepResult:
        return self.engine.run(plan)

    def export_contents(self, blocks, versions) -> None:
        for block, version in zip(blocks, versions, strict=True):
            self.exports[block] = version, list(self.engine.kv[block])

    def receive_contents(self, source: "LedgerContents | None", order: MoveKv) -> bool:
        self._expect_reserved(order.target_blocks)
        keys = None if source is None else source.read(order)
        self.ledger.seen["transfers" if keys else "transfers failed"] += 1
        size = self.engine.block_size
        for offset in range(order.end_token - order.first_token):
            token = order.first_token + offset
            block = order.target_blocks[token // size - order.first_token // size]
            self.engine.kv[block][token % size] = keys[offset] if keys else NONSENSE
        return keys is not None

    def exported(self, blocks, versions) -> bool:
        """Whether others may read these blocks under these versions."""
        return all(
            self.exports.get(block, (None,))[0] == version
            for block, version in zip(blocks, versions, strict=True)
        )

    def keys_in(self, blocks, first_token: int, end_token: int) -> Keys:
        """What lies in these blocks for these tokens; the first block has the first token."""
        size = self.engine.block_size
        first_block = first_token // size
        return [
            self.engine.kv[blocks[token // size - first_block]][token % size]
            for token in range(first_token, end_token)
        ]

    def read(self, order: MoveKv) -> Keys | None:
        """What lies in the source blocks of an order, if it is what was exported."""
        for block, version in zip(order.source_blocks, order.source_versions, strict=True):
            exported, content = self.exports.get(block, (None, []))
            if exported != version and self.worker is not None:
                assert self.worker.versions[block] != version, "read before it was exported"
            if (exported, content) != (version, self.engine.kv[block]):
                self.ledger.seen["stale reads"] += 1
                return None
        return self.keys_in(order.source_blocks, order.first_token, order.end_token)

    def stage_contents(self, copy_id, blocks) -> None:
        assert copy_id not in self.staged
        self.staged[copy_id] = [list(self.engine.kv[block]) for block in blocks]

    def keep_contents(self, copy_id, rows, names: tuple[BlockName, ...]) -> None:
        for row, name in zip(rows, names, strict=True):
            keys = self.staged[copy_id][row]
            assert name.digest in digests_of(keys), "kept under a name that it does not have"
            self.ledger.kept[name.digest] = keys

    def drop_contents(self, copy_id) -> None:
        del self.staged[copy_id]

    def fetch_contents(self, names, blocks) -> None:
        self._expect_reserved(blocks)
        self.ledger.seen["blocks fetched"] += len(names)
        for name, block in zip(names, blocks, strict=False):
            self.engine.kv[block] = list(self.ledger.kept[name.digest])

    def spoil_contents(self, blocks) -> None:
        self._expect_reserved(blocks)
        self.engine.spoil(blocks)

    def _expect_reserved(self, blocks) -> None:
        if self.worker is not None and self.worker.alive:
            sequences = self.worker.worker_machine.sequences
            tables = [each.residency.blocks for each in sequences.importing.values()]
            tables += sequences.prefetches.blocks_under_way()
            reserved = {block for table in tables for block in table}
            assert set(blocks) <= reserved, "nobody writes into blocks given back"
