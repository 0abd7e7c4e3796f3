"""Laws of several steps under way: every stage has work while there is enough, in even shares.
That answers stay the same and nobody draws twice at a time, all laws of the worker check."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.messages.worker import RequestsAborted
from tandem.policy.batching import TokenBudgetBatching
from tests.cluster.ledger_worker import check_answer, request, small_worker


@given(st.integers(2, 4), st.integers(0, 9), st.data())
def test_every_stage_has_an_even_share(stages, more, data):
    sequences = stages + more
    at = small_worker(
        pipeline_stages=stages,
        max_sequences=sequences,
        block_count=20 * sequences,
        batching=TokenBudgetBatching(64),
    )
    wanted = [request(str(index), prompt=(index % 9,), max_tokens=30) for index in range(sequences)]
    at.arrive(*wanted)
    at.land()
    for _ in range(4 * stages):
        assert len(at.landing) == stages
        at.land()
    sizes = [plan.batched_tokens for plan in at.landing]
    assert sum(sizes) == sequences
    assert max(sizes) - min(sizes) <= 1

    gone = data.draw(st.lists(st.sampled_from(wanted), max_size=more, unique=True))
    at.handle(RequestsAborted(tuple(one.request_id for one in gone)))
    for _ in range(4 * stages):
        at.land()
    sizes = [plan.batched_tokens for plan in at.landing]
    assert len(sizes) == stages
    assert sum(sizes) == sequences - len(gone)
    # Nobody joins: a stage may be short of one, never hold more than its share.
    assert max(sizes) == -(-(sequences - len(gone)) // stages)
    at.drain()
    for one in wanted:
        if one not in gone:
            check_answer(one, at.answers[one.request_id])


def test_one_sequence_alone_is_in_one_stage_at_a_time():
    at = small_worker(pipeline_stages=3)
    at.arrive(request("alone"))
    while at.landing:
        assert len(at.landing) == 1
        at.land()
    at.drain()


def test_the_chunks_of_a_long_prompt_follow_each_other_through_the_stages():
    at = small_worker(pipeline_stages=3, batching=TokenBudgetBatching(4))
    at.arrive(request("long", prompt=[3] * 20))
    assert [plan.starts.tolist() for plan in at.landing] == [[0], [4], [8]]
    at.drain()
