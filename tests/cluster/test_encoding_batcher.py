"""The queue before an encoder: each text ends once, in order, and waits no longer than it may."""

from dataclasses import dataclass, field
from random import Random

import pytest

from tandem.cluster.encoding.batcher import EncodingBatcher
from tandem.messages.encoding import (
    BatchEncoded,
    EncodeBatch,
    EncodingsArrived,
    EncodingsCancelled,
    EncodingTimePassed,
    ExpireEncodings,
    RefuseEncodings,
)
from tandem.policy.dynamic_batching import DynamicBatching

MS = 1_000_000


@dataclass
class Encoder:
    """A batcher, and encoders that take a millisecond and a microsecond a token."""

    machine: EncodingBatcher
    now_ns: int = 0
    places: int = 1
    # (when it is done, batch).
    running: list[tuple[int, int]] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)
    rank: dict[int, tuple[int, int]] = field(default_factory=dict)
    arrived_ns: dict[int, int] = field(default_factory=dict)
    timeout_ns: dict[int, int] = field(default_factory=dict)
    ended_ns: dict[int, int] = field(default_factory=dict)
    # When each batch began, and when it was done.
    spans: list[tuple[int, int]] = field(default_factory=list)
    begun_ns: dict[int, int] = field(default_factory=dict)
    batches: list[tuple[int, ...]] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)

    def end(self, texts, how):
        for text in texts:
            assert text not in self.ends
            self.ends[text] = how
            self.ended_ns[text] = self.now_ns

    @property
    def waiting(self):
        return self.rank.keys() - self.ends.keys()

    def take(self, effects):
        for effect in effects:
            match effect:
                case EncodeBatch(batch, texts):
                    self.end(texts, "encoded")
                    self.batches.append(texts)
                    self.begun_ns |= dict.fromkeys(texts, self.now_ns)
                    took_ns = MS + 1000 * sum(self.tokens[text] for text in texts)
                    self.running.append((self.now_ns + took_ns, batch))
                    self.spans.append((self.now_ns, self.now_ns + took_ns))
                    first_left = min((self.rank[text] for text in self.waiting), default=None)
                    if first_left is not None:
                        assert max(self.rank[text] for text in texts) < first_left
                case ExpireEncodings(texts):
                    self.end(texts, "expired")
                case RefuseEncodings(texts):
                    self.end(texts, "refused")

    def ask(self, texts, tokens, priority=0, timeout_ns=0):
        self.tokens |= dict(zip(texts, tokens, strict=True))
        self.arrived_ns |= dict.fromkeys(texts, self.now_ns)
        self.timeout_ns |= dict.fromkeys(texts, timeout_ns)
        self.rank |= {text: (priority, text) for text in texts}
        event = EncodingsArrived(tuple(texts), tuple(tokens), priority, timeout_ns)
        self.take(self.machine.handle_together((event,), self.now_ns))

    def cancel(self, texts):
        waiting = [text for text in texts if text not in self.ends]
        self.end(waiting, "cancelled")
        self.take(self.machine.handle_together((EncodingsCancelled(tuple(texts)),), self.now_ns))

    def run_until(self, end_ns):
        while True:
            due = [at for at, _ in self.running]
            wakeup = self.machine.next_wakeup()
            if wakeup is not None:
                due.append(max(wakeup, self.now_ns))
            if not due or min(due) > end_ns:
                break
            self.now_ns = min(due)
            done = [each for each in self.running if each[0] <= self.now_ns]
            if not done:
                effects = self.machine.handle_together((EncodingTimePassed(),), self.now_ns)
                # A wake-up is for something.
                assert effects
                self.take(effects)
            for each in done:
                self.running.remove(each)
                self.take(self.machine.handle_together((BatchEncoded(each[1]),), self.now_ns))
        self.now_ns = max(self.now_ns, end_ns)


def drawn_run(seed, origin_ns=0):
    chance = Random(seed)
    batching = DynamicBatching(
        8, 200, chance.choice([(), (4,), (2, 8)]), chance.choice([0, 1, 5]) * MS
    )
    encoder = Encoder(EncodingBatcher(batching, 40, chance.randint(1, 2)), origin_ns)
    text = 0
    for _ in range(60):
        count = chance.choice([1, 1, 2, 12])
        texts = range(text, text + count)
        text += count
        tokens = [chance.choice([5, 40, 300]) for _ in texts]
        timeout_ns = chance.choice([0, 0, 2 * MS, 20 * MS])
        encoder.ask(texts, tokens, chance.choice([0, 0, 1]), timeout_ns)
        if chance.random() < 0.2:
            encoder.cancel([chance.randrange(text)])
        encoder.run_until(encoder.now_ns + chance.choice([0, 1, 3, 30]) * MS // 2)
    encoder.run_until(encoder.now_ns + 1000 * MS)
    return encoder, text


@pytest.mark.parametrize("seed", range(40))
def test_each_text_ends_once_and_batches_keep_their_bounds(seed):
    encoder, texts = drawn_run(seed)
    assert sorted(encoder.ends) == list(range(texts))
    assert encoder.machine.waiting == 0
    assert encoder.machine.next_wakeup() is None
    for batch in encoder.batches:
        assert len(batch) <= 8
        assert len(batch) == 1 or sum(encoder.tokens[text] for text in batch) <= 200


@pytest.mark.parametrize("seed", range(10))
def test_when_it_began_changes_nothing(seed):
    early, _ = drawn_run(seed)
    late, _ = drawn_run(seed, origin_ns=7_777 * MS + 13)
    assert early.batches == late.batches
    assert early.ends == late.ends


def test_a_text_waits_for_others_no_longer_than_the_delay():
    encoder = Encoder(EncodingBatcher(DynamicBatching(8, 1000, (4,), 5 * MS), 100))
    encoder.ask([1], [10])
    encoder.run_until(3 * MS)
    encoder.ask([2], [10])
    encoder.run_until(20 * MS)
    assert encoder.batches == [(1, 2)]
    assert encoder.begun_ns[1] == 5 * MS
    # As many as a preferred size wait for nobody.
    encoder.ask([3, 4, 5, 6, 7], [10] * 5)
    assert encoder.batches[1] == (3, 4, 5, 6)


def test_the_lowest_priority_first_and_then_whoever_came_first():
    encoder = Encoder(EncodingBatcher(DynamicBatching(2, 1000), 100))
    encoder.ask([1], [10])
    for text, priority in ((2, 1), (3, 0), (4, 1), (5, 0), (6, 0)):
        encoder.ask([text], [10], priority)
    encoder.run_until(100 * MS)
    assert encoder.batches == [(1,), (3, 5), (6, 2), (4,)]


def test_who_waits_too_long_is_not_encoded():
    encoder = Encoder(EncodingBatcher(DynamicBatching(1, 1000), 100))
    encoder.ask([1], [1000])
    encoder.ask([2], [10], timeout_ns=MS)
    encoder.ask([3], [10], timeout_ns=10 * MS)
    encoder.run_until(100 * MS)
    assert encoder.ends == {1: "encoded", 2: "expired", 3: "encoded"}


def test_all_texts_of_a_call_find_room_or_none():
    encoder = Encoder(EncodingBatcher(DynamicBatching(1, 1000), 3))
    encoder.ask([1, 2, 3], [10] * 3)
    encoder.ask([4, 5], [10] * 2)
    assert encoder.ends == {1: "encoded", 4: "refused", 5: "refused"}
    encoder.ask([6], [10])
    encoder.run_until(100 * MS)
    assert encoder.batches == [(1,), (2,), (3,), (6,)]


def poisson_run(encoder, load, chance, ask):
    """400 texts, at a rate that takes this share of what the encoders can do in full batches."""
    batching, places = encoder.machine.batching, encoder.places
    size = batching.max_batch_size
    # Texts have 50 tokens on average.
    gap_ns = (MS + size * 50_000) / size / places / load
    due_ns = 0.0
    for text in range(400):
        due_ns += chance.expovariate(1 / gap_ns)
        encoder.run_until(int(due_ns))
        ask(text)
    encoder.run_until(int(due_ns) + 1000 * MS)
    assert sorted(encoder.ends) == list(range(400)) and not encoder.machine.waiting
    assert encoder.machine.next_wakeup() is None


@pytest.mark.parametrize("load", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_under_a_poisson_load_a_text_waits_for_the_delay_or_the_running_batch(seed, load):
    """Of the texts that find room in the next batch; others wait for a batch more."""
    chance = Random(f"{seed} {load}")
    batching = DynamicBatching(8, 500, max_queue_delay_ns=chance.choice([1, 2, 4]) * MS)
    encoder = Encoder(EncodingBatcher(batching, 400))
    latest_ns = {}

    def ask(text):
        ahead = [encoder.tokens[each] for each in encoder.waiting]
        tokens = chance.randrange(5, 95)
        if len(ahead) < 8 and sum(ahead) + tokens <= 500:
            done_ns = max((at_ns for at_ns, _ in encoder.running), default=0)
            latest_ns[text] = max(encoder.now_ns + batching.max_queue_delay_ns, done_ns)
        encoder.ask([text], [tokens])

    poisson_run(encoder, load, chance, ask)
    assert len(latest_ns) > 200
    late = {text for text, at_ns in latest_ns.items() if encoder.begun_ns[text] > at_ns}
    assert not late


def free_spans(spans, places, end_ns):
    """When less than all places were taken, by the spans in which each was."""
    changes = sorted([(begun, 1) for begun, _ in spans] + [(done, -1) for _, done in spans])
    free, taken, since_ns = [], 0, 0
    for at_ns, change in [*changes, (end_ns, 0)]:
        assert taken <= places
        if taken < places and at_ns > since_ns:
            free.append((since_ns, at_ns))
        taken, since_ns = taken + change, at_ns
    return free


@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize("load", [0.2, 0.7, 1.3])
@pytest.mark.parametrize("seed", range(5))
def test_under_a_poisson_load_nobody_waits_beside_a_free_place(seed, load, places):
    """Whatever the priorities, sizes and cancellations: a text may wait longer than the delay as
    long as all places are taken, and no longer."""
    chance = Random(f"{seed} {load} {places}")
    batching = DynamicBatching(
        8, 400, chance.choice([(), (2, 4), (6,)]), chance.choice([2, 9]) * MS
    )
    encoder = Encoder(EncodingBatcher(batching, 60, places), places=places)

    def ask(text):
        timeout_ns = chance.choice([0, 0, 0, 3 * MS, 30 * MS])
        encoder.ask([text], [chance.randrange(5, 95)], chance.choice([0, 1, 2]), timeout_ns)
        if chance.random() < 0.03:
            encoder.cancel([chance.randrange(text + 1)])

    poisson_run(encoder, load, chance, ask)
    for batch, (begun_ns, _) in zip(encoder.batches, encoder.spans, strict=True):
        tokens = sum(encoder.tokens[text] for text in batch)
        assert len(batch) <= 8 and (len(batch) == 1 or tokens <= 400)
        waited_ns = begun_ns - min(encoder.arrived_ns[text] for text in batch)
        full = len(batch) == 8 or tokens > 400 - 95
        early = not full and len(batch) not in batching.preferred_batch_sizes
        assert not early or waited_ns >= batching.max_queue_delay_ns
    free = free_spans(encoder.spans, places, encoder.now_ns)
    for text, how in encoder.ends.items():
        arrived_ns, ended_ns = encoder.arrived_ns[text], encoder.ended_ns[text]
        latest_ns = arrived_ns + batching.max_queue_delay_ns
        wrongly = [(a, b) for a, b in free if max(a, latest_ns) < min(b, ended_ns)]
        assert not wrongly, (text, how, arrived_ns, ended_ns)
        timeout_ns = encoder.timeout_ns[text]
        if how == "expired":
            assert ended_ns == arrived_ns + timeout_ns
        elif how == "encoded" and timeout_ns:
            assert ended_ns < arrived_ns + timeout_ns
