"""A worker process whose KV others read: `python -m tests.kv.exporting_worker NAMES RANKS`.

It has a KV transfer engine for each tensor rank, with the connectors of these names, and exports
the KV of `model_kv` in the blocks of `ORDER`. One line on standard output is its `KvExport`; the
end of standard input is the end.
"""

import sys
import time
from dataclasses import replace
from queue import SimpleQueue
from threading import Event

import msgspec

from tandem.kernels.transfer import choose_transfer
from tandem.kv.transfer.config import TransferCalls, TransferConfig, TransferEvent, TransferMemory
from tandem.kv.transfer.engine import KvTransferEngine
from tests.kv.ending import closing
from tests.kv.exporter import make_connector
from tests.kv.split_workers import Split, SplitWorker, model_kv, order_for

TOKENS = 22
ORDER = order_for(Split(), Split(), 1, TOKENS)


def export_everything(names: list[str], ranks: int) -> None:
    split = Split(ranks)
    worker, transfer = SplitWorker(split, 1), choose_transfer()
    worker.write(model_kv(TOKENS, split, seed=3), list(ORDER.source_blocks))
    exported: SimpleQueue[TransferEvent] = SimpleQueue()
    calls = TransferCalls(exported.put, Event().set, time.monotonic_ns)
    engines = [
        KvTransferEngine(
            TransferMemory(worker.regions[rank], worker.export, rank, transfer),
            [make_connector(name) for name in names],
            TransferConfig(),
            calls,
        )
        for rank in range(ranks)
    ]
    for engine in engines:
        engine.export_blocks(0, ORDER.source_blocks, ORDER.source_versions)
        exported.get(timeout=20)
    shards = [
        replace(shard, endpoints=engine.endpoints())
        for shard, engine in zip(worker.export.shards, engines, strict=True)
    ]
    export = replace(worker.export, shards=tuple(shards))
    print(msgspec.msgpack.encode(export).hex(), flush=True)
    sys.stdin.read()
    for engine in engines:
        with closing(engine):
            pass


if __name__ == "__main__":
    export_everything(sys.argv[1].split(","), int(sys.argv[2]))
