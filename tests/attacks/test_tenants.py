"""Tenants and keys against each other: what one of them sends leaves the others' caches, places,
turns and pins as they were."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.requests import ClassConfig, TenantConfig
from tandem.config.cluster.tiers import tenant_pin_shares
from tandem.config.cluster.workers import PoolConfig, TierConfigs
from tandem.config.policies import router_policies
from tandem.facts.blocks import CacheRoot, salt_of
from tandem.facts.errors import Overloaded
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.facts.serving import Caller
from tandem.facts.slo import AS_THEY_WISH
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.terms import GatewayTerms
from tandem.live.local_worker import LocalWorker
from tandem.policy.eviction.pins_and_quotas import Pin
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.qos.fair_queue import Turns
from tandem.text.model import TextModel
from tests.live.toy_cluster import (
    SEQUENCES,
    GatedLedger,
    ToyWorker,
    gateway_config,
    make_gateway,
    make_worker,
    request,
    serving,
    until,
    working,
)

HOUR, MINUTE = Pin(3600 * 10**9), Pin(60 * 10**9)
KEYS = ApiConfig(api_keys=("flood", "quiet"), tenants={"acme-key": "acme"})
# What somebody without a tenant may write to pass for one.
LIES = ("4:acme", "acme", "0:4:acme", "4:acme0:", "04:acme", "\0acme", "４:acme")


class Door:
    """The HTTP application over one toy engine, and clients with keys."""

    def __init__(self, worker: LocalWorker, engine: GatedLedger, http) -> None:
        self.worker, self.engine = worker, engine
        self.ended: list[str] = []
        self._http = http

    async def ask(self, key: str, **body) -> httpx2.Response:
        body = {"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9], "max_tokens": 2, "ignore_eos": True} | body
        headers = {"Authorization": f"Bearer {key}"}
        answer = await self._http.post("/v1/completions", json=body, headers=headers)
        self.ended.append(key)
        return answer

    @property
    def waiting(self) -> int:
        return len(self.worker.machine.planner.waiting)

    @property
    def accounts(self) -> set[str]:
        """Of those who wait."""
        return {each.request.account for each in self.worker.machine.planner.waiting}


@asynccontextmanager
async def door_of(text: TextModel, **options):
    engine = GatedLedger()
    engine.gate.set()
    worker = make_worker(engine, **options)
    transport = httpx2.ASGITransport(app=build_app(worker, text, KEYS))
    await worker.start()
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Door(worker, engine, http)
    finally:
        engine.gate.set()
        await worker.stop()


def cached(answer: httpx2.Response) -> int:
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_whatever_somebody_writes_as_salt_nobody_reads_a_tenants_cache(text):
    async with door_of(text) as door:
        assert cached(await door.ask("acme-key")) == 0
        assert cached(await door.ask("acme-key")) == 8
        for lie in LIES:
            assert cached(await door.ask("flood", cache_salt=lie)) == 0, lie
        # Nor what a tenant calls its own: the same salt is another one's elsewhere.
        assert cached(await door.ask("acme-key", cache_salt="mine")) == 0
        assert cached(await door.ask("flood", cache_salt="mine")) == 0


ANYTHING = st.text(st.characters(codec="utf-8"), max_size=6) | st.text("0123456789:a\0", max_size=8)


ADAPTERS = st.sampled_from(["", "a" * 32, "0" * 32])


@given(st.tuples(ANYTHING, ANYTHING, ADAPTERS), st.tuples(ANYTHING, ANYTHING, ADAPTERS))
def test_no_two_identities_share_a_root(one, other):
    root = CacheRoot("m", "r", b"layout")
    same = root.hash(salt_of(*one)) == root.hash(salt_of(*other))
    assert same == (one == other)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_nobody_without_a_tenant_writes_the_salt_of_one(tenant, salt, written):
    mine = salt_of(tenant or "a", salt)
    adapted = salt_of(tenant, salt, "a" * 32)
    for lie in (written, mine, mine[1:], f"0:{mine}", f"{tenant}{salt}", adapted):
        assert salt_of("", lie) != mine
        assert salt_of("", lie) != adapted


async def test_one_keys_flood_leaves_room_and_a_turn_to_another(text):
    async with door_of(text, max_waiting=64) as door:
        door.engine.gate.clear()
        # One call fills the engine, then two of 32 answers each all waiting places.
        prompts = [[token] * 9 for token in range(4)]
        calls = [asyncio.create_task(door.ask("flood", prompt=prompts))]
        await until(lambda: len(door.worker.machine.sequences.running) == 4)
        calls += [asyncio.create_task(door.ask("flood", n=32)) for _ in range(2)]
        await until(lambda: door.waiting == 64)
        late = await door.ask("flood")
        assert late.status_code == 429, "it has all places"
        wished = {"priority": -(2**31)}
        calls += [asyncio.create_task(door.ask("flood", n=1, **wished)) for _ in range(2)]
        quiet = asyncio.create_task(door.ask("quiet"))
        await until(lambda: len(door.accounts) == 2)
        door.ended.clear()
        door.engine.gate.set()
        assert (await quiet).status_code == 200
        # Those that ran already are done, and nothing of what waited before it.
        assert door.ended.count("flood") <= 4
        codes = [answer.status_code for answer in await asyncio.gather(*calls)]
        # The newest call gave way, as a whole.
        assert codes == [200, 200, 429, 429, 429]


async def test_on_one_engine_a_clients_priority_only_lowers():
    async def priority_of(wish: int, **options) -> int:
        engine = GatedLedger()
        made = make_worker(engine)
        worker = LocalWorker(made.card, made.machine, engine, **options)
        await worker.start()
        task = asyncio.create_task(anext(worker.generate(replace(request("a"), priority=wish))))
        await until(lambda: worker.machine.unfinished)
        found = worker.machine.unfinished["a"].request.priority
        engine.gate.set()
        await task
        await worker.stop()
        return found

    assert await priority_of(-(2**31)) == 0
    assert await priority_of(7) == 7
    assert await priority_of(-5, priorities=AS_THEY_WISH) == -5


GOLD = ServiceClass("gold", priority=1, reserved=0.5, headers={"x-tier": "gold"})
CLASSES = Classes((GOLD,), {"paying": "gold"}, {"paying": (), "flood": (), "quiet": ()})


class Reader:
    """Requests of tenants through a gateway, in the order in which they end."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.ended: list[str] = []
        self.refused: list[str] = []
        self._serial = count()

    def ask(self, tenant: str, calls: int = 1, priority: int = 0, **headers: str):
        caller = Caller(tenant, {name.replace("_", "-"): v for name, v in headers.items()})
        return [asyncio.create_task(self._read(caller, priority)) for _ in range(calls)]

    async def _read(self, caller: Caller, priority: int) -> None:
        wanted = request(f"{caller.tenant}-{next(self._serial)}", max_tokens=4)
        wanted = replace(wanted, tenant=caller.tenant, priority=priority)
        try:
            async for _ in self.gateway.generate(wanted, caller):
                pass
            self.ended.append(caller.tenant)
        except Overloaded as refusal:
            assert refusal.retry_after_s >= 1
            self.refused.append(caller.tenant)


@asynccontextmanager
async def gated(gateway: Gateway):
    """A gateway with one worker, which computes nothing before the gate is open; gives both."""
    worker = ToyWorker("w")
    worker.engine.gate.clear()
    async with serving(gateway) as endpoint, working(worker, at=endpoint):
        await until(lambda: len(list(gateway.machine.members)) == 1)
        yield Reader(gateway), worker.engine.gate


def with_tenants() -> Gateway:
    config = gateway_config()
    queue = RequestQueueConfig(max_requests=SEQUENCES)
    router = replace(config.router, classes=CLASSES, queue=queue)
    machine = GatewayMachine(replace(config, router=router))
    return Gateway(make_gateway().card, machine, GatewayTerms("i"))


async def test_a_flood_at_the_gateway_takes_no_place_that_another_wants():
    async with gated(make_gateway(max_waiting=64)) as (reader, gate):
        flood = reader.ask("flood", 64, priority=-(2**31))
        await until(lambda: len(reader.gateway.machine.router.requests) == 64)
        # Alone it may have all places, and no more.
        flood += reader.ask("flood", 3)
        await until(lambda: len(reader.refused) == 3)
        quiet = reader.ask("quiet", 8)
        await until(lambda: len(reader.refused) == 11)
        assert reader.refused == ["flood"] * 11
        gate.set()
        await asyncio.gather(*flood, *quiet)
        assert reader.ended.count("quiet") == 8
        assert reader.ended.count("flood") == 56


async def test_nor_does_it_come_before_another_by_priorities_or_headers():
    async with gated(with_tenants()) as (reader, gate):
        flood = reader.ask("flood", 60, priority=-(2**31), x_tier="gold")
        await until(lambda: len(reader.gateway.machine.router.requests) == 60)
        views = [each.view for each in reader.gateway.machine.router.requests.values()]
        assert {(view.service_class, view.priority) for view in views} == {("", 0)}
        quiet = reader.ask("quiet", 4)
        paying = reader.ask("paying", 4)
        await until(lambda: len(reader.gateway.machine.router.requests) == 68)
        gate.set()
        await asyncio.gather(*quiet, *paying)
        # Those who ran already, then at most as many of the flood as of the other tenant; and the
        # paying one has the reserve of its class.
        assert reader.ended.count("flood") <= SEQUENCES + 4 + SEQUENCES
        assert reader.ended.index("paying") <= SEQUENCES
        await asyncio.gather(*flood)


def test_what_a_cluster_file_grants_belongs_to_class_and_tenant():
    cluster = Cluster(
        "m",
        (PoolConfig("p", "cpu"),),
        tiers=TierConfigs(pin_share=0.3),
        classes=(
            ClassConfig("gold", priority=3, headers={"x": "gold"}, client_may_raise=2),
            ClassConfig("free", priority=5, client_may_lower=1, default=True, longest_pin_s=9.0),
        ),
        tenants=(TenantConfig("acme", "gold"), TenantConfig("small", pin_share=0.1)),
    )
    classes = router_policies(cluster).classes
    gold, free = classes.classify({}, "acme"), classes.classify({"x": "gold"}, "small")
    assert (gold.name, free.name) == ("gold", "free")
    assert classes.classify({"x": "gold"}, "").name == "free"
    assert [gold.priority_of(wish) for wish in (-9, -1, 0, 9)] == [1, 2, 3, 12]
    assert [free.priority_of(wish) for wish in (-9, 0, 9)] == [5, 5, 6]
    assert (gold.longest_pin_s, free.longest_pin_s) == (None, 9.0)
    assert tenant_pin_shares(cluster) == {"small": 0.1}


@pytest.mark.parametrize(("serve", "priority"), [({}, 0), ({"allow-client-priority": True}, -7)])
def test_a_cluster_trusts_its_clients_only_where_its_file_says_so(serve, priority):
    cluster = Cluster("m", (PoolConfig("p", "cpu"),), serve=serve)
    assert router_policies(cluster).classes.classify({}, "").priority_of(-7) == priority


def hierarchy_of(**config) -> TierHierarchy:
    return TierHierarchy(TiersConfig({Tier.HOST: 100}, **config), count())


def bring(hierarchy: TierHierarchy, tenant: str, blocks: int, now_ns: int = 0) -> list[bytes]:
    digests = [f"{tenant}{number}".encode() for number in range(blocks)]
    names = [BlockName(digest, b"root", digests[0], tenant) for digest in digests]
    wanted = hierarchy.wanted(Tier.HOST, names)
    hierarchy.kept(Tier.HOST, wanted, [name.digest for name in wanted], now_ns)
    hierarchy.audit()
    return digests


def kept(hierarchy: TierHierarchy, digests: list[bytes]) -> int:
    return sum(hierarchy.caches.tier_of(digest) is not None for digest in digests)


def test_pins_of_one_tenant_give_way_to_those_of_another():
    hierarchy = hierarchy_of()
    greedy, modest = bring(hierarchy, "greedy", 80), bring(hierarchy, "modest", 20)
    for renewal in range(3):
        hierarchy.caches.pin(greedy, HOUR, renewal)
    hierarchy.caches.pin(modest, MINUTE, 3)
    # It may renew as often as it likes: each has what it wants, or an even share of half the tier.
    hierarchy.caches.pin(greedy, HOUR, 4)
    bring(hierarchy, "others", 1000, 5)
    assert kept(hierarchy, modest) == 20
    assert kept(hierarchy, greedy) == 30


def test_what_may_be_pinned_has_a_bound_together_and_for_each_tenant():
    hierarchy = hierarchy_of(pin_share=0.2, pin_shares={"greedy": 0.05})
    greedy, modest = bring(hierarchy, "greedy", 50), bring(hierarchy, "modest", 50)
    hierarchy.caches.pin(greedy, HOUR, 1)
    hierarchy.caches.pin(modest, HOUR, 1)
    bring(hierarchy, "others", 1000, 2)
    assert (kept(hierarchy, greedy), kept(hierarchy, modest)) == (5, 15)


def test_pins_for_blocks_that_never_come_do_not_drive_out_those_of_another():
    hierarchy = hierarchy_of()
    names = [BlockName(b"m", b"root", b"m", "modest")]
    hierarchy.wanted(Tier.HOST, names)
    hierarchy.caches.pin([b"m"], HOUR, 0)
    for start in range(0, 8192, 1024):
        digests = [f"g{number}".encode() for number in range(start, start + 1024)]
        waiting = [BlockName(digest, b"root", digests[0], "greedy") for digest in digests]
        hierarchy.wanted(Tier.HOST, waiting)
        hierarchy.caches.pin(digests, HOUR, 0)
    hierarchy.kept(Tier.HOST, names, [b"m"], 1)
    bring(hierarchy, "others", 1000, 2)
    assert kept(hierarchy, [b"m"]) == 1


def test_nobody_pins_by_its_own_word_unless_the_operator_says_so():
    wish = Caller("acme", pin_s=3600.0)
    assert GatewayTerms("i").pin_s(wish) == 0
    assert GatewayTerms("i", longest_pins_s={"acme": 60.0}).pin_s(wish) == 60
    assert GatewayTerms("i", longest_pins_s={"acme": 60.0}).pin_s(Caller(pin_s=9.0)) == 0
    assert GatewayTerms("i", longest_pin_s=600.0, longest_pins_s={"acme": 0.0}).pin_s(wish) == 0
    # The class's word counts where the tenant has none of its own.
    assert GatewayTerms("i", longest_pin_s=600.0).pin_s(wish, 30.0) == 30
    assert GatewayTerms("i", longest_pins_s={"acme": 60.0}).pin_s(wish, 30.0) == 60


def test_turns_remember_nobody_who_is_behind():
    turns = Turns()
    for number in range(10_000):
        turns.taken(turns.next_of(f"key {number}") + 1)
    assert len(turns) <= 200
    assert [turns.next_of("a") for _ in range(3)] == [turns.next_of("b") for _ in range(3)]


def test_who_names_a_session_gets_no_more_than_its_tenant_or_class_may_have():
    caller = Caller("acme", session="forged", pin_s=3600.0)
    terms = GatewayTerms("i", pin_sessions_s=60.0)
    assert terms.pin_s(caller) == 60
    assert terms.pin_s(caller, 0.0) == 0
    assert terms.pin_s(caller, 20.0) == 20
    bounded = GatewayTerms("i", pin_sessions_s=60.0, longest_pins_s={"acme": 0.0})
    assert bounded.pin_s(caller) == bounded.pin_s(caller, 600.0) == 0
    assert bounded.pin_s(Caller("other", session="s")) == 60
    wide = GatewayTerms("i", pin_sessions_s=60.0, longest_pins_s={"acme": 600.0})
    assert wide.pin_s(caller) == 600
    assert wide.pin_s(Caller("acme", session="s")) == 60
