"""Requests drawn from rates: as many, as irregular and as long as recorded, the same every time."""

import io
import json
import math
import tarfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import pytest

from tandem.bench.traces.rates import GapLaw, RateDraw, RateWindow, draw_instants
from tandem.bench.traces.reader import read_trace
from tandem.bench.traces.servegen import read_clients
from tandem.facts.errors import InvalidConfiguration

ARCHIVE = Path(__file__).parents[2] / "twin/data/servegen_excerpt.tar.xz"
PAIRS = np.array([[10, 1], [20, 2], [30, 3]])
RATES = "workload,window_start_s,rate_rps\na,0,2.0\na,600,0\na,1200,0.5\nb,0,9\n"


@pytest.mark.parametrize(
    ("family", "shape", "variation"),
    [
        ("", 0.0, 1.0),
        ("Gamma", 0.2, math.sqrt(1 / 0.2)),
        ("Gamma", 4.0, 0.5),
        ("Weibull", 2.0, math.sqrt(math.gamma(2.0) / math.gamma(1.5) ** 2 - 1)),
        ("Weibull", 0.7, math.sqrt(math.gamma(1 + 2 / 0.7) / math.gamma(1 + 1 / 0.7) ** 2 - 1)),
    ],
)
def test_gaps_have_mean_one_and_the_variation_of_their_law(family, shape, variation):
    law, rng = GapLaw(family, shape), np.random.default_rng(1)
    gaps = [law.gap(rng) for _ in range(20_000)]
    assert mean(gaps) == pytest.approx(1.0, abs=0.04)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(variation, rel=0.06)
    assert min(gaps) >= 0
    # The mean rest of a gap that an instant falls into, from renewal theory.
    rests = [law.rest(rng) for _ in range(20_000)]
    assert mean(rests) == pytest.approx((1 + variation**2) / 2, rel=0.06)


@pytest.mark.parametrize("shape", [0.3, 1.0, 3.0])
def test_every_window_gets_its_recorded_number_of_requests(shape):
    rates = [3.0, 0.0, 0.01, 12.0]
    windows = [
        RateWindow("w", 600.0 * place, rate, "Gamma", shape) for place, rate in enumerate(rates)
    ]
    counts = Counter()
    for seed in range(8):
        rng = np.random.default_rng(seed)
        instants_s = list(draw_instants(windows, RateDraw(seconds=2400.0), rng))
        assert all(earlier <= later for earlier, later in pairwise(instants_s))
        counts.update(int(instant_s // 600) for instant_s in instants_s)
    assert counts[1] == 0
    for place in (0, 2, 3):
        expected = rates[place] * 600
        spread = math.sqrt(expected / shape / 8)
        assert counts[place] / 8 == pytest.approx(expected, abs=4 * spread)


def test_slow_clients_are_neither_lost_nor_multiplied():
    """1,500 windows with one request in three of them, in bunches."""
    windows = [RateWindow("w", 600.0 * n, 1 / 1800, "Weibull", 0.6) for n in range(1500)]
    draw = RateDraw(first_s=300.0, seconds=600.0 * 1499)
    count = len(list(draw_instants(windows, draw, np.random.default_rng(2))))
    assert count == pytest.approx(500, abs=4 * math.sqrt(500) * 1.76)


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.2), ("Weibull", 0.6), ("", 0.0)])
def test_a_slice_begins_anywhere_in_a_gap(family, shape):
    """A bunchy law that began with a whole gap would give twice as many as recorded."""
    window, rng = RateWindow("w", 0.0, 2 / 600, family, shape), np.random.default_rng(5)
    counts = [len(list(draw_instants([window], RateDraw(), rng))) for _ in range(4000)]
    assert mean(counts) == pytest.approx(2.0, abs=4 * pstdev(counts) / math.sqrt(4000))


def archive(folder, files):
    path = folder / "clients.tar.xz"
    with tarfile.open(path, "w:xz") as made:
        for name, text in files.items():
            member = tarfile.TarInfo(f"data/kind/work/chunk-7-{name}")
            member.size = len(text)
            made.addfile(member, io.BytesIO(text.encode()))
    return path


def test_lengths_are_those_of_their_hours_and_add_up(tmp_path):
    windows = "".join(f"{600 * n},0.1,1.0,Gamma,1.0,10.0\n" for n in range(100))
    spans = {
        "0": {"text_tokens": "{10: 1.0}", "image_tokens": "{100: 1.0}", "output_tokens": "{1: 1}"},
        "21600": {"text_tokens": "{20: .5}", "image_tokens": "{}", "output_tokens": "{2: 0.5}"},
        "43200": {"text_tokens": "{}", "image_tokens": "{}", "output_tokens": "{}"},
    }
    path = archive(tmp_path, {"trace.csv": windows, "dataset.json": json.dumps(spans)})
    rows = read_trace(path, RateDraw(seconds=60_000.0))
    start_s = next(draw_instants_of(path))
    for row in rows:
        early = row.arrival_s + start_s < 21_600
        assert (row.prompt_tokens, row.output_tokens) == ((110, 1) if early else (20, 2))
        assert row.tenant == "kind_work/7"
    assert len(rows) == pytest.approx(6000, rel=0.06)
    assert rows[-1].arrival_s > 59_000
    (client,) = read_clients(path, RateDraw(first_s=700.0, seconds=600.0))
    assert [window.start_s for window in client.windows] == [600.0, 1200.0]


def draw_instants_of(path):
    (client,) = read_clients(path, RateDraw(seconds=60_000.0))
    rng = np.random.default_rng([0, client.number])
    return draw_instants(client.windows, RateDraw(seconds=60_000.0), rng)


def test_clients_without_lengths_need_pairs(tmp_path):
    path = archive(tmp_path, {"trace.csv": "0,0.1,1.0,Gamma,1.0,10.0\n"})
    with pytest.raises(InvalidConfiguration, match="kind_work holds rates without lengths"):
        read_trace(path)
    rows = read_trace(path, RateDraw(length_pairs=PAIRS))
    assert {row.prompt_tokens for row in rows} == {10, 20, 30}


def test_rates_of_a_table_need_a_workload_and_lengths(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text(RATES)
    with pytest.raises(InvalidConfiguration, match=r"--workload, one of a, b; got ''"):
        read_trace(path)
    with pytest.raises(InvalidConfiguration, match="without lengths"):
        read_trace(path, RateDraw("a"))
    rows = read_trace(path, RateDraw("a", seconds=1800.0, scale=2.0, length_pairs=PAIRS))
    assert rows == read_trace(path, RateDraw("a", seconds=1800.0, scale=2.0, length_pairs=PAIRS))
    assert len(rows) == pytest.approx(600 * 5.0, rel=0.06)
    assert {row.prompt_tokens for row in rows} == {10, 20, 30}
    assert all(row.prompt_tokens == 10 * row.output_tokens for row in rows)
    assert not [row for row in rows if 601 < row.arrival_s < 1199]
    other = read_trace(path, RateDraw("a", seed=1, length_pairs=PAIRS))
    assert other[:50] != rows[:50]


def test_clients_ask_in_their_windows_with_their_lengths():
    draw = RateDraw(first_s=14_400.0, seconds=7200.0)
    rows = read_trace(ARCHIVE, draw)
    assert rows == read_trace(ARCHIVE, draw)
    tenants = Counter(row.tenant for row in rows)
    assert set(tenants) == {"reason_deepseek-r1/0", "reason_deepseek-r1/19"}
    # 600 s times the rates of these windows, added up from the excerpt with awk.
    assert tenants["reason_deepseek-r1/0"] == pytest.approx(1696, rel=0.1)
    assert tenants["reason_deepseek-r1/19"] == pytest.approx(5874, rel=0.15)
    assert rows[0].arrival_s == 0.0 and rows[-1].arrival_s < 7200.0
    assert min(row.prompt_tokens for row in rows) > 1


def test_a_file_that_is_no_archive_of_clients(tmp_path):
    path = tmp_path / "clients.tar.xz"
    path.write_bytes(b"\xfd7zXZ\x00 and then nothing")
    with pytest.raises(InvalidConfiguration, match="not ServeGen's clients"):
        read_trace(path)
