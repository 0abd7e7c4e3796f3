"""What a gateway might report of a worker."""

from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, KvGeometry
from tandem.messages.gateway import WorkerStatus
from tandem.messages.router import LoadReported


def worker_status(worker: str, role: Role = Role.BOTH, moved_bytes: int = 0) -> WorkerStatus:
    return WorkerStatus(
        worker=worker,
        pool=worker.rpartition("-")[0],
        incarnation="i",
        role=role,
        accepting=True,
        last_seen_s=0.1,
        load=LoadReported(worker, 1, 2, 300, 400, 60),
        total_blocks=80,
        prompts=5,
        output_tokens=60,
        transfers=3,
        failed_transfers=0,
        moved_bytes=moved_bytes,
        sent_bytes=0,
        spans=4,
        seconds=0.5,
        connectors=("shm",),
        export=KvExport("m", "main", KvGeometry(2, 2, 8, 16, "float32"), 80, ()),
    )
