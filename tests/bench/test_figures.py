"""What the plots show adds up to what was measured, and both libraries draw it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tandem.bench.figures import Figure, run_figure, sweep_figure
from tandem.bench.metrics import summarise
from tandem.bench.record import RequestRecord
from tandem.bench.sweep import LoadPoint, SweepPoint
from tandem.commands.bench import load_plotter
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo

SLO = Slo(ttft_s=0.2, tpot_s=0.1)


def records(count: int, ttft_s: float) -> list[RequestRecord]:
    return [
        RequestRecord(
            index,
            due_s=index * 0.1,
            sent_s=index * 0.1,
            first_token_s=index * 0.1 + ttft_s,
            ended_s=index * 0.1 + ttft_s + 0.4,
            gaps_s=[0.1] * 4,
            output_tokens=5,
        )
        for index in range(count)
    ]


def run() -> Figure:
    return run_figure("title", "settings", records(10, 0.2), SLO)


def sweep(ttfts_s: tuple[float, ...]) -> Figure:
    points = [
        SweepPoint(LoadPoint(2.0**number), summarise(records(10, ttft_s), SLO))
        for number, ttft_s in enumerate(ttfts_s)
    ]
    return sweep_figure("title", "settings", points, SLO)


def test_tokens_over_time_add_up() -> None:
    (series,) = run().panels[2].series
    width_s = series.x[1] - series.x[0]
    assert np.sum(series.y) * width_s == pytest.approx(50)


def test_in_flight_rises_and_returns_to_zero() -> None:
    (series,) = run().panels[3].series
    assert series.y[0] == series.y[-1] == 0
    assert max(series.y) == 6


def test_the_knee_is_marked() -> None:
    for panel in sweep((0.1, 0.15, 0.9)).panels:
        assert [guide.value for guide in panel.guides if guide.text == "knee"] == [2.0]
    for panel in sweep((0.9, 0.9)).panels:
        assert not [guide for guide in panel.guides if guide.text == "knee"]


def test_an_infinite_rate_stays_off_the_axis() -> None:
    summary = summarise(records(10, 0.1), SLO)
    points = [SweepPoint(LoadPoint(rate_rps), summary) for rate_rps in (1.0, float("inf"))]
    for panel in sweep_figure("", "", points, SLO).panels:
        assert all(series.x == (1.0,) for series in panel.series)


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_both_libraries_draw(tmp_path: Path, name: str) -> None:
    draw = load_plotter(tmp_path / name)
    for figure in (sweep((0.1, 0.5)), run_figure("nothing", "", [], Slo())):
        draw(figure, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tandem.bench.plot_html", raising=False)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(InvalidConfiguration, match=r"pip install tandem\[bench\]"):
        load_plotter(tmp_path / "a.html")
