"""Amounts as people write them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.slo import Slo
from tandem.facts.units import (
    BYTES,
    BYTES_PER_S,
    COUNT,
    DOLLARS_PER_HOUR,
    SECONDS,
    SHARE,
    size_text,
    unit_of,
)


@pytest.mark.parametrize(
    ("quantity", "text", "amount"),
    [
        (SECONDS, "10us", 1e-5),
        (SECONDS, "50 ms", 0.05),
        (SECONDS, "1.5h", 5400.0),
        (SECONDS, "0", 0.0),
        (BYTES, "64 GiB", 64 * 2**30),
        (BYTES, "256 GB", 256e9),
        (BYTES, "1,000 kB", 1e6),
        (BYTES_PER_S, "50 GB/s", 50e9),
        (BYTES_PER_S, "400 Gbit/s", 50e9),
        (BYTES_PER_S, "400 Gb/s", 50e9),
        (BYTES, "512mib", 512 * 2**20),
        (BYTES, ".5 GiB", 2**29),
        (COUNT, "16k", 16_000.0),
        (COUNT, "16Ki", 16_384.0),
        (COUNT, "8_192", 8192.0),
        (COUNT, "2e3", 2000.0),
        (SHARE, "25%", 0.25),
        (SHARE, "0.9", 0.9),
        (DOLLARS_PER_HOUR, "$2.50", 2.5),
        (DOLLARS_PER_HOUR, "2.50/h", 2.5),
    ],
)
def test_an_amount_is_read_exactly(quantity, text, amount):
    assert quantity.read(text) == amount


@pytest.mark.parametrize(
    ("quantity", "text"),
    [(SECONDS, "2"), (SECONDS, "2 GB"), (BYTES, "64"), (BYTES_PER_S, "50 GB"), (COUNT, "many"),
     (SECONDS, ""), (COUNT, "1.2.3"), (SECONDS, "nan s"), (COUNT, "inf")],
)  # fmt: skip
def test_an_amount_of_another_kind_is_refused_with_an_example(quantity, text):
    with pytest.raises(ValueError, match=r"expected a .* such as"):
        quantity.read(text)


def test_a_number_alone_is_in_the_unit_that_its_place_names():
    memory = replace(BYTES, bare="B")
    assert (memory.read("1048576"), memory.read("1 MiB")) == (2**20, 2**20)
    assert replace(SECONDS, bare="s").read("90") == replace(SECONDS, bare="ms").read("90000") == 90
    assert COUNT.read_unit("16k") == (16_000.0, "k")
    assert COUNT.read_unit("16") == (16.0, "")


def test_a_size_for_a_person():
    assert [size_text(count) for count in (0, 300 << 20, 3 << 29)] == [
        "0 MiB", "300 MiB", "1.5 GiB",
    ]  # fmt: skip


def test_nothing_is_negative():
    with pytest.raises(ValueError, match="must not be negative"):
        SECONDS.read("-2s")


@given(st.integers(0, 10**9), st.sampled_from(["ns", "us", "ms", "s"]))
def test_whole_nanoseconds_survive(count, unit):
    factor = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert round(SECONDS.read(f"{count} {unit}") * 1e9) == count * factor


def test_a_name_says_its_unit():
    assert unit_of("startup_s") == ("startup", SECONDS)
    assert unit_of("fabric_bytes_per_s") == ("fabric", BYTES_PER_S)
    assert unit_of("capacity_bytes") == ("capacity", BYTES)
    assert unit_of("max_num_seqs") == ("max_num_seqs", None)


def test_bounds_are_told_in_the_unit_that_suits():
    slo = Slo(ttft_s=0.5, tpot_s=0.05, e2e_s=10.0)
    assert str(slo) == "TTFT <= 500 ms, TPOT <= 50 ms, E2E <= 10 s"
    assert str(Slo(ttft_s=1.5)) == "TTFT <= 1.5 s"
    assert str(Slo()) == ""
