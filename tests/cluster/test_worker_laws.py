"""Laws of the worker machine: whatever happens around it, a request gets its own answer, and
every block, slot and sequence is accounted for."""

from collections import deque
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.request import Request
from tandem.messages.worker import RequestsAborted, RequestsArrived, RunStep, StepDone
from tests.cluster.ledger_engine import LedgerEngine, answer
from tests.cluster.ledger_worker import (
    CONTEXT_TOKENS,
    LedgerWorker,
    check_answer,
    configs,
    requests,
)


@settings(max_examples=300, deadline=None)
@given(configs(), st.lists(requests(), min_size=1, max_size=10), st.data())
def test_any_mix_of_arrivals_and_aborts_gives_each_request_its_own_answer(config, wanted, data):
    at = LedgerWorker.of(config)
    asked: dict[str, Request] = {}
    aborted: set[str] = set()
    for index, request in enumerate(wanted):
        copies = data.draw(st.integers(1, 3))
        batch = tuple(replace(request, request_id=f"{index}-{copy}") for copy in range(copies))
        asked |= {request.request_id: request for request in batch}
        at.arrive(*batch)
        for _ in range(data.draw(st.integers(0, 6))):
            if at.landing:
                at.land()
        if data.draw(st.integers(0, 4)) == 0:
            gone = data.draw(st.sampled_from(sorted(asked)))
            if gone not in at.finished:
                aborted.add(gone)
            at.handle(RequestsAborted((gone,)))
    at.drain()
    assert not at.refused
    for request_id, request in asked.items():
        whole = request_id not in aborted
        check_answer(request, at.answers.get(request_id, []), whole=whole)
        assert not whole or request_id in at.finished


@settings(max_examples=100, deadline=None)
@given(configs(), requests(), st.data())
def test_a_request_resumed_from_any_token_goes_on_the_same(config, request_, data):
    expected = answer(request_.prompt_tokens, request_.sampling, CONTEXT_TOKENS)
    kept = data.draw(st.integers(0, len(expected) - 1))
    at = LedgerWorker.of(config)
    resumed = replace(request_, request_id="resumed", output_tokens=tuple(expected[:kept]))
    at.arrive(resumed)
    at.drain()
    assert expected[:kept] + at.answers["resumed"] == expected


@settings(max_examples=60, deadline=None)
@given(configs(), st.lists(requests(), min_size=2, max_size=6), st.integers(1, 10**15))
def test_shifting_all_instants_changes_no_effect(config, wanted, shift_ns):
    def effects(offset_ns: int) -> list:
        machine = WorkerMachine(config)
        engine = LedgerEngine(config.block_size, config.block_count, config.max_sequences)
        batch = tuple(
            replace(request, request_id=str(index)) for index, request in enumerate(wanted)
        )
        todo, seen = deque([RequestsArrived(batch)]), []
        while todo:
            for effect in machine.handle(todo.popleft(), offset_ns + len(seen)):
                if isinstance(effect, RunStep):
                    seen.append(repr(effect))
                    todo.append(StepDone(engine.run(effect.plan)))
                else:
                    seen.append(effect)
        return seen

    assert effects(0) == effects(shift_ns)
