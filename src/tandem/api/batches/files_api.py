"""/v1/files: what clients send for batches, and the answers that they get. A file is its owner's
alone (see `responses_api.owner_of`); for others it does not exist."""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tandem.api.app_context import AppContext
from tandem.api.batches.bodies import FileDeleted, FileForm, FileList, FileObject
from tandem.api.batches.store import BatchStore, refused_if_disk_fails
from tandem.api.batches.upload import receive_file
from tandem.api.openapi import ApiEndpoint
from tandem.api.paging import page_of, page_query
from tandem.api.responses_api import owner_of
from tandem.facts.errors import InvalidRequest

_TAG = "Batches"
_PURPOSES = ("batch", "batch_output")
_DEFAULT_FILES, _MOST_FILES = 10_000, 10_000
_CHUNK_BYTES = 256 << 10


def file_endpoints(context: AppContext, store: BatchStore) -> list[ApiEndpoint]:
    """All endpoints of files over `store`."""

    async def upload_file(request: Request) -> Response:
        """Keeps a file of requests, for a batch."""
        patience_s = context.config.body_timeout_s
        with refused_if_disk_fails():
            record = await receive_file(request, store, owner_of(request.scope), patience_s)
        return _json(record.shown())

    async def list_files(request: Request) -> Response:
        """Files, the newest first unless `order` is asc; only those of a `purpose`. `limit` and
        `after` page."""
        owner, purpose = owner_of(request.scope), request.query_params.get("purpose")
        if purpose is not None and purpose not in _PURPOSES:
            raise InvalidRequest("purpose", f"must be one of {', '.join(_PURPOSES)}")
        files = [
            each
            for each in store.files.values()
            if each.owner == owner and purpose in (None, each.purpose)
        ]
        page = page_of(
            request.query_params,
            [each.file_id for each in files],
            default=_DEFAULT_FILES,
            most=_MOST_FILES,
        )
        shown = [store.files[name].shown() for name in page.names]
        return _json(FileList(data=shown, **page.frame))

    async def retrieve_file(request: Request) -> Response:
        """What is known of a file."""
        name: str = request.path_params["file_id"]
        return _json(store.find_file(owner_of(request.scope), name).shown())

    async def delete_file(request: Request) -> Response:
        """Forgets a file, unless a batch still reads it."""
        name: str = request.path_params["file_id"]
        found = store.find_file(owner_of(request.scope), name)
        with refused_if_disk_fails():
            await store.delete_file(found.file_id)
        return _json(FileDeleted(id=found.file_id))

    async def retrieve_file_content(request: Request) -> Response:
        """The file itself."""
        name: str = request.path_params["file_id"]
        found = store.find_file(owner_of(request.scope), name)
        with refused_if_disk_fails():
            file = await asyncio.to_thread(open, store.data_path(found.file_id), "rb")
        headers = {"Content-Length": str(found.size_bytes)}
        pieces = _pieces(file, found.size_bytes)
        return StreamingResponse(pieces, 200, headers, "application/octet-stream")

    one, content = "/v1/files/{file_id}", "/v1/files/{file_id}/content"
    query = {**page_query(_MOST_FILES), "purpose": {"enum": list(_PURPOSES)}}
    return [
        ApiEndpoint("POST", "/v1/files", upload_file, _TAG, form=FileForm, answer=FileObject),
        ApiEndpoint("GET", "/v1/files", list_files, _TAG, answer=FileList, query=query),
        ApiEndpoint("GET", one, retrieve_file, _TAG, answer=FileObject),
        ApiEndpoint("DELETE", one, delete_file, _TAG, answer=FileDeleted),
        ApiEndpoint(
            "GET",
            content,
            retrieve_file_content,
            _TAG,
            text_types=("application/octet-stream",),
        ),
    ]


async def _pieces(file: BinaryIO, size_bytes: int) -> AsyncIterator[bytes]:
    """Those of a file, as fast as the client takes them."""
    with file:
        while data := await asyncio.to_thread(file.read, min(_CHUNK_BYTES, size_bytes)):
            size_bytes -= len(data)
            yield data


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
