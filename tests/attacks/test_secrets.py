"""Secrets of a cluster stand in files and variables, never among the words of a process, and no
process keeps those that it does not need."""

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.commands.secret_arguments import masked
from tandem.config.api_options import api_config, check_client_keys, tenant_key_files, tenant_keys
from tandem.config.cluster.live import checked, gateway_options
from tandem.config.cluster.tree import parse
from tandem.facts.errors import InvalidConfiguration
from tandem.kv.tiers.redis_client import RedisConfig, RedisLink
from tandem.live.launching import private_directory
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.processes.key_files import read_gateway_keys, read_worker_keys, write_fresh_keys
from tandem.live.processes.setups import Setups, program_of
from tandem.live.processes.shared_pool import password_of
from tests.commands.cli import tandem
from tests.kv.tier_blocks import redis_server

SECRET = "very-secret-key-0815"
GATEWAYS = ("tcp://127.0.0.1:1",)


CLUSTER = """\
model: tandem-mini
block_size: 16
serve: {port: 0, api-key-file: [FOLDER/masters]}
pools:
  - {name: w, role: both, device: cpu}
tenants:
  - {name: acme, api_keys_file: FOLDER/acme}
  - {name: umbrella, api_keys_env: UMBRELLA_KEYS}
tiers:
  remote: {capacity: 64MiB, redis: "redis://HOST:1", redis_capacity: 1GiB, PASSWORD}
"""


def cluster(folder: Path, password: str):
    text = CLUSTER.replace("FOLDER", str(folder)).replace("PASSWORD", password)
    return checked(parse(text, "c.yaml"), folder).cluster


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    (tmp_path / "masters").write_text(f"{SECRET}-master\n")
    (tmp_path / "acme").write_text(f"{SECRET}-acme\n")
    (tmp_path / "redis").write_text(f"{SECRET}-redis\n")
    monkeypatch.setenv("UMBRELLA_KEYS", f"{SECRET}-one\n{SECRET}-two\n")
    monkeypatch.setenv("REDIS_PASSWORD", f"{SECRET}-redis")
    return tmp_path


def test_a_cluster_file_names_files_and_variables_rather_than_keys(secrets, monkeypatch):
    told = cluster(secrets, f"redis_password_file: {secrets}/redis")
    assert tenant_keys(told) == {f"{SECRET}-one": "umbrella", f"{SECRET}-two": "umbrella"}
    files = api_config(gateway_options(told, ()), (), {}, tenant_key_files(told)).key_files
    found = [(Path(file.path).name, file.tenant) for file in files]
    assert found == [("masters", ""), ("acme", "acme")]
    check_client_keys(told)
    (secrets / "acme").write_text(f"{SECRET}-one\n")
    with pytest.raises(InvalidConfiguration, match="already that of another tenant"):
        check_client_keys(told)
    monkeypatch.delenv("UMBRELLA_KEYS")
    with pytest.raises(InvalidConfiguration, match="UMBRELLA_KEYS"):
        check_client_keys(told)


def test_the_password_of_redis_is_read_at_every_connection(secrets):
    def password(named: str):
        return password_of(Setups(cluster(secrets, named)).pool_node("pool-0", GATEWAYS))

    in_file = password(f"redis_password_file: {secrets}/redis")
    assert in_file() == f"{SECRET}-redis"
    (secrets / "redis").write_text("another\n")
    assert in_file() == "another"
    assert password("redis_password_env: REDIS_PASSWORD")() == f"{SECRET}-redis"
    with pytest.raises(InvalidConfiguration, match="a file or a variable"):
        cluster(secrets, "redis_password_env: A, redis_password_file: B")


def test_processes_of_a_cluster_get_no_secret_as_a_word(secrets):
    told = cluster(secrets, "redis_password_env: REDIS_PASSWORD")
    directory = StateDirectory(secrets / "state")
    directory.claim()
    made = Setups(told)
    made.share.host = type(made.share.host)(2, 8 << 30, (f"{SECRET}-env",))
    programs = [
        program_of(made.gateway(0, directory.path, "tcp://127.0.0.1:0"), directory),
        program_of(made.pool_node("pool-0", GATEWAYS), directory),
    ]
    for program in programs:
        assert not any(SECRET in word for word in program.command)


def test_the_words_of_a_command_show_no_key(tmp_path):
    """The very process, as anybody sees it when it calls the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "tandem", "complete", "hello", "--url", url]
        with subprocess.Popen(
            [*command, "--api-key", SECRET], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            listener.settimeout(60)
            connection, _ = listener.accept()
            with connection:
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                # And yet it was heard.
                head = connection.recv(4096)
            process.kill()
    assert b"complete" in words
    assert b"***" in words
    assert not any(SECRET.encode() in word for word in words)
    assert f"Bearer {SECRET}".encode() in head


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["serve", "--api-key", "k", "m"], ["serve", "--api-key", "***", "m"]),
        (["serve", "--api-key=k"], ["serve", "--api-key=***"]),
        (["serve", "--api-key-file", "f"], ["serve", "--api-key-file", "f"]),
        (["up", "--set", "serve.api-key=[k]"], ["up", "--set", "serve.api-key=***"]),
        (["up", "--set=tenants.0.api_keys=[k]"], ["up", "--set=tenants.0.api_keys=***"]),
        (["up", "--set", "tenants=[{name: a, api_keys: [k]}]"], ["up", "--set", "tenants=***"]),
        (["up", "--set", "serve={api-key: [k]}"], ["up", "--set", "serve=***"]),
        (["up", '--set=tiers.remote={redis: "redis://:k@h"}'], ["up", "--set=tiers.remote=***"]),
        (["up", "--set", "redis_password: k"], ["up", "--set", "***"]),
        (["up", "--set", "serve.port=1"], ["up", "--set", "serve.port=1"]),
        (["serve", "--api-key"], ["serve", "--api-key"]),
    ],
)
def test_what_is_hidden(words, shown):
    assert masked(words) == shown


def test_the_password_of_a_real_redis_is_changed_without_a_restart(tmp_path):
    file = tmp_path / "redis"
    config = RedisConfig("redis://127.0.0.1:PORT/0", 1, password=lambda: file.read_text().strip())
    with redis_server(tmp_path, "--requirepass", "first") as server:
        file.write_text("first\n")
        config = replace(config, url=server.url)
        assert "first" not in repr(config)
        link = RedisLink(config, time.monotonic_ns)
        assert link.store([(b"k", b"v")]) == [""]
        port = server.port
    with redis_server(tmp_path, "--requirepass", "second", port=port):
        file.write_text("second\n")
        assert link.store([(b"k", b"v")]) == [""], link.problem
        link.close_redis()
        file.unlink()
        unread = RedisLink(config, time.monotonic_ns)
        assert unread.store([(b"k", b"v")]) is None
        assert "its password cannot be read" in unread.problem
        unread.close_redis()


def test_a_gateway_alone_keeps_no_secret_of_the_workers(tmp_path, monkeypatch):
    """What it writes beside its socket lets nobody forge KV, nor pose as a worker."""
    file, folder, state = tmp_path / "c.yaml", tmp_path / "keys", tmp_path / "state"
    file.write_text(
        CLUSTER[: CLUSTER.index("tenants:")].replace(", api-key-file: [FOLDER/masters]", "")
    )
    write_fresh_keys(folder)
    kept = {}

    async def run(live, setup, directory, console):
        kept.update({path.name: path.read_text() for path in directory.path.iterdir()})

    monkeypatch.setattr("tandem.commands.gateway._run", run)
    words = ("gateway", file, "--keys", folder / "gateway.json", "--name", "g")
    told = tandem(*words, "--state-dir", state)
    assert told.exit_code == 0, told.output
    keys = read_gateway_keys(folder / "gateway.json")
    worker = read_worker_keys(folder / "worker.json")
    assert "operator_secret" in kept["keys.json"]
    for secret in (keys.gateway_secret, keys.kv_secret, keys.transfer_secret, worker.worker_secret):
        assert len(secret) >= 40
        assert not any(secret in text for text in kept.values())


def test_two_first_starts_at_once_make_one_secret(tmp_path, monkeypatch):
    file = tmp_path / "kv.secret"
    made, others = private_directory.make_pair, []

    def make_pair():
        if not others:
            others.append("")
            # At this very moment the other one does all that it does.
            others.append(private_directory.secret_of(file))
        return made()

    monkeypatch.setattr(private_directory, "make_pair", make_pair)
    assert private_directory.secret_of(file) == others[1] != ""
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]
