"""A slo in words."""

from tandem.facts.slo import Slo


def test_bounds_are_told_in_the_unit_that_suits():
    slo = Slo(ttft_s=0.5, tpot_s=0.05, e2e_s=10.0)
    assert str(slo) == "TTFT <= 500 ms, TPOT <= 50 ms, E2E <= 10 s"
    assert str(Slo(ttft_s=1.5)) == "TTFT <= 1.5 s"
    assert str(Slo()) == ""
