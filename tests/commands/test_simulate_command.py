"""`tandem simulate`, from its flags to its files."""

import json

import pytest

from tandem.commands.scenario import scenario_of
from tandem.config.cluster.file import read_cluster
from tests.commands.cli import tandem


@pytest.fixture
def trace(tmp_path):
    """Forty requests a tenth of a second apart; every fourth begins like the one before it."""
    rows = [
        {
            "arrival_s": number / 10,
            "prompt_tokens": 600 + 10 * number,
            "output_tokens": 5,
            "block_ids": [number // 4, 100 + number],
        }
        for number in range(40)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(*words: object):
    return tandem("simulate", *words)


def test_one_run_is_told_in_full(trace, tmp_path):
    figures, records = tmp_path / "run.json", tmp_path / "records.jsonl"
    result = run("mixed", "--trace", trace, "--first", 30, "--json", figures, "--records", records)
    assert result.exit_code == 0, result.output
    for words in ("TTFT (first token)", "4 prefill on 32 h100", "the first 30 of 40 requests"):
        assert words in result.output
    document = json.loads(figures.read_bytes())
    summary = document["runs"][0]["summary"]
    assert summary["endings"] == {"finished": 30}
    assert summary["output_tokens"] == 150
    assert document["runs"][0]["settings"]["routing"] == "cost"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert sum(line["of"] == "request" for line in lines) == 30
    assert any(line["of"] == "decision" for line in lines)


def test_a_list_compares_and_processes_change_nothing(trace, tmp_path):
    texts = set()
    for processes in (1, 2):
        figures = tmp_path / f"{processes}.json"
        result = run(
            "aggregated-16", "--trace", trace, "--speed", "1,4", "--routing", "cost,random",
            "--processes", processes, "--json", figures,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "TTFT p50/p99" in result.output
        texts.add(figures.read_bytes())
    assert len(texts) == 1
    runs = json.loads(texts.pop())["runs"]
    assert [(each["label"], each["speed"]) for each in runs] == [
        ("cost", 1.0), ("cost", 4.0), ("random", 1.0), ("random", 4.0),
    ]  # fmt: skip


def test_one_request_is_explained(trace):
    result = run("mixed", "--trace", trace, "--first", 5, "--explain", 3)
    assert result.exit_code == 0, result.output
    assert "routing" in result.output
    assert "first token" in result.output


def test_a_plot_is_drawn(trace, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "run.png"
    result = run("mixed", "--trace", trace, "--first", 5, "--plot", plot)
    assert result.exit_code == 0, result.output
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["moncake-16"], "did you mean mooncake-16?"),
        (["mixed", "--routing", "cst"], "--routing: unknown cst; did you mean cost?"),
        (["mixed", "--speed", "0"], "--speed must be a number greater than 0"),
        (["mixed", "--speed", "1,inf"], "--speed must be finite, got '1,inf'"),
        (["mixed", "--slo", "ttft"], "--slo must look like"),
        (["mixed", "--set", "pools.x.count=1"], "no entry x"),
        (["mixed", "--faults", "crash"], "--faults must look like"),
        (["mixed", "--faults", "at: 1s, crash: decode-99"], "there is no worker decode-99"),
        (["mixed", "--explain", "1", "--speed", "1,2"], "--explain looks at one run"),
        (["mixed", "--explain", "999"], "999: no such request"),
        (["mixed", "--plot", "run.txt"], "--plot must end in"),
        (
            ["mixed", "--set", "policies.routing.harm=2"],
            "routing cost has no parameter harm; it takes none",
        ),
        (["mooncake-16", "--set", "policies.admission.x=2"], "admission none has no parameter x"),
        (["mixed", "--set", "policies.forecast=trend"], "planning static forecasts nothing"),
        (["mixed", "--set", "policies.dispatch=long-prompts"], "long-prompts needs workers, as"),
        (
            ["mixed", "--set", "policies.dispatch={name: long-prompts, workers: [prefill-9]}"],
            "dispatch long-prompts: there is no worker prefill-9; did you mean prefill-3?",
        ),
        (
            ["mixed", "--set", "policies.planning={name: utilisation, threshold: x}"],
            "planning utilisation: threshold: expected a number such as 0.9 or 90%, got 'x'",
        ),
        (
            ["mixed", "--set", "policies.planning={name: utilisation, interval_s: 0}"],
            "planning utilisation: a tick every 0 s; choose 0.1 or more",
        ),
        (["mixed", "--json", "nowhere/run.json"], "--json: there is no folder nowhere"),
        (["mixed", "--records", "nowhere/r"], "--records: there is no folder nowhere"),
        (["mixed", "--plot", "nowhere/run.png"], "--plot: there is no folder nowhere"),
        (["mixed", "--faults", "at: 1s, down: host"], "faults: the cluster has no host tier"),
        (["mixed", "./mixed.yaml"], "two clusters are called mixed"),
    ],
)
def test_a_mistake_is_one_line(trace, words, told):
    result = run(*words, "--trace", trace, "--first", 3)
    assert result.exit_code == 2
    assert told in result.output
    assert result.output.count("\n") == 1


def test_a_request_longer_than_the_context_is_told(trace):
    result = run("mixed", "--trace", trace, "--first", 5, "--set", "max_model_len=630")
    assert result.exit_code == 0, result.output
    # 600, 610, ... 640 prompt tokens and five of the answer.
    assert "2 of 5 requests want more than the 630 tokens" in result.output
    assert "2 rejected" in result.output
    assert "requests want more" not in run("mixed", "--trace", trace, "--first", 5).output


def test_a_window_without_requests_is_refused(tmp_path):
    row = '{"prompt_tokens": 9, "output_tokens": 2, "arrival_s": %d}\n'
    file = tmp_path / "coarse.jsonl"
    # Spread within their tick of a second, none of them comes in the first millisecond.
    file.write_text("".join(row % (number // 3) for number in range(6)))
    result = run("mixed", "--trace", file, "--seconds", "0.001")
    assert result.exit_code == 2
    assert "no request is left; give more --seconds" in result.output


def test_the_cluster_and_the_slo_are_named(trace):
    few = ("--trace", trace, "--first", 5)
    assert "mixed, routing cost, at 2x" in run("mixed", *few, "--speed", "2").output
    compared = run("mixed", *few, "--routing", "cost, random", "--processes", 1).output
    assert "mixed; SLO TTFT <= 2 s, TPOT <= 60 ms; trace " in compared
    apart = run("mixed", "aggregated-16", *few, "--processes", 1).output
    assert "mixed and aggregated-16; SLO each cluster's own" in apart


def test_rates_are_drawn_for_one_workload_with_given_lengths(tmp_path):
    rates, lengths = tmp_path / "rates.csv", tmp_path / "lengths.csv"
    rates.write_text("workload,window_start_s,rate_rps\na,0,2.0\nb,0,9.0\n")
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n100,7\n")
    asked = ("mixed", "--trace", rates, "--seconds", 5, "--workload", "a")
    assert "give a --lengths-file as well" in run(*asked).output
    assert "needs --workload, one of a, b" in run(*asked[:-2]).output
    figures = tmp_path / "run.json"
    result = run(*asked, "--lengths-file", lengths, "--json", figures)
    assert result.exit_code == 0, result.output
    summary = json.loads(figures.read_bytes())["runs"][0]["summary"]
    assert 2 <= summary["requests"] <= 25
    assert summary["output_tokens"] == 7 * summary["requests"]


@pytest.mark.parametrize(
    ("settings", "transfer"),
    [([], "push"), (["--set", "policies.dispatch=queue"], "pull")],
)
def test_the_dispatch_policy_has_a_way_of_transfer_of_its_own(settings, transfer):
    scenario = scenario_of(read_cluster("mooncake-16", settings[1:]))
    assert scenario.policies.dispatching.transfer == transfer


def test_workers_speculate_as_the_file_has_them(trace, tmp_path):
    figures = tmp_path / "run.json"
    speculating = ("--set", "serve={speculation: draft, speculation-tokens: 3}")
    told = ("--set", "drafts={kept: [0.9, 80%], offered: 1, token_time: 0s}")
    result = run("aggregated-16", "--trace", trace, *speculating, *told, "--json", figures)
    assert result.exit_code == 0, result.output
    assert "tokens a draft" in result.output
    drafts = json.loads(figures.read_bytes())["runs"][0]["summary"]["drafts"]
    assert drafts["draft_tokens"] > 0
    assert 1.0 < drafts["tokens_a_draft"] <= 4.0
    plain = run("aggregated-16", "--trace", trace)
    assert "tokens a draft" not in plain.output


def test_what_comes_of_drafts_is_measured_where_nobody_says_it():
    """And a pool's own options stand before the cluster's."""
    sets = ["serve.speculation=eagle", "pools.prefill.serve={speculation: none}"]
    scenario = scenario_of(read_cluster("mixed", sets))
    kinds = {pool.name: pool.kind for pool in scenario.pools}
    assert kinds["prefill"].speculation is None
    decode = kinds["decode"]
    assert (decode.speculation.most_tokens, decode.speculation.adaptive) == (4, True)
    assert decode.drafts.kept == (0.84, 0.89, 0.93, 0.94)
    alone_s = decode.cost.step_time.decode_seconds(1, 1) * decode.cost.step_time.stages
    assert decode.drafts.token_s == pytest.approx(alone_s / 20)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("drafts.keeps=[0.5]", "unknown key keeps"),
        ("drafts.kept=[1.5]", "kept must be at most 1"),
        ("drafts.kept=[]", "at least one chance"),
    ],
)
def test_a_mistake_about_drafts_is_told(trace, setting, words):
    result = run("mixed", "--trace", trace, "--set", setting)
    assert result.exit_code != 0
    assert words in result.output
