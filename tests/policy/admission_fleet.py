"""Workers, requests and routes for the tests of admission and dispatch, with easy arithmetic."""

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.facts.slo import Slo
from tandem.policy.routing.policies import CostSeconds
from tandem.policy.views import RequestView, WorkerView

# 10 ms a step, 0.1 ms a token of it, 1 us a context token of the decodes: 1,000 tokens in chunks of
# 1,000 take 110 ms, a lone decode about 10 ms.
COST = WorkerCost(
    step_time=FittedStepTime(fixed_s=0.010, token_s=1e-4, context_token_s=1e-6),
    kv_bytes_per_token=1000.0,
    chunk_tokens=1000,
    tiers={Tier.HOST: LinkCost(bytes_per_s=1e9)},
    network=LinkCost(bytes_per_s=1e8),
)


def worker(name, role=Role.BOTH, **values):
    values = {"total_blocks": 100_000, "free_blocks": 100_000} | values
    return WorkerView(name, role, COST, as_of_ns=0, **values)


def busy_worker(name, running, role=Role.DECODE, context=500, **values):
    """`running` sequences of `context` tokens, each with its own blocks."""
    blocks = running * -(-context // 16)
    values = {
        "running_sequences": running,
        "context_tokens": running * context,
        "free_blocks": 100_000 - blocks,
        "total_blocks": 100_000,
    } | values
    return worker(name, role, **values)


def request(prompt=1000, answer=100.0, ttft=None, tpot=None, **values):
    values = {"request_id": "r", "serial": 0, "arrival_ns": 0} | values
    return RequestView(
        prompt_tokens=prompt,
        expected_output_tokens=answer,
        slo=Slo(ttft_s=ttft, tpot_s=tpot),
        **values,
    )


def route(asked, prefill, decode):
    """Over this pair, with the seconds that every routing policy predicts for it."""
    return CostSeconds().choose(asked, [prefill] if prefill is decode else [prefill, decode], 0)
