"""`tandem hits` from the command line to its table, file and plot."""

from pathlib import Path

import msgspec
import pytest

from tests.commands.cli import tandem

TRACE = Path(__file__).parents[1] / "bench/data/mooncake_conversation_300.jsonl.gz"
AZURE = TRACE.with_name("azure_conv_200.csv")


def test_table_and_file(tmp_path: Path) -> None:
    path = tmp_path / "hits.json"
    shown = tandem(
        "hits",
        TRACE,
        "--capacity",
        "100,3M",
        "--eviction",
        "lru,arc",
        "--ttl",
        "60",
        "--json",
        path,
    )
    assert shown.exit_code == 0, shown.output
    assert "300 requests" in shown.output and "ttl 60 s" in shown.output
    caches = msgspec.json.decode(path.read_bytes())["caches"]
    assert [(c["eviction"], c["capacity_blocks"], c["ttl_s"]) for c in caches] == [
        ("lru", 100, None),
        ("lru", 5859, None),
        ("arc", 100, None),
        ("arc", 5859, None),
        ("ttl", None, 60.0),
        ("unbounded", None, None),
    ]
    shares = [cache["token_share"] for cache in caches]
    assert 0 < shares[0] < shares[1] <= shares[-1] < 1
    assert all(cache["hit_tokens"] <= caches[-1]["hit_tokens"] for cache in caches)


@pytest.mark.parametrize("name", ["hits.png"])
def test_plot(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    shown = tandem("hits", TRACE, "--capacity", "100,200", "--eviction", "all", "--plot", path)
    assert shown.exit_code == 0, shown.output
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((AZURE,), "names no blocks"),
        ((TRACE, "--capacity", "many"), "--capacity must be whole blocks"),
        ((TRACE, "--capacity", "0.1k"), "at least one block of 512 tokens"),
        ((TRACE, "--capacity", "1.5"), "--capacity must be whole blocks"),
        ((TRACE, "--eviction", "lur"), "eviction must be one of lru"),
        ((TRACE, "--ttl", "soon"), "--ttl must be seconds"),
        ((TRACE, "--ttl", "0"), "ttl must be more than 0"),
        ((TRACE, "--plot", "hits.doc"), "--plot must end in"),
        ((TRACE, "--json", "/nowhere/hits.json"), "--json: there is no folder /nowhere"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[object, ...], problem: str) -> None:
    shown = tandem("hits", *arguments)
    assert shown.exit_code == 2
    assert problem in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1
