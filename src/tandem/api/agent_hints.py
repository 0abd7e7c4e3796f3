"""Hints of agents in the body of a call: `agent`, vLLM's `session_id`, and Dynamo's
`nvext.agent_hints`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from tandem.api.app_context import PIN_HEADER, SESSION_CHARS, SESSION_HEADER
from tandem.api.auth import is_printable
from tandem.api.request_extensions import AgentHints, DynamoAgentHints
from tandem.api.requests import GenerationBody
from tandem.facts.errors import InvalidRequest
from tandem.facts.serving import Caller

Value = TypeVar("Value")
_OSL, _PRIORITY = "nvext.agent_hints.osl", "nvext.agent_hints.priority"


def with_hints(caller: Caller, body: GenerationBody) -> Caller:
    """The caller with what the body says of its session and of outputs. Raises `InvalidRequest` for
    what cannot be a session's name, and for hints that contradict each other or the headers."""
    hints, dynamo = body.agent or AgentHints(), _dynamo_hints(body)
    for name, value in ("agent.session", hints.session), ("session_id", body.session_id):
        if not is_printable(value or "", SESSION_CHARS):
            problem = f"must be at most {SESSION_CHARS} printable ASCII characters"
            raise InvalidRequest(name, problem)
    session = _agreed(
        "agent.session", hints.session or None, SESSION_HEADER, caller.session or None
    )
    session = _agreed("session_id", body.session_id or None, "the session named elsewhere", session)
    if hints.pause_s is not None and session is None:
        raise InvalidRequest("agent.pause_s", "is of a session; name it in agent.session")
    expected_tokens = _agreed(
        "agent.expected_output_tokens", hints.expected_output_tokens, _OSL, dynamo.osl
    )
    return replace(
        caller,
        session=session or "",
        pin_s=_agreed("agent.pin_s", hints.pin_s, PIN_HEADER, caller.pin_s or None) or 0.0,
        pause_s=hints.pause_s,
        expected_output_tokens=expected_tokens,
        wants_sources=bool(body.return_token_sources),
    )


def hinted_attributes(body: GenerationBody, attributes: Mapping[str, object]) -> dict[str, int]:
    """What Dynamo's hints set of a request, beside the `attributes` that the body sets itself.
    Raises `InvalidRequest` where they contradict each other."""
    priority = _dynamo_hints(body).priority
    if priority is None:
        return {}
    if attributes.get("priority", -priority) != -priority:
        raise InvalidRequest(_PRIORITY, "contradicts priority; send one of them")
    return {"priority": -priority}


def _dynamo_hints(body: GenerationBody) -> DynamoAgentHints:
    hints = None if body.nvext is None else body.nvext.agent_hints
    return hints or DynamoAgentHints()


def _agreed(name: str, value: Value | None, other_name: str, other: Value | None) -> Value | None:
    if value is not None and other is not None and value != other:
        raise InvalidRequest(name, f"contradicts {other_name}; send one of them")
    return other if value is None else value
