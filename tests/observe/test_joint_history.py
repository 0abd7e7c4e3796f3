"""Journals of several gateways in one folder are one history: of one cluster, at one time."""

from pathlib import Path

from msgspec.structs import replace

from tandem.facts.blocks import CacheRoot
from tandem.facts.rate_limits import background_account
from tandem.observe.journal.files import FileLimits, JournalFiles, open_journal
from tandem.observe.journal.history import History, trace_rows
from tandem.observe.journal.joint_history import joint_history
from tandem.observe.journal.records import Hashed, Submitted, Turn, encode
from tests.observe.test_journal_files import HEAD
from tests.observe.test_journal_history import A, B, C, S, drew, register, said, submitted

# The unix second at which the clock of the first gateway's machine was 0.
BOOTED_S = 1_000_000


def write(folder: Path, gateway: str, incarnation: str, *turns, booted_s: int = BOOTED_S, **head):
    """Of (instant in seconds, events, hashes), by a clock that began then."""
    started_s = turns[0][0]
    found = replace(
        HEAD,
        gateway=gateway,
        incarnation=incarnation,
        started_ns=started_s * S,
        wall_clock_s=booted_s + started_s,
        **head,
    )
    made = [
        Turn(round(at_s * S), tuple(events), tuple(hashed[0] if hashed else ()), ())
        for at_s, events, *hashed in turns
    ]
    files = JournalFiles(folder, found, FileLimits())
    files.append([encode(turn) for turn in made], len(made), ())
    files.end_file()


def asked(name: int, tenant: str, session: str = "") -> Submitted:
    return replace(submitted(name, session=session), tenant=tenant)


def joined(folder: Path, *tenants: str) -> tuple[History, list[str]]:
    history, others = joint_history(open_journal(folder), tenants)
    return history, [other.name for other in others]


def test_requests_of_all_gateways_are_one_load(tmp_path):
    """The second gateway is on another machine, which was booted 90 seconds later."""
    write(
        tmp_path,
        "gateway-0",
        "65f1-0",
        (100, [said(register("w0", "p"))]),
        (110, [asked(0, "gold")], [Hashed(0, 0, A + B)]),
        (111, [drew("w0", 0)]),
        (130, [drew("w0", 0, ends=True), asked(1, "")]),
    )
    write(
        tmp_path,
        "gateway-1",
        "65f0-0",
        (10, [said(register("w0", "p")), said(register("w1", "p"))]),
        (15, [asked(0, "gold", "s")], [Hashed(0, 0, A + C)]),
        (16, [drew("w1", 0), drew("w0", 0, ends=True)]),
        (30, [asked(1, "8"), asked(2, background_account("8"))]),
        booted_s=BOOTED_S + 90,
    )
    history, others = joined(tmp_path, "gold")
    assert others == ["gateway-1.65f0-0"]
    rows = trace_rows(history)
    assert [row.arrival_s for row in rows] == [0, 5, 15, 15, 25]
    assert [row.tenant for row in rows] == ["gold", "gold", "8.1", background_account("8.1"), ""]
    assert [row.block_ids for row in rows[:2]] == [(0, 1), (0, 2)]
    assert [request.submitted.name for request in history.requests.values()] == [0, 1, 2, 3, 4]
    first = next(iter(history.requests.values()))
    assert (first.first_token_ns, first.end_ns) == (106 * S, 106 * S)
    assert {name: worker.up_ns // S for name, worker in history.workers.items()} == {
        "w0": 20,
        "w1": 15,
    }
    history.keep_last(10)
    assert len(trace_rows(history)) == 3


def test_only_the_newest_run_of_a_gateway_and_only_who_was_there_meanwhile(tmp_path):
    write(tmp_path, "gateway-0", "65f4-0", (100, [asked(0, "")]), (110, [asked(1, "")]))
    # Its start before, one that had ended, one of another model, and one that nobody can read.
    write(tmp_path, "gateway-0", "65f0-0", (101, [asked(0, "")]))
    write(tmp_path, "gateway-1", "65f1-0", (101, [asked(0, "")]))
    write(tmp_path, "gateway-1", "65f2-0", (90, [asked(0, "")]), (99, []))
    root = CacheRoot("another", "exact", b"layout")
    write(tmp_path, "gateway-2", "65f3-0", (101, [asked(0, "")]), root=root)
    (tmp_path / "gateway-3.65f3-0.000000.journal").write_bytes(b"TANDEMJ1")
    history, others = joined(tmp_path)
    assert others == []
    assert len(history.requests) == 2
    # Alive at the same time: of what came to it before, nothing is known of the other.
    write(tmp_path, "gateway-1", "65f3-0", (90, [asked(0, "")]), (105, [asked(1, "")]))
    history, others = joined(tmp_path)
    assert others == ["gateway-1.65f3-0"]
    assert [row.arrival_s for row in trace_rows(history)] == [0, 5, 10]


def test_the_load_begins_with_the_first_request_of_any_gateway(tmp_path):
    write(tmp_path, "gateway-0", "65f2-0", (100, []), (130, []))
    write(tmp_path, "gateway-1", "65f0-0", (100, [asked(0, "")]))
    write(tmp_path, "gateway-2", "65f1-0", (100, []), (110, [asked(0, "")]))
    history, _ = joined(tmp_path)
    assert [row.arrival_s for row in trace_rows(history)] == [0, 10]
    assert history.seconds == 30


def test_clocks_of_one_machine_are_one_though_heads_know_only_their_second(tmp_path):
    write(tmp_path, "gateway-0", "65f1-0", (100, [asked(0, "")]))
    write(tmp_path, "gateway-1", "65f0-0", (100, [asked(0, "")]), booted_s=BOOTED_S + 1)
    history, others = joined(tmp_path)
    assert len(others) == 1
    assert [row.arrival_s for row in trace_rows(history)] == [0, 0]
