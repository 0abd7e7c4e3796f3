"""A gateway goes on whatever becomes of its journal, and counts what the journal misses."""

import asyncio
import logging
from dataclasses import replace
from threading import Event

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.facts.fleet import Role
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import Caller, ModelCard
from tandem.live.gateway.gateway import Gateway
from tandem.live.gateway.journal import Journal, JournalLimits
from tandem.live.gateway.terms import GatewayTerms
from tandem.messages.gateway import ClusterStatus, TimePassed
from tandem.observe.cluster_metrics import GatewayMetrics
from tandem.observe.journal.files import FileLimits, JournalFiles, open_journal
from tandem.observe.journal.pseudonyms import SessionNames, TenantNames
from tandem.observe.journal.recorder import Recorder
from tandem.observe.journal.records import Lost, Submitted, Turn
from tandem.observe.journal.replay import ReplayedHashes, compare
from tests import waiting
from tests.cluster.ledger_engine import VOCABULARY
from tests.live.ends import PATIENCE_S
from tests.live.toy_cluster import BLOCK_SIZE, ToyWorker, gateway_config, serving, until, working
from tests.observe.metrics_text import text_of
from tests.observe.test_journal_files import HEAD


class GatedFiles(JournalFiles):
    """A disk that takes nothing before `gate` opens, and fails while `broken`."""

    def __init__(self, folder, head=HEAD, limits=None) -> None:
        super().__init__(folder, head, limits or FileLimits())
        self.gate = Event()
        self.entered = Event()
        self.broken = False

    def append(self, records, turns, members, configured=None) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if self.broken:
            raise OSError(28, "No space left on device")
        super().append(records, turns, members, configured)


def recorder() -> Recorder:
    return Recorder(BLOCK_SIZE, TenantNames(), SessionNames(b"key"))


def record_turns(journal: Journal, first: int, count: int) -> None:
    for at_ns in range(first, first + count):
        journal.record(at_ns, [TimePassed()], [])


def test_a_slow_disk_loses_turns_and_keeps_nobody_waiting(tmp_path):
    files = GatedFiles(tmp_path)
    journal = Journal(recorder(), files, JournalLimits(queued_bytes=1000, flush_s=0.01))
    journal.start()
    record_turns(journal, 0, 1)
    assert files.entered.wait(PATIENCE_S)
    record_turns(journal, 1, 5000)
    files.gate.set()
    waiting.until(lambda: journal.lost_turns)
    lost = journal.lost_turns
    record_turns(journal, 5001, 2)
    journal.stop_recording()
    records = list(open_journal(tmp_path).records())
    assert [each.at_ns for each in records if isinstance(each, Turn)][-2:] == [5001, 5002]
    (gap,) = [each for each in records if isinstance(each, Lost)]
    assert gap.turns == lost
    assert len(records) - 1 + lost == 5003


def test_a_full_disk_loses_turns_and_is_tried_again(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    files = GatedFiles(tmp_path)
    files.gate.set()
    journal = Journal(recorder(), files, JournalLimits(flush_s=0.01))
    journal.start()
    record_turns(journal, 0, 3)
    assert files.entered.wait(PATIENCE_S)
    files.broken = True
    record_turns(journal, 3, 4)
    waiting.until(lambda: journal.lost_turns == 4)
    files.broken = False
    record_turns(journal, 7, 2)
    journal.stop_recording()
    records = list(open_journal(tmp_path).records())
    assert [each for each in records if isinstance(each, Lost)] == [Lost(4)]
    assert [each.at_ns for each in records if isinstance(each, Turn)] == [0, 1, 2, 7, 8]
    logged = [record.getMessage() for record in caplog.records]
    assert sum("No space left" in each for each in logged) == 1
    assert any("misses 4 turns" in each for each in logged)


def test_a_failed_thread_ends_the_journal_and_nothing_else(tmp_path, caplog):
    files = GatedFiles(tmp_path)
    files.gate.set()
    files.append = None
    journal = Journal(recorder(), files, JournalLimits(flush_s=0.01))
    journal.start()
    record_turns(journal, 0, 1)
    waiting.until(lambda: "the journal ends here" in caplog.text)
    record_turns(journal, 1, 10)
    journal.stop_recording()
    assert journal.lost_turns >= 10
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_a_metric():
    metrics = GatewayMetrics("toy")
    empty = ClusterStatus("g0", 0.0, (), 0, 0, 0, 0, ())
    for turns in (3, 5):
        text = text_of(metrics.families(empty, turns))
        assert f'tandem:journal_lost_turns_total{{model_name="toy"}} {turns}.0' in text


async def test_what_a_gateway_recorded_plays_again(tmp_path):
    """Real sockets, workers that run the ledger, clients that leave and come."""
    recorded = recorder()
    config = gateway_config()
    config = replace(config, router=replace(config.router, hashes=recorded.hashes))
    journal = Journal(recorded, JournalFiles(tmp_path, HEAD, FileLimits()))
    card = ModelCard(("toy",), 10_000, VOCABULARY, (), 0)
    machine = GatewayMachine(config)
    gateway = Gateway(card, machine, GatewayTerms("i", pin_sessions_s=5.0), journal)

    async def ask(number: int, tokens: int) -> None:
        sampling = SamplingParameters(max_tokens=tokens)
        request = Request(f"r{number}", tuple(at % 3 for at in range(10 + number)), sampling)
        async for _ in gateway.generate(request, Caller(session=f"chat-{number % 3}")):
            if tokens > 100:
                break

    ledgers: dict = {}
    workers = [ToyWorker("p", Role.PREFILL, ledgers), ToyWorker("d", Role.DECODE, ledgers)]
    async with serving(gateway) as endpoint, working(*workers, at=endpoint):
        await until(lambda: gateway.ready)
        await asyncio.gather(*(ask(number, 8 + number) for number in range(6)), ask(6, 150))
    run = open_journal(tmp_path)
    records = list(run.records())
    submitted = [e for turn in records for e in turn.events if isinstance(e, Submitted)]
    assert len(submitted) == 7
    assert not any("chat" in each.session for each in submitted)
    hashes = ReplayedHashes(BLOCK_SIZE)
    fresh = gateway_config()
    fresh = GatewayMachine(replace(fresh, router=replace(fresh.router, hashes=hashes)))
    done = compare(records, fresh, hashes, None)
    assert done.difference is None
    assert done.requests == 7
    assert done.decisions > 50
