"""Keys stand in files that are read again, and never among the words of a process."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from tandem.api import key_ring
from tandem.api.app import build_app
from tandem.api.config import ApiConfig, KeyFile
from tandem.api.key_ring import KeyRing, read_key_file
from tandem.commands.main import app
from tandem.commands.secret_arguments import masked
from tandem.config.api_options import api_config, check_client_keys, tenant_key_files, tenant_keys
from tandem.config.cluster.live import checked, gateway_options
from tandem.config.cluster.tree import parse
from tandem.facts.errors import InvalidConfiguration
from tandem.kv.tiers.redis_client import RedisConfig, RedisLink
from tandem.live.launching import private_directory
from tandem.live.launching.state_directory import StateDirectory
from tandem.live.processes.key_files import (
    read_gateway_keys,
    read_worker_keys,
    write_fresh_keys,
)
from tandem.live.processes.setups import Setups, program_of
from tandem.live.processes.shared_pool import password_of
from tests.api.conftest import *  # noqa: F403 (its fixtures: a scripted generator and a text model)
from tests.api.server import serving
from tests.kv.tier_blocks import redis_server

SECRET = "very-secret-key-0815"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when they are told to."""
    told = [0.0]
    monkeypatch.setattr(key_ring, "monotonic_s", lambda: told[0])
    return told


def ring_of(*files: KeyFile, keys: tuple[str, ...] = ()) -> KeyRing:
    return KeyRing(ApiConfig(api_keys=keys, key_files=files))


def test_a_key_is_replaced_while_the_server_runs(tmp_path, generator, text, clock):
    file = tmp_path / "keys"
    file.write_text("# of the web site\nold-key\n\n")
    app = build_app(generator, text, ApiConfig(key_files=(KeyFile(str(file)),)))
    with serving(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def asked(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return client.get("/v1/models", headers=headers).status_code

        assert (asked("old-key"), asked("new-key"), asked("# of the web site")) == (200, 401, 401)
        file.write_text("new-key\n")
        clock[0] += 2
        assert (asked("old-key"), asked("new-key")) == (401, 200)


def test_a_secret_that_kubernetes_swaps_is_read_anew(tmp_path, clock):
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "keys").write_text(f"key-{version}\n")
        # Alike in everything but where they lie.
        os.utime(tmp_path / f"..{version}" / "keys", (1, 1))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    ring = ring_of(KeyFile(str(tmp_path / "keys"), "acme"))
    assert ring.owner_of(b"key-1") == "acme"
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert ring.owner_of(b"key-1") == "acme"
    clock[0] += 2
    assert (ring.owner_of(b"key-1"), ring.owner_of(b"key-2")) == (None, "acme")


@pytest.mark.parametrize("slip", ["gone", "no text", "open to all", "of another tenant"])
def test_a_slip_neither_opens_the_door_nor_locks_everybody_out(tmp_path, clock, caplog, slip):
    file = tmp_path / "keys"
    file.write_text("good-key\n")
    ring = ring_of(KeyFile(str(file), "acme"), keys=("master",))
    file.unlink() if slip == "gone" else file.write_bytes(
        {"no text": b"\xff\n"}.get(slip, b"good-key\nmaster\n")
    )
    if slip == "open to all":
        file.write_text("intruder\n")
        file.chmod(0o666)
    for _ in range(3):
        clock[0] += 2
        assert ring.owner_of(b"good-key") == "acme"
        assert ring.owner_of(b"master") == ""
        assert ring.owner_of(b"intruder") is None
        assert ring.owner_of(b"") is None
    # Said once, and without a key.
    assert caplog.text.count("stay valid") == 1
    assert "good-key" not in caplog.text
    file.unlink(missing_ok=True)
    file.write_text("next-key\n")
    clock[0] += 2
    assert (ring.owner_of(b"good-key"), ring.owner_of(b"next-key")) == (None, "acme")


def test_the_last_key_is_revoked_and_opens_no_door(tmp_path, generator, text, clock):
    file = tmp_path / "keys"
    file.write_text("last-key\n")
    app = build_app(generator, text, ApiConfig(key_files=(KeyFile(str(file)),)))
    with serving(app) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def asked(**headers: str) -> int:
            return client.get("/v1/models", headers=headers).status_code

        assert asked(Authorization="Bearer last-key") == 200
        file.write_text("# nobody for now\n")
        clock[0] += 2
        assert asked(Authorization="Bearer last-key") == 401
        assert asked(Authorization="Bearer") == 401
        assert asked() == 401
        file.write_text("next-key\n")
        clock[0] += 2
        assert asked(Authorization="Bearer next-key") == 200


@pytest.mark.parametrize("order", [("acme", "umbrella"), ("umbrella", "acme")])
@pytest.mark.parametrize("seen", ["at once", "the new owner first"])
def test_a_key_that_moves_to_another_tenant_is_not_locked_out(tmp_path, clock, order, seen):
    for name in order:
        (tmp_path / name).write_text(f"{name}-key\n" + "moving-key\n" * (name == "acme"))
    ring = ring_of(*(KeyFile(str(tmp_path / name), name) for name in order))
    assert ring.owner_of(b"moving-key") == "acme"
    (tmp_path / "umbrella").write_text("umbrella-key\nmoving-key\n")
    if seen == "the new owner first":
        clock[0] += 2
        assert ring.owner_of(b"moving-key") == "acme"
    (tmp_path / "acme").write_text("acme-key\n")
    clock[0] += 2
    assert ring.owner_of(b"moving-key") == "umbrella"
    assert (ring.owner_of(b"acme-key"), ring.owner_of(b"umbrella-key")) == ("acme", "umbrella")


def test_a_key_is_revoked_though_another_file_is_wrong(tmp_path, clock, caplog):
    for name in ("acme", "umbrella"):
        (tmp_path / name).write_text(f"{name}-key\nleaked-{name}\n")
    ring = ring_of(*(KeyFile(str(tmp_path / name), name) for name in ("acme", "umbrella")))
    (tmp_path / "acme").write_text("acme-key\numbrella-key\n")
    (tmp_path / "umbrella").write_text("umbrella-key\n")
    for _ in range(3):
        clock[0] += 2
        assert ring.owner_of(b"leaked-umbrella") is None
        assert ring.owner_of(b"umbrella-key") == "umbrella"
        assert ring.owner_of(b"leaked-acme") == "acme"
    assert caplog.text.count("stay valid") == 1


def test_a_file_whose_rights_are_put_right_is_read(tmp_path, clock):
    """Which changes neither its size nor the time of its last change."""
    file = tmp_path / "keys"
    file.write_text("old-key\n")
    ring = ring_of(KeyFile(str(file)))
    file.chmod(0o666)
    file.write_text("newer-key\n")
    clock[0] += 2
    assert ring.owner_of(b"newer-key") is None
    file.chmod(0o600)
    clock[0] += 2
    assert (ring.owner_of(b"newer-key"), ring.owner_of(b"old-key")) == ("", None)


def test_a_key_is_revoked_by_a_copy_that_keeps_size_and_time(tmp_path, clock):
    file = tmp_path / "keys"
    file.write_text("leaked-key\n")
    ring, times = ring_of(KeyFile(str(file))), file.stat()
    file.write_text("better-key\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    clock[0] += 2
    assert (ring.owner_of(b"leaked-key"), ring.owner_of(b"better-key")) == (None, "")


def test_files_are_not_looked_at_for_every_request(tmp_path, clock, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("good-key\n")
    ring = ring_of(KeyFile(str(file)))
    looks = []
    monkeypatch.setattr(key_ring, "_signature", lambda path: looks.append(path))
    for _ in range(100):
        ring.owner_of(b"guess")
    assert not looks


def test_a_start_without_keys_is_refused(tmp_path):
    with pytest.raises(InvalidConfiguration, match="No such file"):
        read_key_file(str(tmp_path / "none"))
    (tmp_path / "empty").write_text("# later\n")
    with pytest.raises(InvalidConfiguration, match="expected one key a line"):
        ring_of(KeyFile(str(tmp_path / "empty")))


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
    assert [(Path(file.path).name, file.tenant) for file in files] == [
        ("masters", ""),
        ("acme", "acme"),
    ]
    check_client_keys(told)
    (secrets / "acme").write_text(f"{SECRET}-one\n")
    with pytest.raises(InvalidConfiguration, match="already that of another tenant"):
        check_client_keys(told)
    monkeypatch.delenv("UMBRELLA_KEYS")
    with pytest.raises(InvalidConfiguration, match="UMBRELLA_KEYS"):
        check_client_keys(told)


def test_the_password_of_redis_is_read_at_every_connection(secrets):
    told = cluster(secrets, f"redis_password_file: {secrets}/redis")
    password = password_of(Setups(told).pool_node("pool-0", ("tcp://127.0.0.1:1",)))
    assert password() == f"{SECRET}-redis"
    (secrets / "redis").write_text("another\n")
    assert password() == "another"
    told = cluster(secrets, "redis_password_env: REDIS_PASSWORD")
    password = password_of(Setups(told).pool_node("pool-0", ("tcp://127.0.0.1:1",)))
    assert password() == f"{SECRET}-redis"
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
        program_of(made.pool_node("pool-0", ("tcp://127.0.0.1:1",)), directory),
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
    words = ["gateway", str(file), "--keys", str(folder / "gateway.json"), "--name", "g"]
    told = CliRunner().invoke(app, [*words, "--state-dir", str(state)])
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
