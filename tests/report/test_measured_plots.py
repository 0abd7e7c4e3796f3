"""What the plots show adds up to what was measured, and both libraries draw it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.report.documents import load_plotter
from tandem.report.measured import LoadPoint, SweepPoint, summarise_measured
from tandem.report.plots.chart import Chart
from tandem.report.plots.measured import measured_chart, sweep_chart
from tandem.report.record import Ending, MeasuredRequest

SLO = Slo(ttft_s=0.2, tpot_s=0.1)


def records(count: int, ttft_s: float) -> list[MeasuredRequest]:
    found = []
    for index in range(count):
        sent_ns = index * 100_000_000
        first_ns = sent_ns + round(ttft_s * 1e9)
        found.append(
            MeasuredRequest(
                request_id=str(index),
                serial=index,
                arrival_ns=sent_ns,
                prompt_tokens=1,
                output_tokens=5,
                ending=Ending.FINISHED,
                first_token_ns=first_ns,
                last_token_ns=first_ns + 400_000_000,
                end_ns=first_ns + 400_000_000,
                emitted_tokens=5,
                due_ns=sent_ns,
                gaps_ns=[100_000_000] * 4,
            )
        )
    return found


def run() -> Chart:
    return measured_chart("title", "settings", records(10, 0.2), SLO)


def sweep(ttfts_s: tuple[float, ...]) -> Chart:
    points = [
        SweepPoint(LoadPoint(2.0**number), summarise_measured(records(10, ttft_s), SLO))
        for number, ttft_s in enumerate(ttfts_s)
    ]
    return sweep_chart("title", "settings", points, SLO)


def test_tokens_over_time_add_up() -> None:
    (curve,) = run().panels[2].curves
    width_s = curve.x[1] - curve.x[0]
    assert np.sum(curve.y) * width_s == pytest.approx(50)


def test_in_flight_rises_and_returns_to_zero() -> None:
    (curve,) = run().panels[3].curves
    assert curve.y[0] == curve.y[-1] == 0
    assert max(curve.y) == 6


def test_the_knee_is_marked() -> None:
    for panel in sweep((0.1, 0.15, 0.9)).panels:
        assert [guide.value for guide in panel.guides if guide.text == "knee"] == [2.0]
    for panel in sweep((0.9, 0.9)).panels:
        assert not [guide for guide in panel.guides if guide.text == "knee"]


def test_an_infinite_rate_stays_off_the_axis() -> None:
    summary = summarise_measured(records(10, 0.1), SLO)
    points = [SweepPoint(LoadPoint(rate_rps), summary) for rate_rps in (1.0, float("inf"))]
    for panel in sweep_chart("", "", points, SLO).panels:
        assert all(curve.x == (1.0,) for curve in panel.curves)


@pytest.mark.parametrize("name", ["a.png", "a.html"])
def test_both_libraries_draw(tmp_path: Path, name: str) -> None:
    draw = load_plotter(tmp_path / name)
    for chart in (sweep((0.1, 0.5)), run(), measured_chart("nothing", "", [], Slo())):
        draw(chart, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tandem.report.plots.html", raising=False)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(InvalidConfiguration, match=r"pip install tandem\[bench\]"):
        load_plotter(tmp_path / "a.html")
