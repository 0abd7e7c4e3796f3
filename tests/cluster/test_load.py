"""What a worker says it carries, while its prompts wait, come from elsewhere and run."""

from tandem.cluster.worker.machine import load_of
from tandem.messages.router import LoadReported
from tandem.messages.worker import ImportsArrived, PrefillsArrived, RequestsAborted
from tests.cluster.ledger_engine import keys_of
from tests.cluster.test_priorities import request, world

PROMPT = (1, 2, 3, 4) * 4


def carried(at) -> tuple[int, int, int]:
    """Running, waiting, and prompt tokens to compute."""
    load: LoadReported = load_of("w", at.machine)
    return load.running_sequences, load.waiting_requests, load.queued_prefill_tokens


def test_a_prompt_that_waits_for_a_slower_tier_is_still_to_be_computed_here():
    at = world()
    at.tell(PrefillsArrived((request("r", prompt=PROMPT, max_tokens=2),), (12,)))
    assert at.imports.keys() == {"r"}
    assert carried(at) == (0, 1, 4)
    at.finish_import("r", keys_of(PROMPT)[:12])
    assert carried(at) == (1, 0, 0)
    at.land()


def test_who_comes_with_its_whole_prompt_is_counted_by_who_sent_it():
    at = world()
    at.tell(ImportsArrived((request("r", prompt=PROMPT, max_tokens=2),), (16,)))
    assert carried(at) == (0, 0, 0)
    at.finish_import("r", keys_of(PROMPT), (3,))
    assert carried(at) == (1, 0, 0)
    at.drain()


def test_nothing_is_to_be_computed_for_who_left_while_its_import_goes_on():
    at = world()
    at.tell(ImportsArrived((request("r", prompt=PROMPT, max_tokens=2),), (12,)))
    assert carried(at) == (0, 1, 4)
    at.tell(RequestsAborted(("r",)))
    assert at.cancelled == {"r"}
    assert carried(at) == (0, 0, 0)
    at.finish_import("r", [])
    at.assert_empty()
