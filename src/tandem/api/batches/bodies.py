"""Bodies of /v1/files and /v1/batches, as OpenAI has them; the API schema is made of them."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from tandem.api.body_fields import means

Endpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"
]
Purpose = Literal["batch", "batch_output"]
Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
# As OpenAI has it: an hour to 30 days.
LEAST_EXPIRY_S, LONGEST_EXPIRY_S = 3600, 2_592_000


class ExpiresAfter(Struct, kw_only=True, forbid_unknown_fields=True):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=LEAST_EXPIRY_S, le=LONGEST_EXPIRY_S)]


class FileForm(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/files, as `multipart/form-data`."""

    file: Annotated[
        str,
        Meta(
            description="A request a line, as JSON: custom_id, method, url and body.",
            extra_json_schema={"format": "binary"},
        ),
    ]
    purpose: Annotated[Literal["batch"], means("What it is for: batches alone.")]
    # What a form has not is left out: it knows no null.
    anchor: Annotated[
        Literal["created_at"] | UnsetType, means("Since when expires_after[seconds] count.")
    ] = field(default=UNSET, name="expires_after[anchor]")
    seconds: Annotated[
        Annotated[int, Meta(ge=LEAST_EXPIRY_S, le=LONGEST_EXPIRY_S)] | UnsetType,
        means("How long it is kept. Default, and at most: as long as the server keeps files."),
    ] = field(default=UNSET, name="expires_after[seconds]")


class FileObject(Struct, kw_only=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class FileDeleted(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileList(Struct, kw_only=True):
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class BatchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/batches"""

    input_file_id: Annotated[str, means("A file with the purpose batch.")]
    endpoint: Annotated[Endpoint, means("Where each of its requests goes.")]
    completion_window: Annotated[Literal["24h"], means("What is not answered by then is given up.")]
    metadata: Annotated[Metadata | None, means("Echoed.")] = None
    output_expires_after: Annotated[
        ExpiresAfter | None, means("How long the files of its answers are kept.")
    ] = None


class BatchProblem(Struct, kw_only=True):
    """Of the input file; `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchProblems(Struct, kw_only=True):
    data: list[BatchProblem]
    object: Literal["list"] = "list"


class RequestCounts(Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(Struct, kw_only=True):
    id: str
    endpoint: str
    errors: BatchProblems | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    model: str | None
    object: Literal["batch"] = "batch"


class BatchList(Struct, kw_only=True):
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"
