"""Files and batches for the fuzzer: forms that are spoilt in one place, and batches of spoilt
requests, none of which may be answered with a status of 500 and more either."""

import json
import random
from collections.abc import Callable

import msgspec
import requests

from tests.fuzz.spoilt import BODIES, spoilt

ENDPOINTS = [path for path in BODIES if path.startswith("/v1/") and path != "/v1/batches"]
LINES = 20
BOUNDARY = b"fuzzed"
PIECES = (
    b"\r\n",
    b"\r\n--fuzzed",
    b"--fuzzed--",
    b"--",
    b"\r",
    b"\n",
    b"\x00\xff",
    b'"',
    b";",
    b"x",
)

Call = Callable[[], requests.Response]
Book = Callable[[str, Call], requests.Response | None]


def spoilt_line(chance: random.Random, number: int, endpoint: str) -> bytes:
    """A request whose body is spoilt, and rarely the line itself."""
    body = None
    while body is None:
        path, _, sent = spoilt(chance)
        body = without_model(sent) if path == endpoint else None
    head = f'{{"custom_id":"r{number}","method":"POST","url":"{endpoint}","body":'.encode()
    line = head + body + b"}"
    return line if chance.random() < 0.995 else line[: chance.randrange(len(line))]


def without_model(body: bytes) -> bytes | None:
    """The same request of the only model: a batch has one. None for what is no request at all,
    which would only end its batch."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        fields.pop("model", None)
        return msgspec.json.encode(fields)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def form_of(data: bytes) -> bytes:
    head = b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    purpose = b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch'
    edge = b"\r\n--" + BOUNDARY
    return edge[2:] + b"\r\n" + head + data + edge + b"\r\n" + purpose + edge + b"--\r\n"


def spoilt_form(chance: random.Random, data: bytes) -> bytes:
    """The form of a file, with something put into it, or taken out."""
    form = form_of(data)
    at = chance.randrange(len(form))
    cut = at + chance.choice((0, 1, 2, 8, 400))
    return form[:at] + chance.choice(PIECES) * chance.choice((1, 2, 300)) + form[cut:]


class BatchFuzzer:
    """Sends files and begins batches; `book` makes a call and counts what came of it."""

    def __init__(self, url: str, session: requests.Session, book: Book) -> None:
        self._url, self._session, self._book = url, session, book
        self._begun: list[str] = []

    def call(self, chance: random.Random) -> None:
        """A spoilt form; or a batch of spoilt requests, and a look at what came of earlier ones."""
        endpoint = chance.choice(ENDPOINTS)
        lines = [spoilt_line(chance, number, endpoint) for number in range(LINES)]
        is_spoilt = chance.random() < 0.5
        form = spoilt_form(chance, b"x" * 50) if is_spoilt else form_of(b"\n".join(lines))
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
        answer = self._book(
            f"POST /v1/files{' spoilt' * is_spoilt}",
            lambda: self._session.post(
                f"{self._url}/v1/files", data=form, headers=headers, timeout=60
            ),
        )
        if answer is not None and answer.status_code == 200:
            self._begin(answer.json()["id"], endpoint)
        for batch_id in self._begun[:]:
            self._look(batch_id)

    def _begin(self, file_id: str, endpoint: str) -> None:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        answer = self._book(
            "POST /v1/batches",
            lambda: self._session.post(f"{self._url}/v1/batches", json=body, timeout=60),
        )
        if answer is not None and answer.status_code == 200:
            self._begun.append(answer.json()["id"])

    def _look(self, batch_id: str) -> None:
        """A file of errors has statuses of its own: the answer to each line is booked as it is."""
        batch = self._get(f"/v1/batches/{batch_id}")
        if batch is None or batch.json()["status"] not in ("completed", "failed"):
            return
        self._begun.remove(batch_id)
        if (file_id := batch.json()["error_file_id"]) is None:
            return
        errors = self._get(f"/v1/files/{file_id}/content")
        for line in errors.text.splitlines() if errors is not None else ():
            answer = requests.Response()
            answer.status_code = json.loads(line)["response"]["status_code"]
            answer._content, answer.request = line.encode(), batch.request
            self._book("a request of a batch", lambda answer=answer: answer)

    def _get(self, path: str) -> requests.Response | None:
        return self._book(
            "GET of a batch or file", lambda: self._session.get(self._url + path, timeout=60)
        )
