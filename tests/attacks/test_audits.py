"""Whoever breaks the books of a machine is found by its audit, under `python -O` too: the machines
are broken and asked in a process of its own, `python -O -m tests.attacks.test_audits`."""

import json
import subprocess
import sys

import pytest

from tandem.cluster.shared_pool.contents import HotBlocksConfig
from tandem.cluster.shared_pool.machine import PoolNodeConfig, PoolNodeMachine
from tandem.cluster.tiers.config import TiersConfig
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.messages.cluster import PROTOCOL, Audit, RegisterPoolNode
from tandem.messages.gateway import AuditAsked, AuditEnded
from tandem.messages.node import GatewayConnected, MessageFromGateway
from tandem.messages.pool_node import BlocksOffered, BlocksReceived
from tandem.messages.router import BlocksListed
from tandem.messages.worker import ImportBlocks, RequestsArrived
from tandem.policy.eviction.policies import make_eviction
from tests.cluster.cluster_parts import (
    TERMS,
    GatewayUnderTest,
    NodeUnderTest,
    of_kind,
    register,
    request,
    sent_to,
)
from tests.cluster.test_node_tiers import compute, worker_with, write_through

BLOCK = BlockName(b"d" * 16, bytes(16), b"d" * 16)


def busy_node():
    node = NodeUnderTest("g")
    node.receive("g", RequestsArrived((request("r"), request("s"))))
    return node


def node_with_tiers():
    node = worker_with("g")
    write_through(node, compute(node))
    return node


def pool_node():
    config = PoolNodeConfig(
        RegisterPoolNode(PROTOCOL, "1", "pool-0", "one", "h:1", BlockFormat(bytes(16), 8), 9),
        TiersConfig({Tier.HOST: 4}, lambda blocks: make_eviction("lru", blocks)),
        HotBlocksConfig(),
    )
    machine = PoolNodeMachine(config, 0)
    machine.handle(GatewayConnected("g"), 1)
    machine.handle(MessageFromGateway("g", TERMS), 2)
    machine.handle(BlocksOffered(1, (BLOCK,)), 3)
    machine.handle(BlocksReceived((BLOCK,), (BLOCK.digest,)), 4)
    return machine


def gateway():
    gate = GatewayUnderTest(register("w"))
    gate.receive(BlocksListed("w", Tier.DEVICE, (b"a" * 16, b"b" * 16), 0))
    gate.submit("r")
    return gate


def node_says(machine):
    (answer,) = sent_to(machine.handle(MessageFromGateway("g", Audit()), 10**6), "g")[-1:]
    return answer.problem


def gateway_says(gate):
    """The gateway's own books; its workers have nothing to say here."""
    effects = gate.machine.handle(AuditAsked(1), gate.now_ns + 1)
    ended = of_kind(effects, AuditEnded)
    if not ended:
        ended = of_kind(gate.machine.handle(AuditAsked(2), gate.now_ns + 10**12), AuditEnded)
    return ended[0].problem.removeprefix("no answer from w")


def work(node):
    return node.machine.work


def sequences(node):
    return work(node).machine.sequences


def hierarchy(node):
    return node.machine.tiers.hierarchy


def staged_too_much(node):
    node.machine.tiers.writing._waiting.extend([object()] * 10**5)


# What is broken: (how it is made, who answers, what is done to it).
NODES = {
    "a block without an owner": lambda n: sequences(n).pool._free.popitem(),
    "a block with an owner too many": lambda n: sequences(n).pool._owners.__setitem__(0, 9),
    "a hash of nothing": lambda n: sequences(n).pool._block_of.__setitem__(b"x" * 16, 29),
    "a slot lost": lambda n: sequences(n).free_slots.pop(),
    "a block filled by nobody": lambda n: sequences(n)._filling.__setitem__(b"x", object()),
    "a request forgotten": lambda n: work(n).machine.unfinished.popitem(),
    "a lease too few": lambda n: work(n).leases.end("r"),
    "an import of nobody": lambda n: work(n).inbound.blocks_reserved(ImportBlocks("x", 0, 4, (1,))),
    "a move of no import": lambda n: work(n).inbound.moving.__setitem__(7, object()),
}
TIERS = {
    "a block without a name": lambda n: hierarchy(n).caches._names.popitem(),
    "a name of nothing": lambda n: hierarchy(n).caches._names.__setitem__(b"x" * 16, BLOCK),
    "a block that rises by itself": lambda n: hierarchy(n).rising.__setitem__(b"x" * 16, None),
    "too much that waits": staged_too_much,
    "a fetch stopped that is none": lambda n: n.machine.tiers.fetches._stopped.add(9),
    "a fetch not taken": lambda n: n.machine.tiers._ended.append(object()),
}
POOLS = {
    "a block told of and lost": lambda m: m.contents.hierarchy.caches.drop(
        Tier.HOST, (BLOCK.digest,)
    ),
    "a block counted twice": lambda m: m.contents.replicas.counts.__setitem__(BLOCK.digest, 2),
}
GATEWAYS = {
    "a request under another name": lambda g: g.machine.router._by_wire.popitem(),
    "a request that nobody counts": lambda g: g.machine.router.requests.popitem(),
    "a member that the fleet lost": lambda g: g.machine.router.admission.fleet.workers.clear(),
    "a transfer of nobody": lambda g: g.machine.router.kv_transfers._transfers.update(
        {7: (None, "", "w")}
    ),
    "KV remembered of nobody": lambda g: g.machine.routing.transfers._computed.__setitem__(
        ("w", "x"), 1
    ),
    "a prefix of nobody": lambda g: g.machine.router.admission.index._runs._run_of.popitem(),
    "a class that gives no place back": lambda g: g.machine.router.admission.queue.in_use.update(
        {"x": 3}
    ),
}


def main():
    """Prints what is found. Nothing up to here rests on `assert`."""
    found = {}
    groups = [
        (NODES, busy_node, lambda node: node_says(node.machine)),
        (TIERS, node_with_tiers, lambda node: node_says(node.machine)),
        (POOLS, pool_node, node_says),
        (GATEWAYS, gateway, gateway_says),
    ]
    for breaks, make, ask in groups:
        found[f"nothing of a {make.__name__}"] = ask(make())
        for name, harm in breaks.items():
            books = make()
            harm(books)
            found[name] = ask(books)
    json.dump({"optimised": sys.flags.optimize, "found": found}, sys.stdout)


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-O", "-m", "tests.attacks.test_audits"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert answer["optimised"] == 1, "assertions were left in"
    return answer["found"]


def test_books_in_order_have_no_problem(answers):
    untouched = {name: found for name, found in answers.items() if name.startswith("nothing of")}
    assert len(untouched) == 4
    assert set(untouched.values()) == {""}


def test_every_auditor_finds_what_was_broken(answers):
    broken = {name: found for name, found in answers.items() if not name.startswith("nothing of")}
    assert len(broken) > 20
    for name, found in broken.items():
        assert "does not hold at" in found, name
    # Auditors of every part were asked, and named the place.
    places = {found.split(" at ")[1].split(".audit")[0] for found in broken.values()}
    parts = {
        "AdmissionFront", "BlockPool", "BlockRuns", "Fetches", "GatewayMachine", "InboundTransfers",
        "KvTransfers", "PoolContents", "RouterMachine", "RunningSequences", "TierCaches",
        "TierHierarchy", "Transfers", "Work", "WorkerMachine", "WorkerTiers", "WriteThrough",
    }  # fmt: skip
    assert places == parts


if __name__ == "__main__":
    main()
