"""Laws of the fair queue: reserves, priorities of classes, shares of tenants, age, and the order
that a tenant's own requests have."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import IN_BACKGROUND
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.qos.fair_queue import FairQueue
from tandem.policy.views import RequestView

CLASSES = Classes(
    (
        ServiceClass("gold", priority=0, reserved=0.5),
        ServiceClass("silver", priority=1, reserved=0.25),
        ServiceClass("batch", priority=9),
    )
)
SECOND = 1_000_000_000


class TakingQueue(FairQueue):
    """Whose first request is taken out at once."""

    def next(self, in_use, capacity, now_ns):
        chosen = self.first(in_use, capacity, now_ns)
        return None if chosen is None else self.remove(chosen.request_id)


def asks(serial, name="", tenant="", **values):
    values = {"arrival_ns": serial, "prompt_tokens": 10, "expected_output_tokens": 10.0} | values
    priority = values.pop("priority", CLASSES.named(name).priority)
    return RequestView(
        f"r{serial}", serial, tenant=tenant, service_class=name, priority=priority, **values
    )


REQUESTS = st.tuples(
    st.sampled_from(["gold", "silver", "batch", ""]),
    st.sampled_from(["ada", "bob", "cy"]),
    st.sampled_from([None, 5, 50, 500]),
    st.integers(0, 3),
).map(lambda drawn: {"name": drawn[0], "tenant": drawn[1], "deadline_ns": drawn[2], "p": drawn[3]})


def level(request):
    return CLASSES.named(request.service_class).priority


@dataclass
class SlowQueue:
    """The obvious twin: a list, searched whole each time."""

    max_wait_ns: int
    waiting: list = field(default_factory=list)
    counters: dict = field(default_factory=dict)
    last_left: dict = field(default_factory=dict)

    def counter(self, tenant, priority):
        return self.counters.get((tenant, priority), 0.0)

    def push(self, request):
        priority = level(request)
        here = [each for each in self.waiting if level(each) == priority]
        if all(each.tenant != request.tenant for each in here):
            if here:
                least = min(self.counter(each.tenant, priority) for each in here)
            else:
                last = self.last_left.get(priority, request.tenant)
                least = self.counter(last, priority)
            key = (request.tenant, priority)
            self.counters[key] = max(self.counter(*key), least)
        self.waiting.append(request)

    def charge(self, tenant, tokens):
        for priority in (0, 1, 9):
            self.counters[tenant, priority] = self.counter(tenant, priority) + tokens

    def take(self, request):
        self.waiting.remove(request)
        left = [(each.tenant, level(each)) for each in self.waiting]
        if (request.tenant, level(request)) not in left:
            self.last_left[level(request)] = request.tenant
        return request

    def next(self, in_use, capacity, now_ns):
        if not self.waiting or sum(in_use.values()) >= capacity:
            return None
        below = [
            each
            for each in self.waiting
            if CLASSES.below_reserve(each.service_class, in_use, capacity)
        ]
        entitled = below or self.waiting
        overdue = [each for each in entitled if now_ns - each.arrival_ns > self.max_wait_ns]
        urgent = min(map(level, entitled))
        fresh = [each for each in entitled if level(each) == urgent and each not in overdue]
        _, tenant = min((self.counter(e.tenant, level(e)), e.tenant) for e in overdue + fresh)
        never = 2**63
        own = [each for each in overdue if each.tenant == tenant]
        if own:
            return self.take(min(own, key=lambda each: (each.arrival_ns, each.serial)))
        own = [each for each in fresh if each.tenant == tenant]
        return self.take(
            min(
                own,
                key=lambda e: (
                    e.priority,
                    never if e.deadline_ns is None else e.deadline_ns,
                    e.serial,
                ),
            )
        )


ACTIONS = st.lists(
    st.one_of(
        REQUESTS,
        st.tuples(st.just("next"), st.integers(0, 8), st.integers(0, 8), st.integers(0, 8)),
        st.tuples(st.just("charge"), st.sampled_from(["ada", "bob", "cy"]), st.integers(0, 50)),
        st.tuples(st.just("remove"), st.integers(0, 100)),
    ),
    max_size=80,
)


@given(ACTIONS, st.integers(0, 60))
def test_the_queue_is_its_slow_twin(actions, max_wait_ns):
    fast = TakingQueue(CLASSES, max_wait_s=max_wait_ns / SECOND)
    slow = SlowQueue(max_wait_ns)
    for now_ns, action in enumerate(actions):
        if isinstance(action, dict):
            request = asks(
                now_ns,
                action["name"],
                action["tenant"],
                deadline_ns=action["deadline_ns"],
                priority=action["p"],
            )
            fast.push(request)
            slow.push(request)
        elif action[0] == "next":
            in_use = dict(zip(("gold", "silver", "batch"), action[1:], strict=True))
            assert fast.next(in_use, 12, now_ns) == slow.next(in_use, 12, now_ns)
        elif action[0] == "charge":
            fast.charge(action[1], action[2], 2 * action[2])
            slow.charge(action[1], 5.0 * action[2])
        elif slow.waiting:
            gone = slow.waiting[action[1] % len(slow.waiting)]
            assert gone.request_id in fast
            assert fast.remove(gone.request_id) == slow.take(gone)
            assert gone.request_id not in fast
        assert len(fast) == len(slow.waiting)
        assert fast.waiting() == Counter(each.service_class for each in slow.waiting)


@given(st.lists(st.sampled_from(["gold", "silver", "batch", ""]), max_size=60), st.integers(0, 16))
def test_free_slots_are_filled_and_reserves_are_honoured(names, capacity):
    queue = TakingQueue(CLASSES)
    for serial, name in enumerate(names):
        queue.push(asks(serial, name))
    in_use = Counter()
    while request := queue.next(in_use, capacity, 0):
        in_use[request.service_class] += 1
    # Work conserving: every free slot was given out while somebody waited.
    assert sum(in_use.values()) == min(capacity, len(names))
    demand = Counter(names)
    for name in ("gold", "silver"):
        assert in_use[name] >= min(demand[name], CLASSES.reserved_slots(name, capacity))


def test_an_unused_reserve_is_lent_and_comes_back_with_the_next_free_slot():
    queue = TakingQueue(CLASSES)
    for serial in range(8):
        queue.push(asks(serial, "batch"))
    in_use = Counter()
    while request := queue.next(in_use, 4, 0):
        in_use[request.service_class] += 1
    assert in_use == {"batch": 4}
    queue.push(asks(100, "gold"))
    queue.push(asks(101, "gold"))
    queue.push(asks(102, "gold"))
    in_use["batch"] -= 1
    # Even before batch requests that waited far too long; but not beyond the reserve.
    late_ns = 100 * SECOND
    assert queue.next(in_use, 4, late_ns).request_id == "r100"
    in_use.update(gold=1)
    assert queue.next(in_use, 4, late_ns) is None
    in_use["batch"] -= 1
    assert queue.next(in_use, 4, late_ns).request_id == "r101"
    in_use.update(gold=1)
    in_use["batch"] -= 1
    assert queue.next(in_use, 4, late_ns).request_id == "r4"


def test_the_order_is_service_then_own_priority_then_deadline_then_arrival():
    queue = TakingQueue(Classes())
    queue.push(asks(0, tenant="ada", priority=1))
    queue.push(asks(1, tenant="ada", priority=0))
    queue.push(asks(2, tenant="ada", priority=0, deadline_ns=50))
    queue.push(asks(3, tenant="ada", priority=0, deadline_ns=40))
    queue.push(asks(4, tenant="bob", priority=0))
    queue.charge("ada", 1, 0)
    taken = [queue.next({}, 1, 10).request_id for _ in range(5)]
    assert taken == ["r4", "r3", "r2", "r1", "r0"]
    assert queue.next({}, 1, 10) is None


def test_no_priority_of_its_own_takes_a_tenant_before_another():
    queue = TakingQueue(Classes())
    for serial in range(0, 40, 2):
        queue.push(asks(serial, tenant="greedy", priority=-(2**31) + serial))
        queue.push(asks(serial + 1, tenant="modest", priority=7))
    taken = []
    for _ in range(10):
        taken.append(queue.next({}, 1, 100).tenant)
        queue.charge(taken[-1], 10, 0)
    assert taken == ["greedy", "modest"] * 5


def test_an_old_backlog_takes_no_more_than_its_tenants_share():
    queue = TakingQueue(Classes(), max_wait_s=30)
    for serial in range(1000):
        queue.push(asks(serial, tenant="flood", arrival_ns=0))
    queue.charge(queue.next({}, 1, 60 * SECOND).tenant, 10, 0)
    # Everything of the flood is overdue, and a newcomer is second all the same.
    queue.push(asks(2000, tenant="new", arrival_ns=60 * SECOND))
    taken = []
    for _ in range(4):
        taken.append(queue.next({}, 1, 61 * SECOND).tenant)
        queue.charge(taken[-1], 10, 0)
    assert taken[:2] in (["flood", "new"], ["new", "flood"])


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.booleans()), max_size=60))
def test_what_is_remembered_does_not_grow_with_what_clients_choose(wishes):
    queue = TakingQueue(CLASSES)
    for serial, (priority, stays) in enumerate(wishes):
        queue.push(asks(serial, ("", "batch")[serial % 2], "ab"[serial % 3 % 2], priority=priority))
        if not stays:
            taken = queue.next({}, 1, serial)
            queue.charge(taken.tenant, 1, 1)
    while queue.next({}, 1, 0):
        pass
    # Two tenants, two priorities of classes.
    counters = queue._counters
    held = (counters._service, counters._lifts, counters._last_left)
    assert sum(map(len, held)) <= 2 + 2 * 2 + 2


SIZES = st.tuples(st.integers(1, 100), st.integers(0, 50))


@given(
    st.lists(SIZES, min_size=2, max_size=4),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), min_size=1, max_size=10),
)
def test_backlogged_tenants_differ_by_no_more_than_vtc_allows(sizes, slots, ends):
    # As the paper proves: whoever has the larger counter is not taken again, so it leads by one
    # prompt and the answers that run. Prompts are charged when taken, answers when they end.
    queue, served, running = TakingQueue(Classes()), Counter(), []
    bound = max(prompt for prompt, _ in sizes) + 2 * slots * max(answer for _, answer in sizes)
    for serial in range(2 * len(sizes)):
        queue.push(asks(serial, tenant=str(serial // 2)))
    for serial in range(100, 200):
        tenant = int(queue.next({"": len(running)}, slots, 0).tenant)
        queue.push(asks(serial, tenant=str(tenant)))
        prompt, answer = sizes[tenant]
        queue.charge(str(tenant), prompt, 0)
        served[tenant] += prompt
        running.append((tenant, answer))
        for _ in range(max(ends[serial % len(ends)], len(running) == slots)):
            if running:
                tenant, answer = running.pop(serial % len(running))
                queue.charge(str(tenant), 0, answer)
                served[tenant] += 2 * answer
        counts = [served[tenant] for tenant in range(len(sizes))]
        assert max(counts) - min(counts) <= bound


def test_nobody_saves_up_credit_while_idle():
    queue = TakingQueue(Classes())
    for serial in range(20):
        queue.push(asks(serial, tenant="busy"))
    for _ in range(10):
        queue.charge(queue.next({}, 1, 0).tenant, 100, 0)
    # Idle until now, yet level with the other: they take turns.
    for serial in range(20, 30):
        queue.push(asks(serial, tenant="idle"))
    taken = []
    for _ in range(8):
        taken.append(queue.next({}, 1, 0).tenant)
        queue.charge(taken[-1], 100, 0)
    assert taken == ["busy", "idle"] * 4
    # The same when the other just left.
    alone = TakingQueue(Classes())
    alone.push(asks(0, tenant="busy"))
    alone.charge(alone.next({}, 1, 0).tenant, 1000, 0)
    alone.push(asks(1, tenant="idle"))
    alone.push(asks(2, tenant="busy"))
    alone.charge("idle", 1, 0)
    assert alone.next({}, 1, 0).tenant == "busy"


def test_weights_divide_the_service():
    queue = TakingQueue(Classes(), weights={"ada": 3.0})
    for serial in range(80):
        queue.push(asks(serial, tenant="ada" if serial % 2 else "bob"))
    taken = Counter()
    for _ in range(40):
        tenant = queue.next({}, 1, 0).tenant
        queue.charge(tenant, 10, 5)
        taken[tenant] += 1
    assert taken == {"ada": 30, "bob": 10}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 20))
def test_nobody_starves(priorities, max_wait_s):
    # An endless stream of urgent requests, one arrival and one free slot a second.
    queue = TakingQueue(CLASSES, max_wait_s=max_wait_s)
    for serial, priority in enumerate(priorities):
        queue.push(asks(serial, "batch", arrival_ns=0, priority=1 + priority))
    waits = {}
    for second in range(max_wait_s + 2 * len(priorities) + 2):
        now_ns = second * SECOND
        queue.push(asks(1000 + second, arrival_ns=now_ns, priority=0))
        taken = queue.next({}, 1, now_ns)
        waits[taken.request_id] = second
    # Whoever waits too long is behind those who waited longer and nobody else.
    for serial in range(len(priorities)):
        assert waits[f"r{serial}"] <= max_wait_s + 1 + len(priorities)


def test_thirty_thousand_wait_without_trouble():
    queue = TakingQueue(CLASSES)
    for serial in range(30_000):
        name = ("gold", "silver", "batch", "")[serial % 4]
        queue.push(asks(serial, name, f"t{serial % 997}", deadline_ns=serial * 7919 % 30_011))
    for serial in range(0, 30_000, 2):
        queue.remove(f"r{serial}")
    assert len(queue) == 15_000
    for _ in range(3_000):
        queue.charge(queue.next({}, 4, 0).tenant, 10, 1)
    # Every second left: silver with its reserve was served, and the class without a name waits.
    assert queue.waiting() == {"silver": 4_500, "": 7_500}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"weights": {"ada": 0.0}}, "weight of tenant ada is 0; choose"),
        ({"max_wait_s": -1.0}, "max_wait_s is -1; choose"),
    ],
)
def test_a_bad_setting_is_named(values, text):
    with pytest.raises(InvalidConfiguration, match=text):
        TakingQueue(Classes(), **values)


def order(queue, capacity=100):
    return [queue.next({}, capacity, 0).request_id for _ in range(len(queue))]


def test_a_request_of_a_class_that_is_gone_goes_on_in_its_tenants():
    queue = TakingQueue(CLASSES)
    for serial, name in enumerate(["gold", "batch", "silver", "gold"]):
        queue.push(asks(serial, name, "ada" if name == "gold" else "bob"))
    kept = ServiceClass("batch", priority=9), ServiceClass("late", priority=5)
    queue.reconfigure(Classes(kept, {"ada": "late"}, default="batch"), {}, 30.0)
    assert queue.waiting() == {"batch": 2, "late": 2}
    # Within a class requests keep the priority that they came with.
    assert order(queue) == ["r0", "r3", "r2", "r1"]


def test_a_priority_that_changed_moves_those_who_wait():
    queue = TakingQueue(CLASSES)
    for serial, name in enumerate(["silver", "batch", "silver"]):
        queue.push(asks(serial, name, "ada"))
    turned = Classes((ServiceClass("silver", priority=9), ServiceClass("batch", priority=1)))
    queue.reconfigure(turned, {}, 30.0)
    assert order(queue) == ["r1", "r0", "r2"]


@given(st.lists(REQUESTS, max_size=12), st.data())
def test_a_configuration_that_changes_nothing_changes_no_order(drawn, data):
    queues = TakingQueue(CLASSES), TakingQueue(CLASSES)
    for serial, each in enumerate(drawn):
        for queue in queues:
            queue.push(asks(serial, each["name"], each["tenant"], priority=each["p"]))
            queue.charge(each["tenant"], 7 * serial, serial % 3)
    taken = data.draw(st.integers(0, len(drawn)))
    for _ in range(taken):
        assert queues[0].next({}, 100, 0) == queues[1].next({}, 100, 0)
    queues[1].reconfigure(CLASSES, {}, 30.0)
    assert order(queues[0]) == order(queues[1])


def test_other_weights_count_from_the_change_on():
    queue = TakingQueue(CLASSES)
    for serial in range(60):
        queue.push(asks(serial, tenant="ada" if serial % 2 else "bob"))

    def turns(count):
        taken = Counter()
        for _ in range(count):
            request = queue.next({}, 100, 0)
            queue.charge(request.tenant, 100, 0)
            taken[request.tenant] += 1
        return taken

    assert turns(20) == {"ada": 10, "bob": 10}
    queue.reconfigure(CLASSES, {"ada": 4.0}, 30.0)
    assert turns(20) == {"ada": 16, "bob": 4}


@given(
    st.lists(st.tuples(REQUESTS, st.booleans()), min_size=1, max_size=20),
    st.lists(st.tuples(st.sampled_from(["ada", "bob", "cy"]), st.integers(0, 50)), max_size=4),
    st.integers(0, 60),
)
def test_what_runs_in_the_background_goes_when_nobody_else_waits(drawn, charges, max_wait_ns):
    """Whatever its class, its age, its tenant's share and its class's reserve."""
    mixed = TakingQueue(CLASSES, max_wait_s=max_wait_ns / SECOND)
    alone = TakingQueue(CLASSES, max_wait_s=max_wait_ns / SECOND)
    for tenant, tokens in charges:
        mixed.charge(tenant, tokens, 0)
        alone.charge(tenant, tokens, 0)
    awaited = 0
    for serial, (each, in_background) in enumerate(drawn):
        # Those in the background are accounts of their own.
        tenant = each["tenant"] + " (background)" * in_background
        more = {"priority": IN_BACKGROUND} if in_background else {}
        request = asks(serial, each["name"], tenant, deadline_ns=each["deadline_ns"], **more)
        mixed.push(request)
        if not in_background:
            alone.push(request)
            awaited += 1
    assert sum(mixed.awaited().values()) == awaited
    order = [mixed.next({}, 8, 100 + n) for n in range(len(drawn))]
    assert order[:awaited] == [alone.next({}, 8, 100 + n) for n in range(awaited)]
    assert all(each.in_background for each in order[awaited:])
    assert not len(mixed)


def test_accounts_share_what_is_left_for_the_background():
    queue = TakingQueue(CLASSES)
    queue.charge("a", 100, 0)
    for serial, tenant in enumerate(("a", "a", "b")):
        queue.push(asks(serial, "gold", tenant, priority=IN_BACKGROUND))
    assert [queue.next({}, 8, 0).tenant for _ in range(3)] == ["b", "a", "a"]
