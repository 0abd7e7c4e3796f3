"""Four chats at once that share a system prompt of 1,000 tokens, cold at first: `tandem serve` over
HTTP beside OpenVINO GenAI and llama.cpp in process, which are spared HTTP, in turns in one run.
Each keeps the KV of what it has computed: llama.cpp by sequence, as its server does.

Usage: python bench/peer_sessions.py [--kinds 16-bit,8-bit,4-bit] [--rounds 3] [--threads 2]
"""

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from peers import KINDS, OURS, OVER_HTTP, Peer, Running, compare_kinds, running

SESSIONS, TURNS = 4, 3
SYSTEM_TOKENS, USER_TOKENS, ANSWER_TOKENS = 1000, 30, 32
GOAL = 1.2


@dataclass
class Sessions:
    """What one peer makes of them, round by round: of each turn the TTFT in seconds, the median of
    the sessions, and of all turns the tokens a second."""

    running: Running
    ttft_s: list[list[float]] = field(default_factory=lambda: [[] for _ in range(TURNS)])
    rates: list[float] = field(default_factory=list)

    def run(self, number: int) -> None:
        """The first round warms up; each has a system prompt of its own."""
        shared = _tokens(5, number, SYSTEM_TOKENS)
        chats = [shared + _tokens(11, session, USER_TOKENS) for session in range(SESSIONS)]
        seconds = 0.0
        for turn in range(TURNS):
            answer = self.running.ask({"prompts": chats, "answers": [ANSWER_TOKENS] * SESSIONS})
            seconds += answer["seconds"]
            if number:
                self.ttft_s[turn].append(statistics.median(answer["first_instants"]))
            chats = [
                chat + said + _tokens(13 + turn, session, USER_TOKENS)
                for session, (chat, said) in enumerate(zip(chats, answer["said"], strict=True))
            ]
        if number:
            self.rates.append(SESSIONS * TURNS * ANSWER_TOKENS / seconds)


def _tokens(salt: int, number: int, count: int) -> list[int]:
    """Of every vocabulary."""
    return [(31 * number + 17 * salt + 7 * salt * place) % 5000 + 1 for place in range(count)]


def compare(kind: str, checkpoints: Path, rounds: int, threads: int) -> Table:
    contestants = [peer for peer in KINDS[kind] if peer.program != "transformers"]
    with ExitStack() as stack:
        peers: list[Sessions] = []
        for peer in contestants:
            checkpoint = checkpoints / (f"{peer.gguf}.gguf" if peer.gguf else "folder")
            asked = Peer(OVER_HTTP, peer.kind) if peer.program == OURS else peer
            process = running(asked, checkpoint, threads, "--prefix-caching")
            peers.append(Sessions(stack.enter_context(process)))
        for number in range(1 + rounds):
            for each in peers:
                each.run(number)
    table = Table(title=f"{kind}: medians (least to most)", title_justify="left")
    table.add_column("")
    for each in peers:
        table.add_column(each.running.peer.name, justify="right")
    for column in ("times the best", "goal"):
        table.add_column(column, justify="right")
    for turn in range(TURNS):
        found = [each.ttft_s[turn] for each in peers]
        best = min(map(statistics.median, found[1:]))
        _add(table, f"TTFT of turn {turn + 1}, s", found, best / statistics.median(found[0]))
    rates = [each.rates for each in peers]
    best = max(map(statistics.median, rates[1:]))
    _add(table, "tokens a second", rates, statistics.median(rates[0]) / best)
    return table


def _add(table: Table, name: str, found: list[list[float]], ratio: float) -> None:
    cells = [f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})" for each in found]
    table.add_row(name, *cells, f"{ratio:.2f}", f"{GOAL:.1f}")


if __name__ == "__main__":
    compare_kinds(__doc__, compare)
