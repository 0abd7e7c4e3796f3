"""The fuzzer sees what must never happen, and draws the same from the same seed."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Thread

import pytest

from tests.fuzz.client import Client
from tests.fuzz.spoilt import BODIES, spoilt
from tests.fuzz.tally import Tally


class Server(BaseHTTPRequestHandler):
    """Answers in turn with 200, 500 and not at all."""

    protocol_version = "HTTP/1.1"
    turns = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Server.turns += 1
        if Server.turns % 3:
            self.send_response(200 if Server.turns % 3 == 1 else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_errors_of_the_server_and_broken_connections_are_failures(url):
    tally, chance = Tally(), Random(1)
    client = Client(url, 1, tally)
    for _ in range(30):
        client.call_spoilt(chance)
    kinds = {kind for _, kind in tally.failures}
    assert kinds == {"status 500", "connection broke"}
    assert tally.failures.total() == 20
    assert sum(tally.statuses.values()) == 20
    assert "FAILED" in tally.report()


def test_a_seed_draws_the_same_and_meets_every_endpoint():
    drawn, again = ([spoilt(chance) for _ in range(200)] for chance in (Random(3), Random(3)))
    assert drawn == again
    assert {path for path, _, _ in drawn} == set(BODIES)
    assert any(b"9" * 309 in body for _, _, body in drawn)


def test_what_is_spoilt_was_valid_json():
    for body in BODIES.values():
        assert json.loads(json.dumps(body)) == body
