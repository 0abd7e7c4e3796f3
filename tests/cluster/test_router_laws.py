"""Laws of a router over real workers: whoever computes, moves, dies, drains, flips or gives up what
and when, each request gets exactly its own answer and nothing stays behind."""

from collections import Counter
from random import Random

from tandem.cluster.worker.machine import WorkerConfig
from tandem.facts.blocks import CacheRoot
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.policy.batching import TokenBudgetBatching
from tests.cluster.ledger_engine import VOCABULARY, answer
from tests.cluster.router_cluster import Cluster
from tests.cluster.world import CONTEXT_TOKENS

SEEDS = 400
# Prompts are cuts of few long texts, so that prefixes are shared often and at odd lengths.
TEXTS = ((1, 2, 3, 4, 5) * 8, (1, 2, 3, 4, 6) * 8, (7,) * 40)


def fleet(chance: Random) -> dict[str, WorkerConfig]:
    """Two to four workers with blocks of one size, and room of different size."""
    block_size = chance.choice([1, 2, 4, 8])
    return {f"w{index}": worker(chance, block_size) for index in range(chance.randint(2, 4))}


def worker(chance: Random, block_size: int) -> WorkerConfig:
    least_blocks = -(-CONTEXT_TOKENS // block_size)
    max_sequences = chance.randint(1, 6)
    return WorkerConfig(
        block_size=block_size,
        block_count=chance.randint(least_blocks, 3 * least_blocks),
        context_tokens=CONTEXT_TOKENS,
        vocabulary_tokens=VOCABULARY,
        max_sequences=max_sequences,
        batching=TokenBudgetBatching(chance.randint(max_sequences, 48), chance.choice([0, 3, 7])),
        root=CacheRoot("model", "revision", b"layout"),
        steps_in_flight=chance.randrange(2),
        pipeline_stages=chance.choice([1, 1, 1, 2, 3]),
    )


def request(chance: Random, request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt_tokens=chance.choice(TEXTS)[: chance.randint(1, CONTEXT_TOKENS - 1)],
        sampling=SamplingParameters(
            seed=chance.randrange(4),
            max_tokens=chance.randint(1, 20),
            stop_token_ids=chance.choice([(), (0,), (0, 1, 2)]),
        ),
        priority=chance.randrange(3),
        cache_salt=chance.choice(["", "tenant"]),
    )


def run(seed: int) -> Cluster:
    """Requests come while chance leads; then everybody gets to the end."""
    chance = Random(seed)
    cluster = Cluster(fleet(chance), chance)
    for name in cluster.configs:
        cluster.join(name, cluster.role())
    for index in range(chance.randint(1, 12)):
        cluster.submit(request(chance, f"r{index}"))
        for _ in range(chance.randrange(25)):
            cluster.turn()
    for _ in range(60):
        cluster.turn()
    cluster.settle()
    return cluster


def test_any_mix_of_events_gives_each_request_its_own_answer():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        cluster = run(seed)
        for client in cluster.clients.values():
            (ending,) = client.endings
            cluster.seen[ending] += 1
            expected = answer(client.request.prompt_tokens, client.request.sampling, CONTEXT_TOKENS)
            if ending == "finished":
                assert client.output == expected, seed
            else:
                assert client.output == expected[: len(client.output)], seed
        seen.update(cluster.seen)
    # The law has met what it is about.
    rare = ("taken up again", "migrations", "hand-overs", "hand-overs without KV", "flips")
    rare += ("pulled from a tier", "reports lost", "withdrawn", "crashes", "copies")
    assert all(seen[what] >= 20 for what in rare), seen
    assert seen["finished"] > 3 * seen["rejected"], seen
