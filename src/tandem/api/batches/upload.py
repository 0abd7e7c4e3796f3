"""Reading the form of POST /v1/files: its file goes to the disk as it arrives, whatever its size;
the other fields are short."""

import asyncio

import msgspec
from starlette.requests import ClientDisconnect, Request

from tandem.api.batches.bodies import FileForm
from tandem.api.batches.multipart import (
    FormReader,
    NotMultipart,
    PartBegan,
    PartData,
    PartEnded,
)
from tandem.api.batches.records import FileRecord
from tandem.api.batches.store import BatchStore, Upload
from tandem.api.errors import Refusal, Refused

FIELD_BYTES = 256
# So many go to the disk at a time.
_CHUNK_BYTES = 256 << 10
# Of the form around a file.
_FORM_BYTES = 64 << 10
# A megabyte has as long to arrive as the body of another call.
_PACE_BYTES = 1 << 20
FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(FileForm))


class _Form:
    """What has arrived of one form."""

    def __init__(self, store: BatchStore, owner: str) -> None:
        self.values: dict[str, str] = {}
        self.upload: Upload | None = None
        self.filename = ""
        self.store, self._owner = store, owner
        self._field: PartBegan | None = None
        self._chunk = bytearray()

    async def take(self, event: PartBegan | PartData | PartEnded) -> None:
        """Raises `Refused`."""
        if isinstance(event, PartBegan):
            self._begin(event)
        elif isinstance(event, PartData):
            await self._add(event.data)
        else:
            await self._end()

    def _begin(self, part: PartBegan) -> None:
        name = part.name[:64]
        if name not in FIELDS:
            raise _invalid(f"unknown field {name!r}", name)
        if name in self.values or (name == "file" and self.upload is not None):
            raise _invalid(f"{name} is there twice", name)
        if (part.filename is not None) != (name == "file"):
            raise _invalid(
                "file: must have a filename" if name == "file" else f"{name}: must be no file", name
            )
        self._field = part
        if part.filename is not None:
            self.upload, self.filename = self.store.begin_upload(self._owner), part.filename

    async def _add(self, data: bytes) -> None:
        assert self._field is not None
        self._chunk += data
        if self._field.name != "file" and len(self._chunk) > FIELD_BYTES:
            raise _invalid(f"{self._field.name}: is too long", self._field.name)
        if len(self._chunk) >= _CHUNK_BYTES:
            await self._flush()

    async def _end(self) -> None:
        assert self._field is not None
        if self._field.name == "file":
            await self._flush()
            return
        try:
            self.values[self._field.name] = self._chunk.decode()
        except UnicodeDecodeError as error:
            raise _invalid(f"{self._field.name}: is no UTF-8 text", self._field.name) from error
        self._chunk.clear()

    async def _flush(self) -> None:
        assert self.upload is not None
        data = bytes(self._chunk)
        self._chunk.clear()
        if data:
            await self.upload.write(data)


async def receive_file(
    request: Request, store: BatchStore, owner: str, patience_s: float
) -> FileRecord:
    """The file of a form, on the disk. Each megabyte may take `patience_s`. Raises `Refused`."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        problem = "send the file as a form: Content-Type: multipart/form-data"
        raise Refused(Refusal(415, problem, "unsupported_media_type"))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20:
        store.check_size(int(declared) - _FORM_BYTES)
    form = _Form(store, owner)
    try:
        await _read_form(request, form, FormReader(content_type), patience_s)
        fields = _checked(form)
        assert form.upload is not None
        return await form.upload.finish(form.filename, fields.seconds or None)
    except NotMultipart as error:
        raise Refused(Refusal(400, f"the form cannot be read: {error}", "invalid_form")) from error
    except TimeoutError as error:
        raise Refused(Refusal(408, "the body did not arrive in time", "body_timeout")) from error
    except ClientDisconnect as error:
        raise Refused(Refusal(400, "the body broke off", "incomplete_body")) from error
    finally:
        if form.upload is not None:
            await form.upload.end()


async def _read_form(request: Request, form: _Form, reader: FormReader, patience_s: float) -> None:
    clock = asyncio.get_running_loop().time
    arrived_bytes = 0
    async with asyncio.timeout(patience_s) as bound:
        async for data in request.stream():
            if (arrived_bytes + len(data)) // _PACE_BYTES > arrived_bytes // _PACE_BYTES:
                bound.reschedule(clock() + patience_s)
            arrived_bytes += len(data)
            # Also what stands around the parts of the form.
            form.store.check_size(arrived_bytes - _FORM_BYTES)
            for event in reader.feed(data):
                await form.take(event)
    if not reader.is_whole:
        raise NotMultipart("it breaks off")


def _checked(form: _Form) -> FileForm:
    """Raises `Refused`."""
    given = {**form.values, **({"file": ""} if form.upload is not None else {})}
    for name in ("file", "purpose"):
        if name not in given:
            raise _invalid(f"{name}: is missing", name)
    if given["purpose"] != "batch":
        raise _invalid("purpose: must be batch; nothing else is done with files", "purpose")
    try:
        return msgspec.convert(given, FileForm, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        raise _invalid(problem, path.rstrip("`") or None) from error


def _invalid(problem: str, param: str | None) -> Refused:
    return Refused(Refusal(400, problem, "invalid_value", param))
