"""What a server says of what it runs beside its model."""

import pytest

from tandem.config.options import read_options
from tandem.config.start_notes import beside_the_model


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (
            {"speculation": "ngram"},
            "speculation: ngram, what followed the last 2 to 4 tokens before; up to 4 tokens at a "
            "time, as many as pay",
        ),
        (
            {
                "speculation": "draft",
                "speculation_model": "/models/small",
                "speculation_tokens": 7,
                "speculation_adaptive": False,
            },
            "speculation: draft model small; up to 7 tokens at a time, always as many as may be",
        ),
        (
            {"speculation": "eagle", "speculation_branches": 3},
            "speculation: eagle head; up to 4 tokens at a time in trees of 3 branches, as many as "
            "pay",
        ),
        ({"enable_lora": True}, "adapters: red, green; 8 at once, of rank 16 at most"),
        ({"grpc_port": 8001}, "gRPC: 127.0.0.1:8001"),
        ({"grpc_port": 8001, "host": "::1"}, "gRPC: [::1]:8001"),
    ],
    ids=str,
)
def test_each_has_a_line(wishes, said):
    assert beside_the_model(read_options(None, wishes), ("red", "green")) == (said,)


def test_what_is_known_better_than_from_the_options():
    wishes = {"speculation": "medusa", "enable_lora": True}
    heads, adapters = beside_the_model(
        read_options(None, wishes), (), drafts_from="/bundled/small", adapter_bytes=5 << 20
    )
    assert heads.startswith("speculation: medusa heads small; ")
    assert adapters == "adapters: none yet; 8 at once, of rank 16 at most, 5 MiB for them"


def test_where_there_is_neither_nothing_is_said():
    assert beside_the_model(read_options(None, {}), ()) == ()
