"""What each of two gateways shows of both, over real workers that relay; and how what they saw
becomes one."""

from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from tandem.facts.overview import ClusterEvent, Overview, QueueOverview, WorkerOverview
from tandem.facts.serving import Caller
from tandem.live.gateway import other_gateways
from tandem.live.gateway.combined_overview import aligned, combined
from tandem.live.gateway.gateway import Gateway
from tandem.messages.codec import OBSERVATION
from tandem.messages.gateway import MessageFromWorker
from tandem.messages.observation import AskRequests, OverviewReported, RequestsReported
from tandem.messages.sharing import RelayedFromGateway, RelayToGateway
from tandem.observe.timeline import OpenBin
from tests.live.toy_cluster import (
    TERMS,
    ToyWorker,
    make_gateway,
    read,
    request,
    serving,
    until,
    working,
)

S = 1_000_000_000
# No gateway is forgotten while a test looks on.
PATIENT = structs.replace(TERMS, silence_ns=60 * S)


def one_of_two(name: str) -> Gateway:
    terms = structs.replace(PATIENT, gateway=name)
    return make_gateway(of_cluster=terms, gateways=2, explain_bytes=1 << 20)


async def acquainted(*gateways: Gateway) -> None:
    """Until each has heard of another."""
    machines = [each.machine for each in gateways]
    await until(lambda: all(each.sharing and each.sharing.others for each in machines))


@asynccontextmanager
async def two_gateways(worker: ToyWorker):
    """That know of each other, by this worker; gives the first one's endpoint as well."""
    one, other = one_of_two("g0"), one_of_two("g1")
    async with serving(one) as here, serving(other) as there, working(worker, at=(here, there)):
        await acquainted(one, other)
        yield one, other, here


async def test_each_gateway_shows_what_both_have_done():
    async with two_gateways(ToyWorker("w")) as (one, other, _):
        for number, gateway in enumerate((one, one, other)):
            wanted = request(f"r-{number}", max_tokens=5 + number)
            await read(gateway, wanted, Caller(tenant="acme", call_id=f"call-{number}"))
        shown = [await each.observation.overview(None) for each in (one, other)]
        for seen in shown:
            assert (seen.server, seen.silent) == ("g0, g1", ())
            assert (seen.finished, seen.waiting, seen.running) == (3, 0, 0)
            assert sum(each.ttft.count for each in seen.bins if each.ttft) == 3
            assert sum(each.itl.count for each in seen.bins if each.itl) == 4 + 5 + 6
            (worker,) = seen.workers
            assert (worker.prompts, worker.output_tokens) == (3, 5 + 6 + 7)
            assert [each.text for each in seen.events] == ["w joined as both"]
        assert shown[0].bins == shown[1].bins
        names = ["r-2", "r-1", "r-0"]
        for gateway in (one, other):
            lines = await gateway.observation.latest_requests("acme", 100)
            assert [each.request_id.rpartition("/")[2] for each in lines] == names
            assert len(await gateway.observation.latest_requests(None, 2)) == 2
            assert await gateway.observation.latest_requests("hobby", 100) == []
            for name in (lines[0].request_id, "call-2"):
                (detail,) = await gateway.observation.request_details("acme", name)
                assert detail.line.output_tokens == 7
                assert await gateway.observation.request_details("hobby", name) == []


async def test_queues_are_added_up_and_a_caller_sees_its_own(tmp_path):
    worker = ToyWorker("w")
    async with two_gateways(worker) as (one, other, _):
        streams = [
            gateway.generate(request(f"r-{tenant}", max_tokens=150), Caller(tenant=tenant))
            for gateway, tenant in ((one, "acme"), (other, "acme"), (other, "hobby"))
        ]
        for stream in streams:
            await anext(stream)
        seen = await one.observation.overview(None)
        assert seen.queues == (
            QueueOverview("", "acme", 0, 2),
            QueueOverview("", "hobby", 0, 1),
        )
        assert seen.running == 3
        (own,) = (await one.observation.overview("hobby")).queues
        assert own == QueueOverview("", "hobby", 0, 1)
        for stream in streams:
            await stream.aclose()
        await until(lambda: worker.drained)


async def test_a_gateway_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(other_gateways, "PATIENCE_S", 0.01)
    one, other, worker = one_of_two("g0"), one_of_two("g1"), ToyWorker("w")
    async with serving(one) as here:
        async with serving(other) as there:
            worker.start(here, there)
            await acquainted(one, other)
        await read(one, request("r-0", max_tokens=3))
        seen = await one.observation.overview(None)
        assert (seen.server, seen.silent, seen.finished) == ("g0", ("g1",), 1)
        assert len(await one.observation.latest_requests(None, 10)) == 1
        # Without a worker nobody relays, and nobody is waited for.
        monkeypatch.setattr(other_gateways, "PATIENCE_S", 1e9)
        await worker.stop()
        await until(lambda: not list(one.machine.members))
        assert (await one.observation.overview(None)).silent == ("g1",)


async def test_a_worker_that_cannot_relay_is_made_up_for_by_the_next():
    lonely = ToyWorker("lonely")
    async with two_gateways(ToyWorker("w")) as (one, _, here), working(lonely, at=here):
        await until(lambda: len(list(one.machine.members)) == 2)
        # Their turns come one after the other, so that one of these began with the lonely one.
        for _ in range(2):
            assert (await one.observation.overview(None)).silent == ()


class Sent:
    """Of the way to workers, what was sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, object]] = []

    def send(self, peer: str, message: object) -> None:
        self.messages.append((peer, message))


async def test_only_gateways_that_are_known_get_an_answer():
    asked = OBSERVATION.encode(AskRequests(7, None, 10))
    answer = RelayToGateway("g1", OBSERVATION.encode(RequestsReported(7, ())))
    alone = make_gateway()
    async with two_gateways(ToyWorker("w")) as (one, _, __):
        (member,) = one.machine.members
        for gateway, peer, sender, content, answers in (
            (one, member.peer, "g1", asked, [(member.peer, answer)]),
            (one, member.peer, "g2", asked, []),
            (one, "nobody/1/1", "g1", asked, []),
            (one, member.peer, "g1", asked[:-1], []),
            (one, member.peer, "g1", b"", []),
            (alone, member.peer, "g1", asked, []),
        ):
            sent = Sent()
            gateway.observation.others.open(sent)
            gateway.enqueue(MessageFromWorker(peer, RelayedFromGateway("w", sender, content)))
            assert sent.messages == answers


def seen_by(gateway: str, **changes) -> Overview:
    whole = Overview(
        server=gateway,
        model="toy",
        up_s=10.0,
        workers=(),
        tiers=(),
        queues=(),
        slos=(),
        bin_s=5.0,
        current_bin=7,
        bins=(),
        waiting=1,
        running=2,
        finished=3,
    )
    return structs.replace(whole, **changes)


def seen_worker(name: str, **changes) -> WorkerOverview:
    plain = WorkerOverview(
        worker=name,
        role="both",
        state="ready",
        running=1,
        waiting=0,
        used_blocks=2,
        total_blocks=8,
        block_size=4,
    )
    return structs.replace(plain, **changes)


def test_what_workers_report_is_not_counted_twice_and_what_they_did_is_added_up():
    one = seen_by("b", workers=(seen_worker("w", moved_bytes=5, read_from={"v": 5}),))
    mine = seen_worker("w", moved_bytes=8, read_from={"v": 1, "u": 7})
    other = seen_by("a", workers=(mine, seen_worker("new")), up_s=99.0)
    seen = combined(one, [other])
    assert (seen.server, seen.up_s, seen.running, seen.finished) == ("a, b", 99.0, 4, 6)
    w, new = seen.workers
    assert (w.running, w.used_blocks, w.moved_bytes) == (1, 2, 13)
    assert (w.read_from, new.worker) == ({"v": 6, "u": 7}, "new")
    assert combined(one, []) == one


def test_what_several_have_seen_happen_is_told_once():
    joined = ("joined", "w joined as both")
    # It joined twice, and both saw that.
    one = seen_by("a", events=(ClusterEvent(60.0, *joined), ClusterEvent(20.0, *joined)))
    other = seen_by(
        "b",
        events=(
            ClusterEvent(60.2, *joined),
            ClusterEvent(40.0, "planned", "a flip"),
            ClusterEvent(19.9, *joined),
        ),
    )
    for whole in (combined(one, [other]), combined(other, [one])):
        assert [(round(each.ago_s), each.kind) for each in whole.events] == [
            (60, "joined"),
            (40, "planned"),
            (20, "joined"),
        ]


@pytest.mark.parametrize("ahead_ns", [0, 3 * 5 * S, -1000 * 5 * S, 5 * S + 2 * S, -2 * S])
def test_bins_of_another_clock_are_within_half_a_bin_of_ours(ahead_ns):
    bin_ns, now_ns = 5 * S, 10_000 * S
    theirs_ns = now_ns + ahead_ns
    counts = []
    for age in (0, 1, 2, 9):
        counted = OpenBin(theirs_ns // bin_ns - age)
        counted.output_tokens = age
        counts.append(counted.counts())
    reported = OverviewReported(1, theirs_ns, seen_by("a"), tuple(counts))
    first = now_ns // bin_ns - 4
    found = list(aligned(reported, bin_ns, first, now_ns))
    assert [each.output_tokens for each in found] == [0, 1, 2]
    for each in found:
        age_s = (now_ns - each.number * bin_ns) / S
        their_age_s = (theirs_ns - (theirs_ns // bin_ns - each.output_tokens) * bin_ns) / S
        assert abs(age_s - their_age_s) <= 2.5 or each.number == now_ns // bin_ns
