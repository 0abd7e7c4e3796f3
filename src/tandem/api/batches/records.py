"""What the store of batches keeps of each file and each batch, as it lies on the disk, and what
their owner is shown of it."""

from typing import Any

import msgspec
from msgspec import Struct

from tandem.api.batches.bodies import (
    BatchObject,
    BatchProblem,
    BatchProblems,
    FileObject,
    Purpose,
    RequestCounts,
)
from tandem.policy.batches import BatchStatus

NS_PER_S = 1_000_000_000


class FileRecord(Struct, kw_only=True, frozen=True):
    """A file that its owner sees. `created_ns` is a Unix time, as all times here."""

    file_id: str
    owner: str
    filename: str
    purpose: Purpose
    size_bytes: int
    created_ns: int
    expires_s: int

    def shown(self) -> FileObject:
        return FileObject(
            id=self.file_id,
            bytes=self.size_bytes,
            created_at=self.created_ns // NS_PER_S,
            expires_at=self.expires_s,
            filename=self.filename,
            purpose=self.purpose,
        )


class BatchRecord(Struct, kw_only=True, frozen=True):
    """A batch, made by a caller with this `tenant` and `key` (see `Caller`). Its answers lie in two
    files from its beginning, which nobody sees before its end: then those that hold something are
    shown. `times` says when it came into each status. Counts are those of its end."""

    batch_id: str
    tenant: str
    key: str
    input_file_id: str
    endpoint: str
    output_file_id: str
    error_file_id: str
    created_ns: int
    expires_s: int
    output_lifetime_s: int
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    status: BatchStatus = BatchStatus.VALIDATING
    model: str | None = None
    times: dict[BatchStatus, int] = msgspec.field(default_factory=dict)
    counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    problems: list[BatchProblem] = msgspec.field(default_factory=list)
    shows_output: bool = False
    shows_errors: bool = False

    @property
    def owner(self) -> str:
        """As of stored responses."""
        return self.tenant or self.key

    @property
    def file_ids(self) -> tuple[str, str, str]:
        """Whatever it reads and writes."""
        return self.input_file_id, self.output_file_id, self.error_file_id

    @property
    def ended_s(self) -> int | None:
        return self.times.get(self.status) if self.status.is_final else None

    def entered(self, status: BatchStatus, now_s: int, **more: Any) -> "BatchRecord":
        """The same, in another status from now on; `more` are other fields that change."""
        times = {**self.times, status: now_s}
        return msgspec.structs.replace(self, status=status, times=times, **more)

    def shown(self, counts: RequestCounts) -> BatchObject:
        return BatchObject(
            id=self.batch_id,
            endpoint=self.endpoint,
            errors=BatchProblems(data=self.problems) if self.problems else None,
            input_file_id=self.input_file_id,
            completion_window=self.completion_window,
            status=self.status.value,
            output_file_id=self.output_file_id if self.shows_output else None,
            error_file_id=self.error_file_id if self.shows_errors else None,
            created_at=self.created_ns // NS_PER_S,
            in_progress_at=self.times.get(BatchStatus.IN_PROGRESS),
            expires_at=self.expires_s,
            finalizing_at=self.times.get(BatchStatus.FINALIZING),
            completed_at=self.times.get(BatchStatus.COMPLETED),
            failed_at=self.times.get(BatchStatus.FAILED),
            expired_at=self.times.get(BatchStatus.EXPIRED),
            cancelling_at=self.times.get(BatchStatus.CANCELLING),
            cancelled_at=self.times.get(BatchStatus.CANCELLED),
            request_counts=counts,
            metadata=self.metadata,
            model=self.model,
        )
