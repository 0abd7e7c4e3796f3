"""The life of one request, as it is explained."""

from io import StringIO

import pytest
from rich.console import Console

from tandem.facts.errors import InvalidRequest
from tandem.report.explain import events, explanation, find_request
from tandem.report.record import Decision
from tests.report.made_runs import made_run


def explained(record, name: str) -> str:
    file = StringIO()
    console = Console(width=120, file=file)
    console.print(explanation(record, name))
    return file.getvalue()


def test_a_request_is_found_by_id_or_number():
    record = made_run(requests=5)
    assert find_request(record, "3") is find_request(record, "request-3") is record.requests[3]
    with pytest.raises(InvalidRequest, match="--explain 9: no such request; ids look like request"):
        find_request(record, "9")


def test_decisions_come_between_the_arrival_and_what_they_caused():
    record = made_run(requests=5)
    request = record.requests[3]
    record.decisions.append(Decision(request.end_ns, request.request_id, "planning", "after all"))
    happened = [event.text for event in events(request, record.decisions)]
    assert happened[:3] == ["arrived", "prefill-0", "was routed"]
    assert happened[3:6] == ["first step began", "first token", "after all"]
    instants = [event.now_ns for event in events(request, record.decisions)]
    assert instants == sorted(instants)


def test_candidates_and_their_figures_are_explained():
    text = explained(made_run(requests=5), "3")
    for words in (
        "1,003 prompt tokens",
        "200 from device",
        "decode d-1: score 0.5, ttft_s 2",
        "first token",
    ):
        assert words in text


def test_a_rejection_has_a_reason():
    record = made_run(requests=200, speed=2.0)
    rejected = next(request for request in record.requests if request.reason)
    text = explained(record, rejected.request_id)
    assert f"rejected: {rejected.reason}" in text
    assert "first token" not in text
