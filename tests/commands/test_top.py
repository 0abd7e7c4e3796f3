"""`tandem top`: everything that an overview says, in 80 columns."""

import msgspec
from rich.console import Console

from tandem.commands.top_screen import spark_line, top_screen
from tandem.facts.overview import (
    ClusterEvent,
    Overview,
    Percentiles,
    PlannerOverview,
    QueueOverview,
    TimeBin,
    WorkerOverview,
)


def worker(name: str, role: str, tokens: int, used: int = 30) -> WorkerOverview:
    return WorkerOverview(
        worker=name,
        role=role,
        state="draining" if name == "decode-1" else "ready",
        running=3,
        waiting=1,
        used_blocks=used,
        total_blocks=100,
        block_size=16,
        output_tokens=tokens,
    )


def time_bin(number: int) -> TimeBin:
    half = Percentiles(4, 0.5, 0.6, 0.7)
    return TimeBin(number, 4, 3, 0, {"admission": 1}, 100, 25, 500, half, half, None)


def overview(up_s: float = 100.0, tokens: int = 1000) -> Overview:
    return Overview(
        server="gateway-0",
        model="a-model-with-a-long-name",
        up_s=up_s,
        workers=tuple(
            worker(f"{role}-{number}", role, tokens)
            for role in ("prefill", "decode")
            for number in range(2)
        ),
        tiers=(),
        queues=(QueueOverview("premium", "acme", 2, 5),),
        slos=(),
        bin_s=5.0,
        current_bin=100,
        bins=tuple(time_bin(number) for number in range(80, 101)),
        waiting=2,
        running=5,
        finished=80,
        takeovers=1,
        events=(ClusterEvent(3.0, "lost", "decode-1 is gone: it ended"),),
        planner=PlannerOverview(
            "tandem",
            "automatic",
            "nothing to do",
            (ClusterEvent(9.0, "flip", "decode: p becomes d"),),
        ),
    )


def shown(seen: Overview, before: Overview | None = None) -> str:
    console = Console(width=80, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(top_screen(seen, before))
    return capture.get()


def test_a_gateway_that_did_not_answer_is_named_and_rates_wait_for_it():
    whole = overview()
    part = msgspec.structs.replace(overview(102.0, 1500), server="gateway-1", silent=("gateway-0",))
    text = shown(part, whole)
    assert "gateway-0 did not answer" in text
    rates = [line.split()[5] for line in text.splitlines() if line.startswith("prefill-0")]
    assert rates == ["-"]


def test_everything_is_there_and_fits():
    text = shown(overview(102.0, 1500), overview())
    assert max(map(len, text.splitlines())) <= 80
    for told in (
        "5 running, 2 waiting",
        # Twelve bins of the last minute, of which 3 of 5 requests kept their SLO.
        "goodput 0.60/s (60%)",
        "hits 25%",
        "1 taken over",
        "premium acme: 5 running, 2 waiting",
        "rejected in the last quarter of an hour: 21 by admission",
        "planned 9 s ago: decode: p becomes d",
        "3 s ago: decode-1 is gone: it ended",
    ):
        assert told in text, told
    rows = [line.split() for line in text.splitlines() if line.startswith("decode-1")]
    # 500 tokens within two seconds.
    assert rows == [["decode-1", "decode", "draining", "3", "1", "250", "████░░░░░░░░", "30%"]]


def test_rates_need_two_looks():
    (row,) = [line for line in shown(overview()).splitlines() if line.startswith("prefill-0")]
    assert row.split()[5] == "-"


def test_a_spark_line_is_as_high_as_the_highest_and_blank_where_nothing_is():
    assert spark_line([0.0, None, 4.0, 8.0]) == "  ▄█"
    assert spark_line([None, None]) == "  "
