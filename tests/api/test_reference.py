"""The page at /docs: whole, self-contained, and safe whatever the document says."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import msgspec
import pytest

from tandem.api import requests
from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.docs_page.page import reference_page
from tandem.api.kserve.bodies import GenerateBody, InferBody
from tandem.api.messages_requests import MessageCountBody, MessagesBody
from tandem.api.responses_body import ConversationBody, ResponsesBody
from tandem.facts.client_fields import client_fields
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tests.api.server import client_of

VOID = {"meta", "br"}
BODIES = (
    requests.ChatBody,
    requests.CompletionBody,
    MessagesBody,
    MessageCountBody,
    ResponsesBody,
    ConversationBody,
    requests.TokenizeBody,
    requests.DetokenizeBody,
    InferBody,
    GenerateBody,
)


class Page(HTMLParser):
    """What the page declares; opening and closing tags must match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture
def response(http):
    return http.get("/docs")


def test_the_page_is_whole(http, response):
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page, text = Page(response.text), unescape(response.text)
    document = http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        assert text.count(f"<code>{path}</code>") == len(methods)
    for schema in document["components"]["schemas"].values():
        for field in schema.get("properties", {}):
            assert f"<code>{field}</code>" in text
    ids = page.values("id")
    assert len(set(ids)) == len(ids)
    anchors = {link[1:] for link in page.values("href") if link.startswith("#")}
    assert anchors <= set(ids)


def test_the_page_loads_nothing(response):
    page = Page(response.text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not page.values("src")
    assert [link for link in page.values("href") if not link.startswith("#")] == ["openapi.json"]
    assert not re.search(r"url\(|@import", response.text)
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_whatever_the_document_and_the_host_say_stays_text(http):
    document = http.get("/openapi.json").json()
    hostile = '<script>alert("1")</script>&\''
    chat = document["components"]["schemas"]["ChatBody"]
    chat["properties"][hostile] = {"type": hostile, "description": hostile, "default": hostile}
    operation = document["paths"]["/v1/chat/completions"].pop("post")
    operation |= {"description": hostile, "tags": [hostile]}
    document["paths"][f"/{hostile}"] = {"post": operation}
    page = reference_page(document, f"http://{hostile}")
    assert "script" not in Page(page).tags
    assert hostile in unescape(page)
    text = http.get("/docs", headers={"Host": 'x"><script>'}).text
    assert "script" not in Page(text).tags


def test_examples_name_the_server_and_its_key_where_one_is_needed(generator, text):
    with client_of(build_app(generator, text, ApiConfig(api_keys=("key",)))) as client:
        page, url = unescape(client.get("/docs").text), str(client.base_url).rstrip("/")
    examples = re.findall(r"<pre>(curl .*?)</pre>", page, re.DOTALL)
    assert all(f"{url}/" in example for example in examples)
    keyed = {e.split()[1].removeprefix(url) for e in examples if "Bearer" in e}
    assert keyed == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/reset_prefix_cache",
        "/v1/models",
        "/v2",
    }


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_has_a_meaning_and_every_call_an_example(body):
    schemas = msgspec.json.schema(body)["$defs"]
    for each in (schemas[body.__name__], schemas.get("StreamOptions", {"properties": {}})):
        for name, schema in each["properties"].items():
            assert schema.get("description"), name
    msgspec.json.decode(json.dumps(requests.EXAMPLES[body.__name__]), type=body)


@pytest.mark.parametrize("owner", [SamplingParameters, Request])
def test_what_a_client_sets_is_declared_where_it_is_stored(owner, http):
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    declared = client_fields(owner)
    assert declared
    for each in declared:
        for body in ("ChatBody", "CompletionBody", "ResponsesBody"):
            assert schemas[body]["properties"][each.name]["description"] == each.meaning
