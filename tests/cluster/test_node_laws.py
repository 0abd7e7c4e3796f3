"""Laws of a whole cluster: whoever joins, leaves, flips, drains, dies, hangs or comes back, each
request ends once, with the tokens of the ledger, and nothing stays behind."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tandem.cluster.router.fleet import SentLoad
from tandem.cluster.worker.machine import WorkerConfig
from tests.cluster.ledger_engine import answer
from tests.cluster.node_cluster import NodeCluster
from tests.cluster.test_router_laws import request, worker
from tests.cluster.world import CONTEXT_TOKENS
from tests.seeds import seeds

CHUNKS, SEEDS = seeds(3, 10), 100


def fleet(chance: Random) -> dict[str, WorkerConfig]:
    """Two to five workers whose block sizes divide each other; one more joins at the end."""
    sizes = chance.choice([(1,), (2,), (4,), (8,), (2, 4), (8, 4, 1)])
    configs = {f"w{n}": worker(chance, chance.choice(sizes)) for n in range(chance.randint(2, 5))}
    return configs | {"spare": worker(chance, chance.choice(sizes))}


def run(seed: int, world: type[NodeCluster] = NodeCluster) -> NodeCluster:
    chance = Random(seed)
    cluster = world(fleet(chance), chance.randint(1, 2), chance)
    for index, name in enumerate(list(cluster.configs)[:-1]):
        cluster.start_worker(name, cluster.roles[index % len(cluster.roles)])
    if chance.randrange(4):
        cluster.gather()
    for index in range(chance.randint(1, 24)):
        gate = cluster.gates[chance.choice(sorted(cluster.gates))]
        if not gate.hung:
            cluster.submit(gate, request(chance, f"{gate.name}.{gate.start}/{index}"))
        for _ in range(chance.randrange(12)):
            cluster.turn()
    for _ in range(100):
        cluster.turn()
    cluster.settle()
    return cluster


def check(cluster: NodeCluster) -> None:
    for gate in (*cluster.finished, *cluster.gates.values()):
        for client in gate.clients.values():
            (ending,) = client.endings
            cluster.seen[ending] += 1
            expected = answer(client.request.prompt_tokens, client.request.sampling, CONTEXT_TOKENS)
            if ending == "finished":
                assert client.output == expected
            else:
                assert client.output == expected[: len(client.output)]
    for audited in cluster.audit_all():
        nothing = replace(audited, worker="", cached_blocks=0)
        assert nothing == type(audited)("", 0, 0, 0, 0, 0, 0, 0, 0, ""), audited
    # The last reports.
    for _ in range(5):
        cluster.rest()
    for gate in cluster.gates.values():
        assert not len(gate.machine.routing.transfers)
        for process in cluster.living():
            name = process.node.registration.worker
            tracked = gate.machine.router.admission.fleet.workers[name]
            assert tracked.events_sent == process.node.gateways.of(gate.name).received_events
            assert not tracked.sent_by
            assert tracked.sent == SentLoad()
    for process in cluster.living():
        assert not process.moves
        assert not process.publishing


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_happens_each_request_gets_its_answer_once(chunk):
    seen: Counter[str] = Counter()
    for seed in range(chunk * SEEDS, (chunk + 1) * SEEDS):
        cluster = run(seed)
        check(cluster)
        seen.update(cluster.seen)
    # The law has met what it is about.
    rare = (
        "taken up again",
        "copies",
        "migrations",
        "migrated",
        "hand-overs",
        "hand-overs without KV",
        "flips",
    )
    rare += ("crashes", "fenced", "returned", "leaves", "gateway restarts", "withdrawn")
    rare += ("transfers failed", "moves stopped", "operations done")
    assert all(seen[what] >= 2 for what in rare), seen
    assert seen["turned away"], seen
    assert seen["finished"] > 3 * seen["rejected"], seen
