"""A cluster in which workers of one name compute other numbers, as in the middle of a restart with
new weights: no KV goes from one to the other, and each is found by what it holds itself."""

from dataclasses import replace
from io import StringIO

from msgspec import structs
from rich.console import Console

from tandem.commands.cluster_view import print_status
from tandem.facts.blocks import BlockChanges, CacheRoot, extend_chain
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import MoveKv
from tandem.messages.cluster import ListBlocks, Registered
from tandem.messages.gateway import PeerGone
from tandem.messages.router import BlocksListed, BlocksReported, ImportReported, KvReported
from tandem.messages.worker import ImportBlocks, ImportDone, ImportsArrived, KvComputed
from tests.cluster.cluster_parts import ROOT, GatewayUnderTest, drew, of_kind, register, sent_to

OLD, NEW = ROOT, CacheRoot("new weights", "arithmetic", b"layout")


def of_root(name: str, root: CacheRoot, role: Role = Role.BOTH, **changes):
    presented = register(name, role, root=root, **changes)
    return structs.replace(presented, export=replace(presented.export, identity=root.identity))


def chain_under(root: CacheRoot, tokens: int) -> tuple[bytes, ...]:
    chain: list[bytes] = []
    extend_chain(chain, root.hash(""), range(tokens), 4)
    return tuple(chain)


def holds(gateway: GatewayUnderTest, worker: str, root: CacheRoot, number: int = 0) -> None:
    """The first two blocks of every prompt."""
    stored = chain_under(root, 8)
    changes = BlockChanges(number, (), stored, (root.hash(""), *stored[:-1]))
    gateway.receive(BlocksReported(worker, Tier.DEVICE, changes))


def known_hits(gateway: GatewayUnderTest, root: CacheRoot) -> dict[str, int]:
    found = gateway.machine.router.admission.index.match(chain_under(root, 8), gateway.now_ns)
    return {worker: hits.device_tokens for worker, hits in found.hits.items()}


def prefill_pinned(theirs: CacheRoot | None) -> list:
    """What a decode worker is told while a prompt that a prefill worker computes comes to it."""
    decode = of_root("d", theirs, Role.DECODE) if theirs else register("d", Role.DECODE)
    if theirs is None:
        decode = structs.replace(decode, export=replace(decode.export, identity=""))
    gateway = GatewayUnderTest(of_root("p", OLD, Role.PREFILL), decode)
    gateway.submit("r", 9)
    news = KvComputed(("r",), (9,), ((10, 11, 12),), (True,), ((1, 1, 1),))
    effects = gateway.receive(drew("p", "r"), KvReported("p", news))
    effects += gateway.receive(ImportReported("d", ImportBlocks("r", 0, 9, (20, 21, 22))))
    return sent_to(effects, "d")


def test_a_prompt_is_handed_over_between_workers_of_one_identity():
    assert of_kind(prefill_pinned(OLD), MoveKv)


def test_a_prompt_is_computed_again_by_a_worker_of_another_identity():
    for theirs in (NEW, None, CacheRoot(OLD.model, "another arithmetic", OLD.layout)):
        heard = prefill_pinned(theirs)
        assert of_kind(heard, ImportsArrived)
        assert not of_kind(heard, MoveKv)
        # It goes on with the tokens so far, and not one of them has KV from elsewhere.
        assert [done.tokens for done in of_kind(heard, ImportDone)] == [0]


def test_a_gateway_that_knows_no_weights_learns_what_blocks_are_called():
    nowhere = CacheRoot("a name", "main", b"layout")
    gateway = GatewayUnderTest(root=nowhere)
    assert sent_to(gateway.receive(of_root("w0", NEW)), "w0") == [gateway.machine.config.terms]
    assert gateway.machine.router.admission.roots[""] == NEW
    holds(gateway, "w0", NEW)
    assert known_hits(gateway, NEW) == {"w0": 8}
    gateway.submit("r", 9)
    state = gateway.machine.router.requests["r"]
    assert tuple(state.chain) == chain_under(NEW, 8)


def test_a_request_that_goes_on_at_new_weights_is_looked_up_by_their_names():
    gateway = GatewayUnderTest(of_root("w0", OLD))
    gateway.submit("r", 9)
    gateway.receive(of_root("w1", NEW))
    state = gateway.machine.router.requests["r"]
    assert tuple(state.chain) == chain_under(OLD, 8)
    gateway.handle(PeerGone("w0/1", "restarted"))
    assert state.prefill == "w1"
    assert tuple(state.chain) == chain_under(NEW, 8)


def test_a_restart_with_new_weights_one_by_one():
    """The index follows the majority; what the others hold is neither believed nor forgotten."""
    gateway = GatewayUnderTest(*(of_root(f"w{n}", OLD) for n in range(3)))
    for number in range(3):
        holds(gateway, f"w{number}", OLD)
    assert known_hits(gateway, OLD) == {"w0": 8, "w1": 8, "w2": 8}
    gateway.handle(PeerGone("w0/1", "restarted"))
    gateway.receive(of_root("w0", NEW, incarnation="2"))
    gateway.receive(BlocksListed("w0", Tier.DEVICE, chain_under(NEW, 8), 1), incarnation="2")
    assert gateway.machine.router.admission.roots[""] == OLD
    assert known_hits(gateway, OLD) == {"w1": 8, "w2": 8}
    assert known_hits(gateway, NEW) == {}
    gateway.handle(PeerGone("w1/1", "restarted"))
    effects = gateway.receive(of_root("w1", NEW, incarnation="2"))
    # Two against one: from now on the new names count, and whoever holds such blocks says which.
    assert gateway.machine.router.admission.roots[""] == NEW
    assert known_hits(gateway, OLD) == {}
    listings = [ListBlocks(tier) for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK)]
    assert of_kind(sent_to(effects, "w0"), ListBlocks) == listings
    # The newcomer lists its blocks when it is welcomed.
    assert of_kind(sent_to(effects, "w1"), Registered)
    assert not of_kind(sent_to(effects, "w1"), ListBlocks)
    gateway.receive(BlocksListed("w0", Tier.DEVICE, chain_under(NEW, 8), 1), incarnation="2")
    assert known_hits(gateway, NEW) == {"w0": 8}


def test_those_who_compute_prompts_say_what_blocks_are_called():
    """Where decode workers store KV otherwise, as many as they may be."""
    decoding = [of_root(f"d{n}", NEW, Role.DECODE) for n in range(3)]
    gateway = GatewayUnderTest(*decoding, of_root("p", OLD, Role.PREFILL))
    assert gateway.machine.router.admission.roots[""] == OLD


def test_nobody_is_turned_away_for_other_weights():
    gateway = GatewayUnderTest(of_root("w0", OLD))
    assert of_kind(sent_to(gateway.receive(of_root("w1", NEW)), "w1"), Registered)


def test_an_operator_sees_it():
    gateway = GatewayUnderTest(of_root("w0", OLD), of_root("w1", OLD))
    console = Console(width=140, file=StringIO())
    print_status(console, "http://here", [gateway.machine.status(gateway.now_ns)])
    assert "no KV moves" not in console.file.getvalue()
    gateway.receive(of_root("w2", NEW))
    print_status(console, "http://here", [gateway.machine.status(gateway.now_ns)])
    said = f"({OLD.identity[:8]}: w0, w1; {NEW.identity[:8]}: w2)"
    assert said in console.file.getvalue()
