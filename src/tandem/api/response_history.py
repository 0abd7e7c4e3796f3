"""What a call of the Responses API goes on from: stored responses, read back as items."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.json import decode

from tandem.api.app_context import AppContext
from tandem.api.errors import Refusal, Refused
from tandem.api.response_items import item_id, response_of_item
from tandem.api.response_messages import REFERENCE, kind_of
from tandem.api.response_store import ResponseGone, StoredResponse
from tandem.api.responses_body import ConversationBody, InputItem
from tandem.facts.errors import InvalidRequest

REFERENCES_LIMIT = 256


class _Output(Struct):
    """Of a stored response: its items, as a client would send them back."""

    output: list[InputItem]


@dataclass(frozen=True, slots=True)
class Past:
    """What a call goes on from: the stored turns, and the responses of its references."""

    turns: Sequence[StoredResponse]
    referred: dict[str, StoredResponse]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in (*self.turns, *self.referred.values()))

    def history(self) -> list[InputItem]:
        """The items of all turns, in their order, but for calls that were cut off: half of one was
        never made, and nobody but the server could leave it out."""
        items = [item for turn in self.turns for item in (*_input(turn), *_output(turn))]
        return [item for item in items if not _is_half_a_call(item)]

    def resolved(self, items: Sequence[InputItem]) -> list[InputItem]:
        """The items, and those that they refer to: each once, so that all of them are no more than
        what is stored. Raises `Refused`, and `InvalidRequest` for a second reference."""
        stored = {
            item.id: item
            for each in self.referred.values()
            for item in (*named_items(each), *_output(each))
        }
        used: set[str] = set()

        def referred(name: str) -> InputItem:
            if name not in stored:
                raise _no_item(name)
            if name in used:
                raise InvalidRequest("input", f"refers to {name[:64]!r} twice")
            used.add(name)
            return stored[name]

        return [referred(item.id or "") if kind_of(item) == REFERENCE else item for item in items]


def past_of(sent: ConversationBody, owner: str, context: AppContext) -> Past:
    """Raises `Refused` with 404 for what is not stored."""
    store, turns = context.response_store, list[StoredResponse]()
    if sent.previous_response_id is not None:
        try:
            turns = store.conversation(owner, sent.previous_response_id)
        except ResponseGone as error:
            raise _no_previous(sent.previous_response_id, error.response_id) from error
    items = sent.input if isinstance(sent.input, list) else ()
    references = [item for item in items if kind_of(item) == REFERENCE]
    if len(references) > REFERENCES_LIMIT:
        raise InvalidRequest("input", f"has more than {REFERENCES_LIMIT} references")
    referred: dict[str, StoredResponse] = {}
    for item in references:
        response_id = response_of_item(item.id or "")
        try:
            referred[response_id] = store.find(owner, response_id)
        except ResponseGone as error:
            raise _no_item(item.id or "") from error
    return Past(turns, referred)


def named_items(stored: StoredResponse) -> list[InputItem]:
    """What a response was made of, each item with a name."""
    items = _input(stored)
    for place, item in enumerate(items):
        item.type = kind_of(item)
        item.id = item.id or item_id(item.type, stored.response_id, "i", place)
    return items


def _is_half_a_call(item: InputItem) -> bool:
    return item.type == "function_call" and item.status == "incomplete"


def _input(stored: StoredResponse) -> list[InputItem]:
    return decode(stored.input_items, type=list[InputItem])


def _output(stored: StoredResponse) -> list[InputItem]:
    return decode(stored.response, type=_Output).output


def _no_previous(asked: str, missing: str) -> Refused:
    whose = "" if asked == missing else f", from which {asked[:64]!r} goes on,"
    problem = (
        f"no response {missing[:64]!r}{whose} is stored here, or not any more; send the "
        "conversation as input"
    )
    code = "previous_response_not_found"
    return Refused(Refusal(404, problem, code, "previous_response_id"))


def _no_item(name: str) -> Refused:
    problem = f"no item {name[:64]!r} is stored here, or not any more; send it whole"
    return Refused(Refusal(404, problem, "item_not_found", "input"))
