"""Web pages that would use a browser on this machine as their client: a simple form, a foreign
origin, a name that was bound to another address in the meantime."""

import json

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.config.api_options import api_config
from tandem.config.options import read_options
from tests.api.scripted_generator import ScriptedGenerator
from tests.api.server import serving
from tests.attacks.clients import JSON, ask, head, posted

CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@pytest.fixture(scope="module")
def generator(text):
    return ScriptedGenerator(text)


@pytest.fixture(scope="module")
def port_of(generator, text):
    """Starts a server as these flags of `tandem serve` would; gives its port."""

    def start(**flags):
        return serving(build_app(generator, text, api_config(read_options(None, flags), ())))

    return start


@pytest.fixture(scope="module")
def port(port_of):
    with port_of() as port:
        yield port


def post(port, *headers, path=PATHS[0], host=None):
    host = f"127.0.0.1:{port}" if host is None else host
    return ask(port, posted(path, CHAT, *headers, host=host))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Content-Type:",),
        ("Content-Type: text/plain",),
        ("Content-Type: text/plain; application/json",),
        ("Content-Type: application/x-www-form-urlencoded",),
        ("Content-Type: multipart/form-data; boundary=x",),
        ("Content-Type: application/json, text/plain",),
        ("Content-Type: text/plain", "Content-Type: application/json"),
    ],
)
def test_what_a_page_may_send_unasked_is_no_call(port, generator, path, headers):
    assert post(port, *headers, path=path).refusal == (415, "unsupported_media_type")
    assert not generator.requests


@pytest.mark.parametrize("spelt", ["application/json", "Application/JSON ; charset=UTF-8"])
def test_json_is_read_however_it_is_spelt(port, spelt):
    assert post(port, f"Content-Type: {spelt}").status == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:1", "file://", "https://evil.example/" * 99],
)
def test_a_foreign_page_may_not_call(port, generator, origin):
    asked = len(generator.requests)
    assert post(port, JSON, f"Origin: {origin}").refusal == (403, "origin_not_allowed")
    assert len(generator.requests) == asked


def test_own_pages_and_allowed_ones_may(port, port_of):
    assert post(port, JSON, f"Origin: http://127.0.0.1:{port}").status == 200
    assert post(port, JSON, "Origin: https://localhost", host="localhost").status == 200
    allowed = {"allowed_origins": ["https://page.example", "null"]}
    for flags, origin, status in (
        (allowed, "https://page.example", 200),
        (allowed, "null", 200),
        (allowed, "https://other.example", 403),
        ({"allowed_origins": ["*"]}, "https://any.example", 200),
    ):
        with port_of(**flags) as other:
            assert post(other, JSON, f"Origin: {origin}").status == status


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", ""],
)
def test_a_name_bound_to_this_machine_by_others_is_none_of_ours(port, generator, host):
    asked = len(generator.requests)
    refused = post(port, JSON, f"Origin: http://{host}", host=host)
    assert refused.refusal == (421, "host_not_allowed")
    assert ask(port, head("/metrics", host=host)).status == 421
    two = head("/v1/models", f"Host: {host}", host="localhost")
    assert ask(port, two).status in (400, 421)
    assert len(generator.requests) == asked


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "me.localhost", "127.0.0.1", "[::1]:8", "10.0.0.9"],
)
def test_names_that_nobody_else_can_bind_are_ours(port, host):
    assert ask(port, head("/v1/models", host=host)).status == 200
    assert ask(port, b"GET /health HTTP/1.0\r\n\r\n").status == 200


def test_other_names_are_taken_where_they_are_allowed_or_not_only_this_machine_listens(port_of):
    for flags, host, status in (
        ({"allowed_hosts": ["llm.example"]}, "LLM.example:80", 200),
        ({"allowed_hosts": ["llm.example"]}, "other.example", 421),
        ({"allowed_hosts": ["*"]}, "any.example", 200),
        ({"host": "0.0.0.0"}, "tandem.default.svc", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ["llm.example"]}, "other.example", 421),
        ({"host": "0.0.0.0", "allowed_hosts": ["llm.example"]}, "10.1.2.3:8000", 200),
        ({"host": "::1"}, "evil.example", 421),
    ):
        with port_of(**flags) as port:
            assert ask(port, head("/health", host=host)).status == status


def test_the_page_about_the_api_is_shown_as_ever(port):
    with httpx2.Client(base_url=f"http://localhost:{port}") as browser:
        assert "/v1/chat/completions" in browser.get("/docs").text
        assert browser.get("/openapi.json").json()["paths"]
