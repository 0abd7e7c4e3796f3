"""What the plots show, and that both libraries draw it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.slo import Slo
from tandem.report.comparison import Point
from tandem.report.plots.chart import COLOURS, Mark
from tandem.report.plots.simulated import comparison_chart, timeline
from tandem.report.summary import Terms, summarise
from tests.report.made_runs import made_run

SLO = Slo(ttft_s=4.0, tpot_s=0.1)
TERMS = Terms(SLO)


def points(speeds: tuple[float, ...]) -> list[Point]:
    return [
        Point(name, speed, summarise(made_run(requests=90, speed=speed, service_s=each), TERMS))
        for name, each in (("round-robin", 0.9), ("cost", 0.5))
        for speed in speeds
    ]


def charts():
    record = made_run(speed=1.5)
    yield timeline(record, summarise(record, TERMS), SLO, "made")
    yield comparison_chart(points((0.5, 1.0, 2.0, 4.0)), SLO, "made")
    yield comparison_chart(points((1.0,)), SLO, "made")


def test_a_timeline_shows_rejections_faults_and_the_slo():
    record = made_run(speed=1.5)
    summary = summarise(record, TERMS)
    chart = timeline(record, summary, SLO, "made")
    panels = {panel.title: panel for panel in chart.panels}
    arrivals = panels["Requests a second"]
    assert [curve.name for curve in arrivals.curves] == ["arrived", "rejected", "finished"]
    assert [guide.text for guide in arrivals.guides] == ["crash of decode-1"]
    assert all(any(guide.fault for guide in panel.guides) for panel in chart.panels)
    ttft = panels["Time to first token of each request, by its arrival"]
    assert ttft.guides[0].value == 4.0
    assert ttft.curves[0].mark is Mark.POINTS
    assert len(ttft.curves[0].x) == summary.endings["finished"]
    assert f"{summary.endings['rejected']:,} rejected" in chart.title


def test_every_arrival_is_in_a_bin():
    record = made_run()
    chart = timeline(record, summarise(record, TERMS), SLO, "made")
    curve = chart.panels[0].curves[0]
    bin_s = curve.x[1] - curve.x[0]
    assert sum(rate * bin_s for rate in curve.y[:-1]) == pytest.approx(len(record.requests))


def test_an_empty_run_can_be_drawn():
    record = replace(made_run(requests=1), requests=[], samples=[], decisions=[])
    chart = timeline(record, summarise(record, TERMS), SLO, "nothing")
    assert chart.panels[0].curves == ()


def test_a_comparison_over_loads_shows_the_knee():
    chart = comparison_chart(points((0.5, 1.0, 2.0, 4.0)), SLO, "made")
    goodput = chart.panels[0]
    assert [curve.name for curve in goodput.curves] == ["round-robin", "cost"]
    assert goodput.curves[0].x == (0.5, 1.0, 2.0, 4.0)
    assert [(guide.value, guide.text) for guide in goodput.guides] == [(2.0, "knee of cost")]
    assert chart.title.startswith("Cost keeps the SLO up to 2x")


def test_a_comparison_at_one_load_is_bars_best_first():
    chart = comparison_chart(points((1.0,)), SLO, "made")
    assert [panel.bars[0] for panel in chart.panels] == ["cost"] * 4
    assert all(len(panel.curves[0].y) == 2 for panel in chart.panels)


@pytest.mark.parametrize(("library", "ending"), [("png", "png"), ("html", "html")])
def test_both_libraries_draw_every_chart(tmp_path, library, ending):
    draw = pytest.importorskip(f"tandem.report.plots.{library}").draw
    for number, chart in enumerate(charts()):
        file = tmp_path / f"{number}.{ending}"
        draw(chart, file)
        assert file.stat().st_size > 10_000
        if ending == "html":
            text = file.read_text()
            assert chart.subtitle in text
            assert all(panel.title in text for panel in chart.panels)


@given(
    st.lists(st.floats(0, 100), max_size=6).map(sorted),
    st.floats(1, 10),
)
def test_labels_keep_apart_and_within(heights, step):
    spread_apart = pytest.importorskip("tandem.report.plots.png").spread_apart
    moved = spread_apart(heights, step, 0.0, 100.0)
    assert len(moved) == len(heights)
    assert all(after - before >= step - 1e-9 for before, after in pairwise(moved))
    assert all(-1e-9 <= height <= 100 + 1e-9 for height in moved)
    if all(after - before >= step for before, after in pairwise(heights)):
        assert moved == pytest.approx(heights)


def test_colours_differ():
    assert len(set(COLOURS)) == len(COLOURS) == 8
