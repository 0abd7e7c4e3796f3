"""KV memory: where the bytes of KV blocks lie, and how they move.

Between workers: `transfer` (the KV transfer engine) over `connectors` (shared memory, TCP, NIXL,
CUDA IPC). Between a worker's device and slower memory: `tiers` (host memory, disk, Redis, the
shared pool). Under both: `layout`, `codec`, `region` (memory that connectors reach), `store` (the
pool tensor of a worker) and `threads` (supervised worker threads).

A block's way to another worker: `store` -> `transfer.export` (metadata) -> `transfer.engine` of the
target -> `transfer.coordinator` -> `transfer.reader` -> `connectors` -> `transfer.chunk` (checked).
A block's way to a tier: `tiers.device` -> `tiers.copies` (staging) -> `tiers.host`, `tiers.disk`,
`tiers.redis` or `tiers.pool`; back by `tiers.fetches`.
"""
