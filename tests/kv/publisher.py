"""A worker process whose KV others read: `python -m tests.kv.publisher NAMES RANKS`.

It has a mover for each tensor rank, with the connectors of these names, and publishes the KV of
`model_kv` in the blocks of `ORDER`. One line on standard output is its `KvExport`; the end of
standard input is the end.
"""

import sys
import time
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue
from threading import Event

import msgspec

from tandem.kernels.transfer.choose import choose_transfer
from tandem.kv.mover import KvMover
from tandem.kv.mover_config import MoverCalls, MoverConfig, MoverMemory
from tests.kv.exporter import make_connector
from tests.kv.split_workers import Split, SplitWorker, model_kv, order_for

TOKENS = 22
ORDER = order_for(Split(), Split(), 1, TOKENS)


def publish_everything(names: list[str], ranks: int) -> None:
    split = Split(ranks)
    worker, transfer = SplitWorker(split, 1), choose_transfer()
    worker.write(model_kv(TOKENS, split, seed=3), list(ORDER.source_blocks))
    published: SimpleQueue[int] = SimpleQueue()
    calls = MoverCalls(lambda *_: None, published.put, Event().set, time.monotonic_ns)
    movers = [
        KvMover(
            MoverMemory(worker.regions[rank], worker.export, rank, transfer),
            [make_connector(name) for name in names],
            MoverConfig(),
            calls,
        )
        for rank in range(ranks)
    ]
    for mover in movers:
        mover.publish(0, ORDER.source_blocks, ORDER.source_generations)
        published.get(timeout=20)
    shards = [
        replace(shard, endpoints=mover.endpoints())
        for shard, mover in zip(worker.export.shards, movers, strict=True)
    ]
    export = replace(worker.export, shards=tuple(shards))
    print(msgspec.msgpack.encode(export).hex(), flush=True)
    sys.stdin.read()
    for mover in movers:
        with closing(mover):
            pass


if __name__ == "__main__":
    publish_everything(sys.argv[1].split(","), int(sys.argv[2]))
