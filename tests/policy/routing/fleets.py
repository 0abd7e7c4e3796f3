"""Small fleets for the tests of routing: a step time with easy numbers, and drawn views."""

from hypothesis import strategies as st

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.policy.views import RequestView, TierHits, WorkerView

# 10 ms, 100 us a token, and 1 us a thousand tokens that anything attends to.
STEP_TIME = FittedStepTime(fixed_s=0.010, token_s=1e-4, pair_s=1e-9, context_token_s=1e-9)
COST = WorkerCost(
    STEP_TIME,
    kv_bytes_per_token=1e5,
    chunk_tokens=1000,
    tiers={
        Tier.HOST: LinkCost(1e10, 1e-4),
        Tier.DISK: LinkCost(1.5e9, 1e-3),
        Tier.REMOTE: LinkCost(4e9, 5e-4),
    },
    network=LinkCost(1e10, 1e-5),
)
SLOW_LINK = WorkerCost(STEP_TIME, 1e5, 1000, network=LinkCost(1e8, 1e-3))


def worker(name: str, role: Role = Role.BOTH, **numbers: object) -> WorkerView:
    numbers = {"cost": COST, "total_blocks": 10_000, "free_blocks": 10_000, **numbers}
    return WorkerView(name, role, as_of_ns=0, **numbers)


def request(prompt_tokens: int = 4000, serial: int = 0, **fields: object) -> RequestView:
    fields = {"expected_output_tokens": 100.0, **fields}
    return RequestView(f"r{serial}", serial, 0, prompt_tokens, **fields)


@st.composite
def views(draw, name: str, roles: tuple[Role, ...] = tuple(Role)):
    total_blocks = draw(st.integers(1, 3000))
    return worker(
        name,
        draw(st.sampled_from(roles)),
        cost=draw(st.sampled_from([COST, SLOW_LINK])),
        accepting=draw(st.integers(0, 4)) > 0,
        running_sequences=draw(st.integers(0, 100)),
        waiting_requests=draw(st.integers(0, 100)),
        queued_prefill_tokens=draw(st.integers(0, 50_000)),
        context_tokens=draw(st.integers(0, 200_000)),
        expected_decodes=draw(st.integers(0, 5)),
        max_sequences=draw(st.sampled_from([1, 64, 256])),
        total_blocks=total_blocks,
        free_blocks=draw(st.integers(0, total_blocks)),
    )


@st.composite
def fleets(draw, roles: tuple[Role, ...] = tuple(Role)):
    names = draw(st.permutations([f"w{place}" for place in range(draw(st.integers(1, 6)))]))
    return [draw(views(name, roles)) for name in names]


hits = st.builds(
    lambda device, host, disk: TierHits(16 * device, 16 * host, 16 * disk),
    st.integers(0, 120),
    st.integers(0, 120),
    st.integers(0, 120),
)
requests = st.builds(
    lambda prompt_tokens, serial, held, remote: request(
        prompt_tokens,
        serial,
        hits={name: held[name] for name in held if held[name].tokens},
        remote_tokens=16 * remote,
    ),
    st.integers(1, 10_000),
    st.integers(0, 1000),
    st.dictionaries(st.sampled_from([f"w{place}" for place in range(6)]), hits),
    st.integers(0, 300),
)
