"""What a gateway's journal costs: processor time for each token with and without, in turns and in
one run, its bytes for a request and a token, and how fast it plays.

python bench/journal.py [--rounds 5] [--streams 64] [--seconds 2] [--pace-ms 20]

Tokens are streamed as in `gateway.py`, inside one process. What a request costs is measured on the
pure machine: prompts of several blocks, answers of a hundred tokens.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from figures import Figure, show, write
from gateway import inside, setup_in
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.config.cluster.requests import JournalConfig
from tandem.facts.blocks import BlockChanges, CacheRoot, extend_chain
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import KvExport, KvGeometry
from tandem.facts.request import FinishReason, Request
from tandem.facts.sampling import SamplingParameters
from tandem.live.processes.gateway import assemble_gateway
from tandem.live.processes.journal import recorded_machine
from tandem.messages.cluster import PROTOCOL, Register
from tandem.messages.gateway import GatewayEffect, GatewayEvent, MessageFromWorker
from tandem.messages.router import BlocksReported, RequestSubmitted, TokensReported
from tandem.messages.worker import EmitTokens
from tandem.observe.journal.files import open_journal
from tandem.observe.journal.replay import compare

REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS, TOGETHER = 400, 1024, 100, 20
FILE_BYTES = 64 << 20
ROOT = CacheRoot("model", "arithmetic", b"layout")


def journal_in(folder: Path) -> JournalConfig:
    return JournalConfig(str(folder / "journal"), float(FILE_BYTES))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "journal").iterdir())


def streamed(rounds: int, streams: int, seconds: float, step_s: float) -> list[Figure]:
    """Microseconds of processor time a token, the one way and the other by turns."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(rounds):
            for recorded in (False, True):
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    journal = journal_in(folder) if recorded else None
                    figures = runner.run(inside(folder, streams, seconds, step_s, journal))
                    spent[recorded].append(figures[0].value)
    without, with_journal = (statistics.median(spent[each]) for each in (False, True))
    pace = "paced" if step_s else "fast"
    ratios = [one / other for one, other in zip(spent[True], spent[False], strict=True)]
    return [
        Figure(f"{pace}: a token without a journal", without, "us", higher_is_better=False),
        Figure(f"{pace}: a token with one", with_journal, "us", higher_is_better=False),
        Figure(
            f"{pace}: times as much",
            statistics.median(ratios),
            "",
            spread=statistics.pstdev(ratios),
            goal="<= 1.05",
            higher_is_better=False,
        ),
    ]


def events_of_requests() -> list[list[GatewayEvent]]:
    """A worker joins; so many requests at a time arrive, their blocks are told, and they end."""
    geometry = KvGeometry(1, 1, 1, 16, "float32")
    export = KvExport("tandem-mini", "main", geometry, 1 << 20, (), identity=ROOT.identity)
    register = Register(
        PROTOCOL, "0", "both-0", "a", "both", Role.BOTH, True, ROOT, export, 4096, 1 << 20
    )
    turns: list[list[GatewayEvent]] = [[MessageFromWorker("w", register)]]
    for first in range(0, REQUESTS, TOGETHER):
        numbers = range(first, first + TOGETHER)
        names = tuple(f"g0.1-1/cmpl-{number:024x}-0" for number in numbers)
        stored: list[bytes] = []
        parents: list[bytes] = []
        for number, name in zip(numbers, names, strict=True):
            prompt = tuple(range(number, number + PROMPT_TOKENS))
            sampling = SamplingParameters(max_tokens=ANSWER_TOKENS)
            turns.append([RequestSubmitted(Request(name, prompt, sampling), 100.0)])
            chain: list[bytes] = []
            root = ROOT.hash(Request(name, prompt).salt)
            extend_chain(chain, root, prompt, 16)
            stored += chain
            parents += [root, *chain[:-1]]
        changes = BlockChanges(first // TOGETHER, (), tuple(stored), tuple(parents))
        turns.append([MessageFromWorker("w", BlocksReported("both-0", Tier.DEVICE, changes))])
        for token in range(ANSWER_TOKENS):
            reason = FinishReason.LENGTH if token == ANSWER_TOKENS - 1 else None
            emission = EmitTokens(
                names,
                (7,) * TOGETHER,
                (reason,) * TOGETHER,
                (False,) * TOGETHER,
                (0,) * TOGETHER,
            )
            turns.append([MessageFromWorker("w", TokensReported("both-0", emission))])
    return turns


def requests_recorded() -> list[Figure]:
    """Through the pure machine: what it decides, what is recorded of it, and how it plays."""
    turns = events_of_requests()
    tokens = REQUESTS * ANSWER_TOKENS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain_s = _driven(GatewayMachine(assemble_gateway(setup_in(folder, "g0")).config), turns)
        assembled = assemble_gateway(setup_in(folder, "g0", journal=journal_in(folder)))
        machine, journal = GatewayMachine(assembled.config), assembled.journal
        assert journal is not None
        journal.start()
        recorded_s = _driven(machine, turns, journal.record)
        journal.stop_recording()
        written = size_of(folder)
        run = open_journal(folder / "journal")
        copies = folder / "files"
        copies.mkdir()
        begin_s = time.perf_counter()
        done = compare(run.records(), *recorded_machine(run.head, copies))
        played_s = time.perf_counter() - begin_s
    assert done.difference is None, done.difference
    assert done.requests == REQUESTS
    blocks = PROMPT_TOKENS // 16
    return [
        Figure("machine: a turn", plain_s / len(turns) * 1e6, "us", higher_is_better=False),
        Figure(
            "machine and journal: a turn",
            recorded_s / len(turns) * 1e6,
            "us",
            higher_is_better=False,
        ),
        Figure(
            f"a request of {blocks} blocks and {ANSWER_TOKENS} tokens",
            written / REQUESTS,
            "bytes",
            higher_is_better=False,
        ),
        Figure("of these but for hashes: a token", _beside_hashes(written, blocks), "bytes"),
        Figure("replay", tokens / played_s, "token/s"),
    ]


def _beside_hashes(written: int, blocks: int) -> float:
    return max(0.0, written - REQUESTS * blocks * 16) / (REQUESTS * ANSWER_TOKENS)


Record = Callable[[int, list[GatewayEvent], list[GatewayEffect]], object]


def _driven(
    machine: GatewayMachine, turns: list[list[GatewayEvent]], record: Record | None = None
) -> float:
    """Processor seconds of this thread and all others."""
    begin_s = time.process_time()
    for at_ns, events in enumerate(turns):
        effects = machine.handle_together(events, at_ns * 1000)
        if record is not None:
            record(at_ns * 1000, events, effects)
    return time.process_time() - begin_s


def main(
    rounds: Annotated[int, typer.Option(help="How often each way is measured.")] = 5,
    streams: Annotated[int, typer.Option(help="Clients that stream at a time.")] = 64,
    seconds: Annotated[float, typer.Option(help="How long each is measured.")] = 2.0,
    pace_ms: Annotated[float, typer.Option(help="Between two paced steps.")] = 20.0,
    output: Annotated[Path, typer.Option(help="JSON of the figures.")] = Path(
        "results/journal.json"
    ),
) -> None:
    """Measure and print; the machine should have nothing else to do."""
    figures = requests_recorded()
    for step_s in (0.0, pace_ms / 1e3):
        figures += streamed(rounds, streams, seconds, step_s)
    show(figures, "Journal")
    write(figures, output)


if __name__ == "__main__":
    typer.run(main)
