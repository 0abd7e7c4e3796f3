"""What the pages tell people to type is typed: every `tandem` and `curl` command runs as it stands,
but for ports, sizes and lengths, on a server or a cluster of its own, in the order of the pages."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from tandem.config.cluster.file import find_cluster
from tests.journeys.serving import free_port, run_tandem, serving, started, succeeded
from tests.pages.blocks import blocks_of
from tests.pages.commands import PAGES, ROOT
from tests.pages.running import (
    CANNOT,
    ELSEWHERE,
    HERE,
    OPERATOR_KEY,
    PYTHON_ELSEWHERE,
    PYTHON_HERE,
    REFUSED,
    SAME,
    SHOWN,
    SNIPPETS_ELSEWHERE,
    addressed,
    of_verbs,
)

PROGRAM = (sys.executable, "-u", "-m", "tandem")
SERVER = "tandem serve"
CLUSTER = "tandem serve --prefill 2 --decode 2 --shared-cache 1GiB"
OWN_CLUSTER = "tandem up my-cluster.yaml"


def named(run):
    return run.command.text


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Where the reader types; clusters of others are not seen from there."""
    folder, before = tmp_path_factory.mktemp("pages"), Path.cwd()
    cluster = find_cluster("laptop-pd").read_text().replace("count: 2", "count: 1")
    (folder / "my-cluster.yaml").write_text(f"{cluster}serve: {{port: 0, threads: 1}}\n")
    (folder / "cluster.yaml").write_text(
        f"{cluster}serve: {{port: 0, threads: 1, kv-cache-memory: 64MiB}}\n"
        "tiers: {remote: {capacity: 64MiB}}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        os.chdir(folder)
        yield folder
        os.chdir(before)


@pytest.fixture(scope="module")
def server(folder):
    """`tandem serve`, whose operators have a key."""
    (folder / "operators").write_text(f"{OPERATOR_KEY}\n")
    with serving("--max-num-seqs", "16", "--operator-key-file", "operators") as server:
        yield server
        assert server.terminate() == 0


def test_every_command_is_run_once_and_no_exception_is_for_nothing():
    shown = {each.text for each in SHOWN}
    assert {*CANNOT, *ELSEWHERE, *SAME} <= shown
    assert len(CANNOT) + len(ELSEWHERE) + len(SAME) + len(HERE) == len(shown)
    assert {*SAME.values()} <= {run.command.text for run in HERE}
    # Whoever can be run is run by one of the tests below.
    tested = [*ALONE, *ANSWERED, *CALLED, *STARTED, *OPERATED, *APART]
    assert sorted([SERVER, *map(named, tested)]) == sorted(map(named, HERE))


@pytest.mark.parametrize(("text", "where"), ELSEWHERE.items(), ids=lambda each: each[:60])
def test_what_is_run_elsewhere_is(text, where):
    file, words = where
    assert words in (ROOT / file).read_text()


ALONE = of_verbs("calibrate", "compress", "hits", "keys", "simulate", "traces") + [
    run for run in of_verbs("eval") if "--url" not in run.words
]


@pytest.mark.parametrize("run", ALONE, ids=named)
def test_it_runs_by_itself(run, folder):
    assert succeeded(run_tandem(*run.in_folder(folder))).strip()
    for option in ("--out", "--plot", "--draw"):
        if option in run.words:
            words = run.in_folder(folder)
            assert (folder / words[words.index(option) + 1]).exists()


ANSWERED = of_verbs("bench", "chat", "complete", "top") + [
    run for run in of_verbs("eval") if "--url" in run.words
]


@pytest.mark.parametrize("run", ANSWERED, ids=named)
def test_it_is_answered_by_a_server(run, server):
    words = addressed(run.words, server.url)
    if "--url" not in words:
        words += ["--url", server.url]
    done = run_tandem(*words, stdin="Hello!\n")
    # LoadGen calls a run of seconds too short to be valid, which it is.
    if "--loadgen" not in words or "early stopping not met" not in done.stdout:
        assert succeeded(done).strip()


CALLED = [run for run in HERE if run.command.program == "curl"]


@pytest.mark.parametrize("run", CALLED, ids=named)
def test_a_call_is_answered(run, server):
    words = [word.replace("$OPERATOR_KEY", OPERATOR_KEY) for word in run.command.words]
    told = subprocess.run(
        [*addressed(words, server.url), "-s"], capture_output=True, text=True, timeout=60
    )
    answer = succeeded(told).rpartition("\n\n")[2] if "-i" in words else succeeded(told)
    if any(word in ("-N", "-sN") for word in words):
        assert answer.endswith("data: [DONE]\n\n")
    elif answer and not answer.startswith("#"):
        is_mistake = any(each in run.command.text for each in REFUSED)
        assert ("error" in json.loads(answer)) == is_mistake, answer


def test_python_of_every_page_runs_here_or_elsewhere():
    written = {str(page.relative_to(ROOT)): python_of(page) for page in PAGES if python_of(page)}
    assert {*PYTHON_HERE, *PYTHON_ELSEWHERE} == {*written}
    assert not {*PYTHON_HERE} & {*PYTHON_ELSEWHERE}
    texts = [block.text for page in PYTHON_HERE for block in written[page]]
    for words in SNIPPETS_ELSEWHERE:
        assert sum(words in text for text in texts) == 1, words
    for file, words in PYTHON_ELSEWHERE.values():
        assert words in (ROOT / file).read_text()


def python_of(page):
    return [block for block in blocks_of(page) if block.language == "python"]


# What the comments of a page say that its Python prints.
PRINTED = {"docs/agents.md": "tool_calls", "docs/qos.md": "r1\n{'batch': 1}"}


@pytest.mark.parametrize("page", PYTHON_HERE)
def test_python_runs_in_the_order_of_its_page(page, server, capsys):
    """Later blocks go on from earlier ones."""
    ran, names = 0, {}
    for block in python_of(ROOT / page):
        if not any(each in block.text for each in SNIPPETS_ELSEWHERE):
            code = addressed([block.text], server.url)[0]
            exec(compile(code, str(block), "exec"), names)
            ran += 1
    assert ran
    printed = capsys.readouterr().out.strip()
    assert printed or page == "docs/cost.md"
    assert printed == PRINTED.get(page, printed)


STARTED = [
    run for run in of_verbs("serve", "up") if run.command.text not in (SERVER, CLUSTER, OWN_CLUSTER)
]


@pytest.mark.parametrize("run", STARTED, ids=named)
def test_it_serves(run, folder):
    with started([*PROGRAM, *run.in_folder(folder), "--port", "0"]) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        (model, *_) = client.models.list()
        answer = client.completions.create(model=model.id, prompt="Once", max_tokens=4)
        assert answer.usage.completion_tokens == 4
        assert server.terminate() == 0


OPERATED = of_verbs("apply", "explain", "flip", "status") + [
    run for run in HERE if run.command.text in (CLUSTER, OWN_CLUSTER)
]


def test_operators_commands_in_the_order_of_the_pages(folder):
    (start,) = [run for run in OPERATED if run.command.text == CLUSTER]
    with started([*PROGRAM, *start.in_folder(folder), "--port", "0"]) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        answer = client.completions.create(model="tandem-mini", prompt="Once", max_tokens=4)
        for run in of_verbs("explain", "flip", "status"):
            words = [re.sub(r"^(chat)?cmpl-.*", answer.id, word) for word in run.words]
            told = succeeded(run_tandem(*words))
            assert run.verb != "explain" or "finished: length" in told
        assert server.terminate() == 0


def test_a_file_of_ones_own_comes_up_and_is_changed(folder):
    (start,) = [run for run in OPERATED if run.command.text == OWN_CLUSTER]
    (apply,) = of_verbs("apply")
    with started([*PROGRAM, *start.words]) as server:
        file = folder / "my-cluster.yaml"
        file.write_text(file.read_text().replace("ttft: 2s", "ttft: 1s"))
        assert "slo.ttft" in succeeded(run_tandem(*apply.words, "--yes"))
        assert server.terminate() == 0


APART = of_verbs("gateway", "join")


@pytest.fixture
def keys(folder):
    """Those that a command of the pages makes, if it has not been run yet."""
    (run,) = of_verbs("keys")
    made = folder / run.in_folder(folder)[1]
    if not made.exists():
        succeeded(run_tandem(*run.in_folder(folder)))


@pytest.mark.usefixtures("keys")
def test_processes_that_are_started_one_by_one():
    port = free_port()
    with ExitStack() as stack:
        processes = []
        for run in APART:
            words = [
                word.replace("HOST:9000", f"127.0.0.1:{port}").replace(":9000", f":{port}")
                for word in run.words
            ]
            process = stack.enter_context(
                subprocess.Popen(
                    [*PROGRAM, *words],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        for process, run in zip(processes, APART, strict=True):
            wanted = "waits for workers" if run.verb == "gateway" else "has joined"
            assert any(wanted in line for line in process.stdout), run.command.text
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            assert process.wait(60) == 0, process.stdout.read()
