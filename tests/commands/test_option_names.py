"""Errors call options as whoever reads them wrote them: flags, keys of a file, the file's line."""

import subprocess
import sys

import pytest

from tandem.commands.late_imports import VERBS
from tandem.commands.option_names import in_keys, in_options_of
from tests.bench.scripted_server import Script, ScriptedServer
from tests.commands.cli import tandem

FILE = "port: 8123\n# the budget\nmax_num_batched_tokens: 4\n"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("port: expected a number", "--port: expected a number"),
        ("max-model-len 9 is beyond", "--max-model-len 9 is beyond"),
        ("raise serve.kv-cache-memory", "raise --kv-cache-memory"),
        ("pool w: max_num_seqs (3) is less", "pool w: --max-num-seqs (3) is less"),
        ("tandem serve: use --device cpu", "use --device cpu"),
        ("no file /a/max-model-len/b for this port", "no file /a/max-model-len/b for this port"),
    ],
)
def test_a_command_line_has_flags(problem, said):
    assert in_options_of(problem, None, ()) == said


def test_what_a_file_said_is_named_with_its_line(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(FILE)
    problem = "max-num-batched-tokens (4) must be at least max-num-seqs (64)"
    said = in_options_of(problem, file, ())
    assert said == (
        f"{file}, line 3: max-num-batched-tokens (4) must be at least --max-num-seqs (64)"
    )
    # A flag wins over the file, and is to blame.
    assert in_options_of(problem, file, ["max-num-batched-tokens"]).startswith("--max-num-batched")


def test_a_cluster_file_has_keys():
    problem = "choose another --port; see --state-dir"
    assert in_keys(problem, {"--state-dir"}) == "choose another port; see --state-dir"
    assert in_keys(problem, {"--state-dir", "--port"}) == problem


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("host: 127.0.0.1\nport: 70000\n", "line 2: port: expected"),
        ("\n\nprot: 80\n", "line 3: unknown option prot; did you mean port"),
        ("speculation-model: x\n", "line 1: speculation-model is for --speculation"),
    ],
)
def test_mistakes_of_an_options_file_name_file_and_line(tmp_path, content, words):
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    told = tandem("serve", "--config", file)
    assert told.exit_code == 2
    assert f"{file}, {words}" in told.stderr


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("host", "0.0.0.0", "line 3: host 0.0.0.0 can be reached"),
        ("host", "192.0.2.1", "line 3: cannot listen on 192.0.2.1"),
    ],
)
def test_mistakes_of_a_cluster_file_name_file_and_line(tmp_path, key, value, words):
    file = tmp_path / "cluster.yaml"
    text = f"model: tandem-mini\nserve:\n  {key}: {value}\npools: [{{name: w, device: cpu}}]\n"
    file.write_text(text)
    told = tandem("up", file)
    assert told.exit_code == 2
    assert f"{file}, {words}" in told.stderr
    assert "--" not in told.stderr


# What is wrong, and what is said of it.
MISTAKES = (
    (("serve", "/no/such/model"), "is no directory"),
    (("serve", "model.gguf"), "GGUF"),
    (("serve", "--max-model-len", "1000000"), "--max-model-len 1000000"),
    (("serve", "--port", "TAKEN"), "choose another --port"),
    (("serve", "--port", "TAKEN", "--workers", "2"), "choose another --port"),
    (("serve", "--host", "192.0.2.1"), "--host must be"),
    (("serve", "--quantization", "int8", "--dtype", "float16"), "exclude each other"),
    (("serve", "--lora-modules", "a=/b"), "--lora-modules needs --enable-lora"),
    (("serve", "--enable-lora", "--lora-modules", "a=/b"), "adapter /b is no directory"),
    (("serve", "--speculation", "draft", "--speculation-model", "/b"), "--speculation-model: "),
    (("serve", "--disk-cache", "lots"), "--disk-cache: expected a size"),
    (("calibrate", "/no/such/model"), "is no directory"),
    (("merge", "/no/such/model", "a", "b"), "is no directory"),
)
# All of them in one process, which says at last whether torch was loaded.
SCRIPT = """
import socket, sys
from typer.testing import CliRunner
from tandem.commands.main import app
taken = socket.create_server(("127.0.0.1", 0))
port = str(taken.getsockname()[1])
for line in sys.stdin.read().splitlines():
    words = [port if word == "TAKEN" else word for word in line.split()]
    print(CliRunner().invoke(app, words).stderr.strip())
print("torch" in sys.modules)
"""


def test_first_mistakes_are_told_before_torch_is_loaded():
    lines = "\n".join(" ".join(words) for words, _ in MISTAKES)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=lines, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    *told, loaded = done.stdout.splitlines()
    assert len(told) == len(MISTAKES), told
    for (_, words), said in zip(MISTAKES, told, strict=True):
        assert words in said
    assert loaded == "False"


def test_no_help_shows_a_value_of_the_language():
    for verb in VERBS:
        shown = tandem(verb, "--help")
        assert shown.exit_code == 0
        assert "None" not in shown.stdout, verb


def test_status_explains_its_columns():
    shown = " ".join(tandem("status", "--help").stdout.split())
    for column in ("runs", "waits", "KV read", "KV given", "us a token"):
        assert column in shown


@pytest.mark.parametrize(
    "words",
    [
        ("complete", "x"),
        ("chat",),
        ("bench", "--num-prompts", "1"),
        ("eval", "--tasks", "recall-1k", "--samples", "1"),
    ],
)
@pytest.mark.parametrize("variable", ["TANDEM_API_KEY", "OPENAI_API_KEY"])
def test_clients_read_the_key_that_servers_read(monkeypatch, words, variable):
    for name in ("TANDEM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer(Script(api_key="secret")) as server:
        refused = tandem(*words, "--url", server.url, text="hi")
        assert "wrong API key" in refused.output
        monkeypatch.setenv(variable, "secret")
        answered = tandem(*words, "--url", server.url, text="hi")
        assert answered.exit_code == 0, answered.output
