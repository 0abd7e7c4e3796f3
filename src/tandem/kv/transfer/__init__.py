"""KV transfer between workers: one-sided reads of blocks that another worker has exported.

The way of a block: the source writes its metadata, a version and checksums (`export`), and
announces it; the target's `coordinator` cuts the order to read it into shards and chunks
(`read_plan`, `sources`), a worker thread for each connector reads them (`reader`) and
checks every chunk before it counts (`chunk`). `engine` is what the rest of the worker calls.
"""
