"""Keys of clients stand in files that are read again while the server runs: a slip in one neither
opens the door nor locks everybody out, and a key that is revoked opens nothing."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandem.api import key_ring
from tandem.api.app import build_app
from tandem.api.config import ApiConfig, KeyFile
from tandem.api.key_ring import KeyRing, read_key_file
from tandem.facts.errors import InvalidConfiguration
from tests.attacks.clients import browsing


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when they are told to."""
    told = [0.0]
    monkeypatch.setattr(key_ring, "monotonic_s", lambda: told[0])
    return told


@pytest.fixture
def file(tmp_path) -> Path:
    """Where keys stand, one a line."""
    return tmp_path / "keys"


def ring_of(tenants: dict[Path, str], *keys: str) -> KeyRing:
    """Of the keys in these files, each of its tenant, and of further ones."""
    files = tuple(KeyFile(str(file), tenant) for file, tenant in tenants.items())
    return KeyRing(ApiConfig(api_keys=keys, key_files=files))


@contextmanager
def door_of(file: Path, generator, text):
    """A server that takes these keys: gives the status of a call with such a header."""
    app = build_app(generator, text, ApiConfig(key_files=(KeyFile(str(file)),)))
    with browsing(app) as client:

        def asked(authorization: str | None = None) -> int:
            headers = {} if authorization is None else {"Authorization": authorization}
            return client.get("/v1/models", headers=headers).status_code

        yield asked


def test_a_key_is_replaced_while_the_server_runs(file, generator, text, clock):
    file.write_text("# of the web site\nold-key\n\n")
    with door_of(file, generator, text) as asked:
        assert asked("Bearer old-key") == 200
        assert asked("Bearer new-key") == 401
        assert asked("Bearer # of the web site") == 401
        file.write_text("new-key\n")
        clock[0] += 2
        assert (asked("Bearer old-key"), asked("Bearer new-key")) == (401, 200)


def test_a_secret_that_kubernetes_swaps_is_read_anew(tmp_path, clock):
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "keys").write_text(f"key-{version}\n")
        # Alike in everything but where they lie.
        os.utime(tmp_path / f"..{version}" / "keys", (1, 1))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    ring = ring_of({tmp_path / "keys": "acme"})
    assert ring.owner_of(b"key-1") == "acme"
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert ring.owner_of(b"key-1") == "acme"
    clock[0] += 2
    assert (ring.owner_of(b"key-1"), ring.owner_of(b"key-2")) == (None, "acme")


@pytest.mark.parametrize("slip", ["gone", "no text", "open to all", "of another tenant"])
def test_a_slip_neither_opens_the_door_nor_locks_everybody_out(file, clock, caplog, slip):
    file.write_text("good-key\n")
    ring = ring_of({file: "acme"}, "master")
    match slip:
        case "gone":
            file.unlink()
        case "no text":
            file.write_bytes(b"\xff\n")
        case "open to all":
            file.write_text("intruder\n")
            file.chmod(0o666)
        case "of another tenant":
            file.write_text("good-key\nmaster\n")
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


def test_the_last_key_is_revoked_and_opens_no_door(file, generator, text, clock):
    file.write_text("last-key\n")
    with door_of(file, generator, text) as asked:
        assert asked("Bearer last-key") == 200
        file.write_text("# nobody for now\n")
        clock[0] += 2
        assert (asked("Bearer last-key"), asked("Bearer"), asked()) == (401, 401, 401)
        file.write_text("next-key\n")
        clock[0] += 2
        assert asked("Bearer next-key") == 200


@pytest.mark.parametrize("order", [("acme", "umbrella"), ("umbrella", "acme")])
@pytest.mark.parametrize("seen", ["at once", "the new owner first"])
def test_a_key_that_moves_to_another_tenant_is_not_locked_out(tmp_path, clock, order, seen):
    for name in order:
        (tmp_path / name).write_text(f"{name}-key\n" + "moving-key\n" * (name == "acme"))
    ring = ring_of({tmp_path / name: name for name in order})
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
    ring = ring_of({tmp_path / name: name for name in ("acme", "umbrella")})
    (tmp_path / "acme").write_text("acme-key\numbrella-key\n")
    (tmp_path / "umbrella").write_text("umbrella-key\n")
    for _ in range(3):
        clock[0] += 2
        assert ring.owner_of(b"leaked-umbrella") is None
        assert ring.owner_of(b"umbrella-key") == "umbrella"
        assert ring.owner_of(b"leaked-acme") == "acme"
    assert caplog.text.count("stay valid") == 1


def test_a_file_whose_rights_are_put_right_is_read(file, clock):
    """Which changes neither its size nor the time of its last change."""
    file.write_text("old-key\n")
    ring = ring_of({file: ""})
    file.chmod(0o666)
    file.write_text("newer-key\n")
    clock[0] += 2
    assert ring.owner_of(b"newer-key") is None
    file.chmod(0o600)
    clock[0] += 2
    assert (ring.owner_of(b"newer-key"), ring.owner_of(b"old-key")) == ("", None)


def test_a_key_is_revoked_by_a_copy_that_keeps_size_and_time(file, clock):
    file.write_text("leaked-key\n")
    ring, times = ring_of({file: ""}), file.stat()
    file.write_text("better-key\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    clock[0] += 2
    assert (ring.owner_of(b"leaked-key"), ring.owner_of(b"better-key")) == (None, "")


def test_files_are_not_looked_at_for_every_request(file, clock, monkeypatch):
    file.write_text("good-key\n")
    ring = ring_of({file: ""})
    looks = []
    monkeypatch.setattr(key_ring, "_signature", lambda path: looks.append(path))
    for _ in range(100):
        ring.owner_of(b"guess")
    assert not looks


def test_a_start_without_keys_is_refused(file):
    with pytest.raises(InvalidConfiguration, match="No such file"):
        read_key_file(str(file))
    file.write_text("# later\n")
    with pytest.raises(InvalidConfiguration, match="expected one key a line"):
        ring_of({file: ""})
