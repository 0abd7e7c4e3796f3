"""`tandem replay` on journals of a machine that no process runs: equal, different, and what would
have happened instead."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import Result

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.config.cluster.file import read_cluster
from tandem.config.cluster.requests import JournalConfig
from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, KvGeometry
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.processes.gateway import assemble_gateway
from tandem.messages.cluster import PROTOCOL, Register
from tandem.messages.gateway import GatewayEvent, MessageFromWorker
from tandem.messages.router import RequestSubmitted, TokensReported
from tandem.messages.worker import EmitTokens
from tandem.observe.journal.files import FileLimits, JournalFiles, open_journal
from tandem.observe.journal.records import Turn, encode
from tests.commands.cli import tandem
from tests.live.test_gateway_process import setup_in

S = 1_000_000_000
MS = 1_000_000
ROOT = CacheRoot("model", "exact", b"layout")
EXPORT = KvExport(
    "tandem-mini", "main", KvGeometry(1, 1, 1, 16, "float32"), 512, (), identity=ROOT.identity
)
CLUSTER = """
model: tandem-mini
block_size: 16
policies: {dispatch: local}
pools:
  - {name: both, role: both, count: 1, device: cpu}
"""
REQUESTS, TOKENS = 12, 5


def greeting(worker: str) -> MessageFromWorker:
    register = Register(PROTOCOL, "0", worker, "a", "both", Role.BOTH, True, ROOT, EXPORT, 64, 4096)
    return MessageFromWorker(f"{worker}/a", register)


def events() -> list[tuple[int, list[GatewayEvent]]]:
    """Two workers, of which each request is at that one which its number says."""
    told: list[tuple[int, list[GatewayEvent]]] = [(S, [greeting("w0"), greeting("w1")])]
    for number in range(REQUESTS):
        at_ns = 2 * S + number * 50 * MS
        prompt = tuple(100 * (number % 3) + place for place in range(64))
        sampling = SamplingParameters(max_tokens=TOKENS)
        request = Request(f"g0.1/r{number}", prompt, sampling)
        told.append((at_ns, [RequestSubmitted(request, 9.0, session=f"chat {number % 3}")]))
        for token in range(TOKENS):
            reason = FinishReason.LENGTH if token == TOKENS - 1 else None
            emission = EmitTokens((request.request_id,), (7,), (reason,), (False,), (0,))
            worker = f"w{number % 2}"
            said = MessageFromWorker(f"{worker}/a", TokensReported(worker, emission))
            told.append((at_ns + (5 + token) * MS, [said]))
    return told


@pytest.fixture
def journal(tmp_path) -> Path:
    """In several files."""
    return record(tmp_path)


def record(folder: Path, name: str = "journal", gateway: str = "g0") -> Path:
    setup = setup_in(folder, gateway)
    (folder / "cluster.yaml").write_text(CLUSTER)
    cluster = replace(
        read_cluster(str(folder / "cluster.yaml")),
        journal=JournalConfig(str(folder / name), 2500, 100),
    )
    assembled = assemble_gateway(msgspec.structs.replace(setup, cluster=cluster))
    machine, written = GatewayMachine(assembled.config), assembled.journal
    assert written is not None
    for at_ns, happened in events():
        written.record(at_ns, happened, machine.handle_together(happened, at_ns))
        # A chunk each, so that there are several files.
        written._write_waiting()
    written._files.end_file()
    return folder / name


def replay(*words: object) -> Result:
    return tandem("replay", *words)


def test_the_same_policies_decide_the_same(journal):
    done = replay(journal)
    assert done.exit_code == 0, done.output
    assert f"{REQUESTS} requests (0 rejected)" in done.output
    assert "decisions, all equal" in done.output
    assert replay(next(journal.iterdir())).output == done.output


def test_the_first_difference_is_told_from_both_sides(journal):
    run = open_journal(journal)
    turns = [each for each in run.records() if isinstance(each, Turn)]
    # As if another worker had been chosen for the fifth request.
    submits = [place for place, turn in enumerate(turns) if "Arrived" in str(turn.decisions)]
    place = submits[4]
    arrived = next(each for each in turns[place].decisions if "Arrived" in str(each))
    other = arrived.replace("w0/", "w9/").replace("w1/", "w9/")
    decisions = tuple(other if each == arrived else each for each in turns[place].decisions)
    turns[place] = Turn(turns[place].at_ns, turns[place].events, turns[place].hashed, decisions)
    folder = journal.parent / "changed"
    files = JournalFiles(folder, run.head, FileLimits())
    files.append([encode(turn) for turn in turns], len(turns), ())
    files.end_file()
    done = replay(folder)
    assert done.exit_code == 1, done.output
    assert f"recorded: {other}" in done.output
    assert f"replayed: {arrived}" in done.output
    assert "routing of 4: prefill on" in done.output
    assert "prefill w0 ttft_s" in done.output
    assert "prefill w1 ttft_s" in done.output


def test_other_policies_are_simulated_beside_the_recorded_run(journal, tmp_path):
    report = tmp_path / "report.json"
    done = replay(
        *(journal, "--routing", "round-robin,cost", "--admission", "threshold", "--json", report),
        *("--records", tmp_path / "records.jsonl", "--slo", "ttft=1s"),
    )
    assert done.exit_code == 0, done.output
    assert "recorded" in done.output
    told = json.loads(report.read_text())
    labels = [run["label"] for run in told["runs"]]
    assert labels == ["recorded", "cost none", "round-robin threshold", "cost threshold"]
    recorded, simulated = (run["summary"] for run in told["runs"][:2])
    for summary in (recorded, simulated):
        assert summary["endings"] == {"finished": REQUESTS}
        assert summary["output_tokens"] == REQUESTS * TOKENS
    assert recorded["latencies"]["ttft"]["p50_s"] == 0.005
    assert recorded["latencies"]["tpot"]["p50_s"] == 0.001
    assert simulated["latencies"]["ttft"]["p50_s"] != 0.005
    # As many workers as there were, with their blocks.
    assert "2 both both" in told["runs"][1]["settings"]["pools"]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) >= 4 * REQUESTS


def test_all_gateways_of_a_folder_are_simulated_together(journal, tmp_path):
    record(tmp_path, gateway="g1")
    figures = tmp_path / "figures.json"
    options = ("--routing", "round-robin", "--json", figures, "--no-progress")
    done = replay(journal, *options)
    assert done.exit_code == 0, done.output
    assert "not played" not in done.output
    assert f"{2 * REQUESTS} requests" in done.output
    runs = json.loads(figures.read_text())["runs"]
    assert {run["summary"]["requests"] for run in runs} == {2 * REQUESTS}
    # Their decisions are compared one by one, and a file is that of one.
    assert "not played: g" in replay(journal).output
    file = next(journal.glob("g0.*"))
    done = replay(file, *options)
    assert f"g0.{file.name.split('.')[1]}" in done.output
    assert f" {REQUESTS} requests" in done.output
    assert "not played: g1" in done.output


def test_settings_change_the_cluster(journal, tmp_path):
    report = tmp_path / "report.json"
    done = replay(journal, "--set", "pools.both.count=5", "--json", report)
    assert done.exit_code == 0, done.output
    runs = json.loads(report.read_text())["runs"]
    assert [run["settings"]["pools"].split()[0] for run in runs] == ["2", "2", "5"]


def test_only_the_last_requests_are_played_and_the_unchanged_cluster_stands_beside(
    journal, tmp_path
):
    figures = tmp_path / "figures.json"
    played = replay(
        journal, "--last", "0.3", "--set", "pools.both.count=3", "--json", figures, "--no-progress"
    )
    assert played.exit_code == 0, played.output
    runs = json.loads(figures.read_text())["runs"]
    assert [run["label"] for run in runs] == ["recorded", "unchanged", "cost"]
    counts = {run["summary"]["requests"] for run in runs}
    assert len(counts) == 1
    assert 4 <= counts.pop() <= 7
    assert [run["settings"]["pools"].split()[0] for run in runs] == ["2", "2", "3"]
    # What the workers did before does not count.
    recorded = runs[0]["summary"]
    (pool,) = recorded["pools"]
    assert pool["decoded_tokens"] == recorded["output_tokens"]
    assert pool["up_s"] == pytest.approx(2 * 0.3)


def test_without_its_beginning_it_can_only_be_simulated(journal, tmp_path):
    oldest = min(journal.iterdir())
    oldest.unlink()
    done = replay(journal)
    assert done.exit_code == 2
    assert "first files are gone" in done.output
    done = replay(journal, "--routing", "round-robin")
    assert done.exit_code == 0, done.output
    assert "the first files of a run are gone" in done.output


def test_mistakes_are_told_in_a_line(journal, tmp_path):
    for words, problem in (
        ((tmp_path / "nowhere",), "there is no journal"),
        ((journal, "--routing", "prefx"), "--routing: unknown prefx"),
        ((journal, "--admission", "all,nothing"), "--admission: unknown all"),
        ((journal, "--planning", "tandem"), "give pools these roles"),
        ((journal, "--plot", "x.doc"), "--plot must end in"),
    ):
        done = replay(*words)
        assert done.exit_code == 2, done.output
        assert problem in done.output.replace("\n", " ")


def test_a_folder_that_cannot_be_is_told_before_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfiguration, match=r"journal\.directory: cannot make"):
        record(tmp_path, "file/journal")


def test_a_journal_is_a_trace(journal):
    simulated = tandem("simulate", "mooncake-16", "--trace", journal)
    assert simulated.exit_code == 0, simulated.output
    assert f"{REQUESTS}  {REQUESTS} finished" in simulated.output
    assert "arrivals as recorded" in simulated.output
    hits = tandem("hits", journal)
    assert hits.exit_code == 0, hits.output
    assert f"{REQUESTS} requests, {REQUESTS * 64} prompt tokens" in hits.output
