"""Forecasts by name, and those made by statsmodels."""

import sys
from math import pi, sin

import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.forecast.choose import NAMES, forecaster
from tandem.policy.forecasting import LastValue

DAY = [100 + 50 * sin(2 * pi * hour / 24) for hour in range(24)]


def test_names_without_a_library_do_not_load_one():
    assert forecaster("last_value") == LastValue()
    assert NAMES == ("last_value", "smooth", "trend", "arima", "seasonal")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("prophet", {}, "choose one of last_value"),
        ("trend", {"gamma": 1}, "gamma"),
        ("trend", {"alpha": 3}, "alpha"),
    ],
)
def test_mistakes_are_told_in_one_line(name, options, said):
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        forecaster(name, **options)
    assert "\n" not in str(caught.value)


def test_a_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    for name in [name for name in sys.modules if name.startswith("statsmodels.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "tandem.forecast.statistical", raising=False)
    with pytest.raises(InvalidConfiguration, match=r"pip install tandem\[forecast\]"):
        forecaster("arima")


class TestWithTheLibrary:
    @pytest.fixture(autouse=True)
    def _library(self):
        pytest.importorskip("statsmodels")

    def test_arima_follows_a_line_where_smoothing_lags(self):
        line = [float(10 * step) for step in range(60)]
        ahead = forecaster("arima").forecast(line, 5)
        assert ahead == pytest.approx([600, 610, 620, 630, 640], rel=0.02)

    def test_seasonal_knows_what_comes_at_this_hour(self):
        ahead = forecaster("seasonal", period=24).forecast(DAY * 5 + DAY[:6], 12)
        assert ahead == pytest.approx(DAY[6:18], rel=0.05)
        assert forecaster("trend").forecast(DAY * 5 + DAY[:6], 12) != pytest.approx(
            DAY[6:18], rel=0.3
        )

    @pytest.mark.parametrize(("name", "options"), [("arima", {}), ("seasonal", {"period": 8})])
    @pytest.mark.parametrize(
        "history",
        [[], [3.0], [0.0] * 100, [5.0] * 40, [9.0, 1.0] * 9, [900.0 - 30 * i for i in range(30)]],
    )
    def test_never_negative_and_as_many_as_asked(self, name, options, history):
        values = forecaster(name, **options).forecast(history, 4)
        assert len(values) == 4
        assert min(values) >= 0
        if history and len(set(history)) == 1:
            assert values == pytest.approx(history[:1] * 4, abs=1e-3)

    def test_wrong_settings_are_named(self):
        with pytest.raises(InvalidConfiguration, match="order"):
            forecaster("arima", order=(1, -1, 0))
        with pytest.raises(InvalidConfiguration, match="period"):
            forecaster("seasonal", period=1)
