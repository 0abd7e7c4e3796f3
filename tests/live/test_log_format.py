"""Logs as JSON: a line is one object, with the call that it is about."""

import json
import logging
import subprocess
import sys

import pytest

from tandem.api.call_ids import CALL_IDS, CallIds
from tandem.live.log_format import JsonFormatter

LOGGER = logging.getLogger("tandem.tests.log_format")


def line_of(message: str, *arguments: object, exc_info=None) -> dict:
    place = LOGGER.name, logging.WARNING, "file.py", 1
    record = LOGGER.makeRecord(*place, message, arguments, exc_info)
    text = JsonFormatter("gateway-0").format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_says_when_who_and_what():
    line = line_of("two\nlines of %s", "“text” \ud800")
    assert line.pop("time").endswith("Z")
    assert line.pop("pid") > 0
    assert line == {
        "level": "warning",
        "logger": LOGGER.name,
        "process": "gateway-0",
        "message": "two\nlines of “text” \ud800",
    }


def test_an_exception_is_a_part_of_its_line():
    try:
        raise ValueError("no such thing")
    except ValueError:
        line = line_of("it failed", exc_info=sys.exc_info())
    assert line["message"] == "it failed"
    assert line["exception"].endswith("ValueError: no such thing")


@pytest.mark.parametrize("trace_id", ["", "0af7651916cd43dd8448eb211c80319c"])
def test_a_line_has_the_call_that_its_task_answers(trace_id):
    token = CALL_IDS.set(CallIds("req-7", trace_id))
    try:
        line = line_of("here")
    finally:
        CALL_IDS.reset(token)
    assert line["request_id"] == "req-7"
    assert line.get("trace_id", "") == trace_id
    assert "request_id" not in line_of("elsewhere")


SCRIPT = """
import logging
from tandem.live.log_format import begin_log
from tandem.live.http_server import bounded_server
from tandem.api.config import ConnectionLimits
begin_log("debug", "json", "worker-3")
async def app(scope, receive, send): ...
bounded_server(app, ConnectionLimits(), "debug")
logging.getLogger("tandem.x").info("ours")
logging.getLogger("uvicorn.error").info("its")
logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "host", "GET", "/", "1.1", 200)
"""


def test_servers_of_http_write_the_same_lines():
    """In a process of its own: loggers are everybody's."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in lines] == ["ours", "its", 'host - "GET / HTTP/1.1" 200']
    assert {line["process"] for line in lines} == {"worker-3"}
