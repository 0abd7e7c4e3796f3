"""Laws of a cluster with slower tiers: whatever they lose, spoil, refuse or bring late, each
request gets its own answer, and what gateways believe of a tier is what it holds."""

from collections import Counter
from random import Random

from tandem.facts.fleet import Tier
from tests.cluster.test_node_laws import check
from tests.cluster.test_router_laws import request, worker
from tests.cluster.tier_cluster import TierCluster
from tests.seeds import seeds

SEEDS = seeds(80, 120)


def run(seed: int) -> TierCluster:
    """Few workers with small devices, whose requests share few long prompts."""
    chance = Random(seed)
    size, workers = chance.choice([1, 2, 4]), chance.randint(1, 3)
    configs = {name: worker(chance, size) for name in [*(f"w{n}" for n in range(workers)), "spare"]}
    cluster = TierCluster(configs, chance.randint(1, 2), chance)
    for index in range(workers):
        cluster.start_worker(f"w{index}", cluster.roles[index % len(cluster.roles)])
    cluster.start_pool()
    cluster.gather()
    for index in range(chance.randint(12, 30)):
        gate = cluster.gates[chance.choice(sorted(cluster.gates))]
        if not gate.hung:
            cluster.submit(gate, request(chance, f"{gate.name}.{gate.start}/{index}"))
        for _ in range(chance.randrange(60)):
            cluster.turn()
    cluster.settle()
    return cluster


def check_tiers(cluster: TierCluster) -> None:
    """Nobody's work is left, every store holds exactly what its worker reports, and every gateway
    knows exactly that."""
    for process in cluster.living():
        lanes, tiers = cluster.lanes_of(process), process.node.tiers
        assert not lanes.busy
        assert not lanes.staged
        assert not lanes.fetching
        process.node.audit()
        for tier, cache in tiers.hierarchy.caches.by_tier.items():
            listing = cache.store.listing()
            assert not cache.leaving
            assert set(lanes.stores[tier].blocks) == set(listing)
            for gate in cluster.gates.values():
                pools = gate.machine.router.admission.index._pools.get(process.name, {})
                # Who has forgotten a worker that was drained asks when it hears of it again.
                if tier in pools:
                    assert set(pools[tier].held) == set(listing)


def test_slower_tiers_cost_time_and_never_a_token():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        cluster = run(seed)
        check(cluster)
        check_tiers(cluster)
        seen.update(cluster.seen)
    rare = ("fetches whole", "fetches spoilt", "fetches missing", "fetches broken")
    rare += ("fetches stopped", "no room to stage", "disks found", "pool joined", "pool gone")
    rare += tuple(f"kept on {tier}" for tier in (Tier.HOST, Tier.DISK, Tier.REMOTE))
    rare += ("copied from host", "copied from disk", "copied from remote")
    assert all(seen[what] for what in rare), seen
