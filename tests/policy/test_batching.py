"""Laws of the batching policy."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.batching import NEVER_NS, TokenBudgetBatching


@dataclass(frozen=True)
class View:
    rank: tuple[int, int, int]
    pending_tokens: int
    account: str = ""
    due_ns: int = NEVER_NS


VIEWS = st.lists(
    st.builds(View, st.tuples(*[st.integers(0, 5)] * 3), st.integers(0, 50)), max_size=20
).map(lambda views: sorted(views, key=lambda view: view.rank))
POLICIES = st.builds(TokenBudgetBatching, st.integers(1, 64), st.integers(0, 64))


@given(POLICIES, VIEWS)
def test_everybody_with_work_is_a_decode_or_a_prefill_and_keeps_its_rank(policy, views):
    decodes, prefills = policy.decodes_and_prefills(views)
    assert decodes == [view for view in views if view.pending_tokens == 1]
    assert prefills == [view for view in views if view.pending_tokens > 1]


@given(POLICIES, st.integers(0, 100), st.integers(0, 100))
def test_a_chunk_keeps_every_bound(policy, pending_tokens, budget_tokens):
    chunk_tokens = policy.chunk_tokens(pending_tokens, budget_tokens)
    assert 0 <= chunk_tokens <= min(pending_tokens, budget_tokens)
    if policy.max_prefill_chunk_tokens:
        assert chunk_tokens <= policy.max_prefill_chunk_tokens
    # Whoever has work and a budget moves on: nothing waits for ever.
    assert bool(chunk_tokens) == bool(pending_tokens and budget_tokens)


HURRIED = st.lists(
    st.builds(
        View,
        st.tuples(*[st.integers(0, 5)] * 3),
        st.integers(0, 50),
        st.sampled_from(["a", "b"]),
        st.sampled_from([1, 2, NEVER_NS]),
    ),
    min_size=1,
    max_size=20,
)


@given(POLICIES, VIEWS.filter(bool))
def test_without_deadlines_the_victim_is_the_last_by_rank(policy, views):
    assert policy.victim(views).rank == max(view.rank for view in views)


@given(POLICIES, HURRIED)
def test_a_deadline_saves_a_sequence_at_the_cost_of_its_own_account_alone(policy, views):
    last, victim = max(views, key=lambda view: view.rank), policy.victim(views)
    assert victim.rank[0] == last.rank[0]
    assert victim.account == policy.victim([last]).account
    mates = [v for v in views if (v.account, v.rank[0]) == (last.account, last.rank[0])]
    assert victim.due_ns == max(mate.due_ns for mate in mates)


@given(POLICIES, VIEWS)
def test_nobody_outranks_in_both_directions(policy, views):
    for one in views:
        for other in views:
            assert not (policy.outranks(one, other) and policy.outranks(other, one))


def mean_wait(count: int, tokens: int, decodes: int, together: int) -> float:
    """In rows, of prompts of so many tokens, so many in a step."""
    waits, passed = [], 0
    for first in range(0, count, together):
        share = min(together, count - first)
        passed += decodes + share * tokens
        waits += [passed] * share
    return sum(waits) / count


@given(
    count=st.integers(1, 40),
    tokens=st.integers(16, 300),
    decodes=st.integers(0, 200),
)
def test_prompts_share_steps_as_far_as_they_come_sooner_for_it(count, tokens, decodes):
    batching = TokenBudgetBatching.on("cpu", 1 << 20)
    enough = batching.enough_tokens(count * tokens, decodes)
    chosen = mean_wait(count, tokens, decodes, -(-enough // tokens))
    best = min(mean_wait(count, tokens, decodes, each) for each in range(1, count + 1))
    assert chosen <= 1.12 * best


def test_on_a_gpu_only_the_budget_bounds_what_prompts_share():
    batching = TokenBudgetBatching.on("cuda", 2048)
    assert batching.enough_tokens(10_000, 3) == 2048
