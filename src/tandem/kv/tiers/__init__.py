"""KV tiers: host memory, disk, Redis and the shared pool.

The way of a block down: `engine` stages a full block beside the device (`device`, `copies`), a
worker thread writes it to a store (`host`, `disk`, `redis`, `pool.client`). Up: a fetch reads it
back into the device (`fetches`), checked. What is kept where is decided by `cluster.tiers`.
"""
