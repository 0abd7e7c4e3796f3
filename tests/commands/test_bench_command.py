"""`tandem bench` against a real socket: what it asks, what it prints and writes, how it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.bench.scripted_server import Script, ScriptedServer
from tests.commands.cli import tandem

DATA = Path(__file__).parent.parent / "bench" / "data"
SMALL = ["--input-tokens", "20", "--output-tokens", "5", "--num-prompts", "12", "--warmup", "0"]


def run(url: str, *flags: str) -> Result:
    return tandem("bench", "--url", url, *flags)


def test_closed_loop_in_full(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    with ScriptedServer(Script(token_gap_s=0.002)) as server:
        flags = ["--concurrency", "4", "--seed", "3", "--slo", "ttft=5s,tpot=5s"]
        result = run(server.url, *SMALL, *flags, "--output", str(output), "--api-key", "hidden")
        assert result.exit_code == 0, result.output
        bodies = server.bodies
    assert len(bodies) == 12
    for body in bodies:
        assert body["ignore_eos"] is True and body["max_tokens"] == 5
        assert len(body["prompt"]) == 20 and max(body["prompt"]) < 5000
    assert "TTFT (first token)" in result.stdout and "within the SLO" in result.stdout
    text = output.read_text()
    assert "hidden" not in text
    document = json.loads(text)
    assert document["server"]["model"] == "scripted"
    assert document["settings"]["load"]["seed"] == 3
    (measured,) = document["runs"]
    assert measured["summary"]["output_tokens"] == 60
    assert measured["summary"]["attainment"] == 1.0
    assert len(measured["requests"]) == 12
    first = measured["requests"][0]
    assert len(first["gaps_s"]) == 4
    assert first["tpot_s"] == pytest.approx(sum(first["gaps_s"]) / 4, abs=1e-5)


def test_same_seed_same_bodies() -> None:
    asked = []
    for seed in ("1", "1", "2"):
        with ScriptedServer() as server:
            flags = ["--rate", "500", "--shared-prefix-tokens", "16", "--seed", seed]
            assert run(server.url, *SMALL, *flags).exit_code == 0
            asked.append(sorted(json.dumps(body) for body in server.bodies))
    assert asked[0] == asked[1] != asked[2]


def test_shared_prefixes_hit_the_cache() -> None:
    with ScriptedServer() as server:
        flags = ["--random-prefix-len", "64", "--prefix-groups", "2", "--max-concurrency", "1"]
        result = run(server.url, *SMALL, *flags)
    # 10 of 12 prompts of 84 tokens find their 64 again: 63.5 %.
    assert "63.5%" in result.stdout


def test_sweep_prints_a_row_each_and_the_knee(tmp_path: Path) -> None:
    plot = tmp_path / "sweep.png"
    with ScriptedServer(Script(first_token_s=0.02, slots=1)) as server:
        flags = ["--rate", "5,100", "--slo", "ttft=60ms", "--plot", str(plot)]
        result = run(server.url, *SMALL, *flags)
        prompts = {json.dumps(body["prompt"]) for body in server.bodies}
    assert result.exit_code == 0, result.output
    assert "5/s" in result.stdout and "100/s" in result.stdout
    assert "Knee: 5/s" in result.stdout
    assert len(prompts) == 24, "the points of a sweep must not share prompts"
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_trace_with_prefixes_and_html_plot(tmp_path: Path) -> None:
    plot, records = tmp_path / "run.html", tmp_path / "records.jsonl"
    trace = str(DATA / "mooncake_conversation_300.jsonl.gz")
    with ScriptedServer() as server:
        flags = ["--trace", trace, "--speed", "100", "--scale-lengths", "0.0625"]
        flags += ["--num-prompts", "60", "--plot", str(plot), "--records", str(records)]
        result = run(server.url, *flags, "--warmup", "1")
        assert result.exit_code == 0, result.output
        replayed = run(server.url, "--trace", str(records), "--speed", "10")
        assert replayed.exit_code == 0, replayed.output
    # Every row begins with the same block, here of 32 tokens.
    assert len({tuple(body["prompt"][:32]) for body in server.bodies[1:61]}) == 1
    assert "plotly" in plot.read_text().lower()
    assert len(records.read_text().splitlines()) == 60
    assert "of 60 succeeded" in replayed.stdout


def test_words_through_either_endpoint() -> None:
    with ScriptedServer() as server:
        assert run(server.url, *SMALL, "--text").exit_code == 0
        chat = run(server.url, *SMALL, "--endpoint", "/v1/chat/completions", "--no-ignore-eos")
        assert chat.exit_code == 0, chat.output
        assert isinstance(server.bodies[0]["prompt"], str)
        assert len(server.bodies[-1]["messages"][0]["content"].split()) == 20
        assert "ignore_eos" not in server.bodies[-1]


def test_turns_grow() -> None:
    with ScriptedServer() as server:
        assert run(server.url, *SMALL, "--turns", "3", "--concurrency", "1").exit_code == 0
        lengths = [len(body["prompt"]) for body in server.bodies]
    assert lengths == [20, 45, 70] * 4


def test_failures_are_counted_with_their_reason() -> None:
    with ScriptedServer(Script(refuse=lambda n: 429 if n % 3 == 0 else 200)) as server:
        result = run(server.url, *SMALL)
        assert result.exit_code == 0
        assert "HTTP 429: queue full" in result.stdout
        assert "of 12 succeeded" in result.stdout
    with ScriptedServer(Script(refuse=lambda _: 500)) as server:
        assert run(server.url, *SMALL).exit_code == 1


def test_asking_twice_is_noticed() -> None:
    with ScriptedServer() as server:
        flags = ["--input-tokens", "200", "--num-prompts", "5", "--output-tokens", "2"]
        assert "it was asked before" not in run(server.url, *flags).stdout
        assert "it was asked before" in run(server.url, *flags).stdout


def test_vocabulary_from_tokenize_or_flag() -> None:
    with ScriptedServer(Script(tells_vocabulary=False)) as server:
        assert run(server.url, *SMALL).exit_code == 0
        assert 100 < max(max(body["prompt"]) for body in server.bodies) < 5000
    with ScriptedServer(Script(tells_vocabulary=False, has_tokenize=False)) as server:
        refused = run(server.url, *SMALL)
        assert refused.exit_code == 2 and "--vocabulary" in refused.stderr
        assert run(server.url, *SMALL, "--vocabulary", "50").exit_code == 0
        assert max(max(body["prompt"]) for body in server.bodies) < 50


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--rate", "0"], "--rate"),
        (["--rate", "1,x"], "--rate"),
        (["--rate", "1,2", "--concurrency", "1,2"], "cannot both be lists"),
        (["--concurrency", "1.5"], "--concurrency"),
        (["--input-tokens", "many"], "--input-tokens"),
        (["--slo", "speed=3"], "--slo"),
        (["--plot", "x.gif"], "--plot"),
        (["--plot", "nowhere/x.png"], "--plot: there is no folder nowhere"),
        (["--output", "nowhere/x.json"], "--output: there is no folder nowhere"),
        (["--records", "nowhere/x.jsonl"], "--records: there is no folder nowhere"),
        (["--trace", "/nonexistent"], "--trace"),
        (["--endpoint", "/x"], "--endpoint"),
        (["--url", "nowhere"], "--url"),
        (["--burstiness", "-1", "--rate", "1"], "--burstiness"),
    ],
)
def test_bad_values_are_one_clear_line(flags: list[str], named: str) -> None:
    result = run("http://127.0.0.1:9", *flags)
    assert result.exit_code == 2
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_server_is_one_clear_line() -> None:
    result = run("http://127.0.0.1:9", *SMALL)
    assert result.exit_code == 1
    assert "tandem serve" in result.stderr
    assert len(result.stderr.splitlines()) == 1
