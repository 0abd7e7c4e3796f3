"""Another user of the machine made the directory first: nothing in it is believed, no process that
it names is signalled, no library from it is loaded."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.kernels import native
from tandem.kernels.instructions import Instructions
from tandem.kernels.native import BuildFailure, NativeLibrary, load_library
from tandem.live.launching import private_directory
from tandem.live.launching.private_directory import read_private, write_private
from tandem.live.launching.state_directory import (
    LOCK,
    RECORD,
    ClusterRecord,
    ProcessRecord,
    StateDirectory,
    running_clusters,
    send_signal,
    started_ticks,
    sweep,
)
from tests.commands.cli import tandem

STRANGER = 12345
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give files to another user, to attack as that one"
)


@pytest.fixture
def victim():
    """A process of this user's that nobody may end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def forged(parent: Path, victim: "subprocess.Popen[bytes]", owner: int) -> Path:
    """A state directory as another user would make it, naming a process of this one's."""
    state = parent / "c"
    state.mkdir(parents=True, mode=0o755)
    process = ProcessRecord.of(victim.pid)
    record = ClusterRecord(
        name="c",
        version="1",
        supervisor=process,
        ready=True,
        url="http://127.0.0.1:1",
        gateways={"g": "tcp://127.0.0.1:1"},
        processes={"w": process},
    )
    (state / RECORD).write_bytes(msgspec.json.encode(record))
    (state / LOCK).touch()
    for path in (*state.iterdir(), state):
        os.chown(path, owner, owner)
    return state


def told(*words: object) -> str:
    """What the command says of its failure."""
    result = tandem(*words)
    assert result.exit_code != 0
    return " ".join(result.output.split())


@as_root
@pytest.mark.parametrize("command", [["status"], ["down"], ["down", "--kill"], ["join"]])
def test_a_directory_of_another_user_is_refused(tmp_path, victim, command):
    state = forged(tmp_path, victim, STRANGER)
    assert "not this user's own directory" in told(*command, "--state-dir", state)
    assert victim.poll() is None


@as_root
@pytest.mark.parametrize("command", [["status"], ["down", "--kill"], ["join"]])
def test_the_runtime_directory_that_another_user_made_is_refused(
    tmp_path, victim, command, monkeypatch
):
    for verb in ("status", "which_cluster"):
        place = f"tandem.commands.{verb}.runtime_directory"
        monkeypatch.setattr(place, lambda: tmp_path / "shared")
    forged(tmp_path / "shared", victim, os.geteuid())
    os.chown(tmp_path / "shared", STRANGER, STRANGER)
    assert "not this user's own directory" in told(*command)
    assert "not this user's own directory" in told(*command, "--cluster", "c")
    assert victim.poll() is None


def test_a_directory_that_others_may_write_to_is_refused(tmp_path, victim):
    state = forged(tmp_path, victim, os.geteuid())
    state.chmod(0o777)
    assert "may be written to by others" in told("down", "--kill", "--state-dir", state)
    with pytest.raises(InvalidConfiguration, match="not this user's own directory"):
        StateDirectory(state).claim()
    state.chmod(0o755)
    (state / RECORD).chmod(0o666)
    assert "may be written to by others" in told("down", "--kill", "--state-dir", state)
    assert victim.poll() is None


def test_links_are_not_followed(tmp_path, victim):
    state = forged(tmp_path / "real", victim, os.geteuid())
    (tmp_path / "link").symlink_to(state)
    assert "but a link" in told("down", "--kill", "--state-dir", tmp_path / "link")
    (state / RECORD).rename(tmp_path / "record")
    (state / RECORD).symlink_to(tmp_path / "record")
    with pytest.raises(InvalidConfiguration, match="is a link"):
        read_private(state / RECORD)
    (tmp_path / "precious").write_text("years of work")
    (state / "keys.json").symlink_to(tmp_path / "precious")
    with pytest.raises(InvalidConfiguration, match="is a link"):
        write_private(state / "keys.json", b"secret")
    assert (tmp_path / "precious").read_text() == "years of work"
    assert victim.poll() is None


@as_root
def test_nothing_is_made_or_removed_through_a_link_of_another_user(tmp_path, victim):
    state = forged(tmp_path / "mine", victim, os.geteuid())
    (tmp_path / "tandem-0").symlink_to(tmp_path / "mine")
    os.lchown(tmp_path / "tandem-0", STRANGER, STRANGER)
    with pytest.raises(InvalidConfiguration, match="not this user's own directory"):
        StateDirectory(tmp_path / "tandem-0" / "new").claim()
    assert not (tmp_path / "mine" / "new").exists()
    for looks in (running_clusters, lambda parent: sweep(parent, "c")):
        with pytest.raises(InvalidConfiguration, match="not this user's own directory"):
            looks(tmp_path / "tandem-0")
    assert (state / RECORD).exists()


def forbid(monkeypatch, call: str, number: int = errno.EPERM) -> None:
    """As an old kernel, or a sandbox, answers this call."""

    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(signal if call == "pidfd_send_signal" else os, call, refused)


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("", 0),
        ("no descriptors at all", 0),
        ("pidfd_open", errno.ENOSYS),
        ("pidfd_open", errno.EPERM),
        ("pidfd_send_signal", errno.ENOSYS),
        ("pidfd_send_signal", errno.EPERM),
    ],
)
def test_down_ends_what_a_record_names_only_if_it_is_that_process(
    victim, monkeypatch, call, number
):
    """Though the system may have no descriptors of processes."""
    if call == "no descriptors at all":
        monkeypatch.delattr(os, "pidfd_open")
    elif call:
        forbid(monkeypatch, call, number)
    ticks = started_ticks(victim.pid)
    assert not send_signal(victim.pid, ticks + 1, signal.SIGKILL)
    assert not send_signal(victim.pid, 0, signal.SIGKILL)
    assert not ProcessRecord(victim.pid, ticks, host="10.0.0.2").send(signal.SIGKILL)
    assert victim.poll() is None
    assert send_signal(victim.pid, ticks, signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert not send_signal(victim.pid, ticks, signal.SIGKILL)


@pytest.mark.parametrize("words", [["down"], ["down", "--kill"]])
def test_down_says_at_once_when_it_may_send_nothing(tmp_path, victim, monkeypatch, words):
    state = forged(tmp_path, victim, os.geteuid())
    for call in ("pidfd_open", "pidfd_send_signal", "kill"):
        forbid(monkeypatch, call)
    said = told(*words, "--state-dir", state, "--timeout-s", "0.1")
    assert f"no signal may be sent to {victim.pid}" in said


@as_root
@pytest.mark.parametrize("descriptors", [True, False])
def test_a_process_of_another_user_is_not_signalled(monkeypatch, descriptors):
    if not descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["/bin/cat"], user=STRANGER, stdin=subprocess.PIPE) as other:
        assert not send_signal(other.pid, started_ticks(other.pid), signal.SIGKILL)
        assert other.poll() is None
        other.kill()


@pytest.fixture
def namespace(tmp_path, monkeypatch):
    """A user namespace that knows this user alone: whatever is root's seems to be nobody's."""
    folder = tmp_path / "namespace"
    folder.mkdir()
    (folder / "uid_map").write_text("      1000       1000          1\n")
    (folder / "overflowuid").write_text(f"{STRANGER}\n")
    monkeypatch.setattr(private_directory, "UID_MAP", folder / "uid_map")
    monkeypatch.setattr(private_directory, "OVERFLOW_UID", folder / "overflowuid")
    return folder


def claimed_in(parent: Path, mode: int) -> str:
    """What is said of a directory in one of root's, as it looks in a namespace."""
    os.chown(parent, STRANGER, STRANGER)
    parent.chmod(mode)
    try:
        StateDirectory(parent / "mine" / "c").claim()
    except InvalidConfiguration as refused:
        return str(refused)
    return ""


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_folders_of_a_root_that_is_unknown_here_are_roots(tmp_path, namespace, mode):
    parent = tmp_path / "run"
    parent.mkdir()
    assert not claimed_in(parent, mode)
    write_private(parent / "mine" / "c" / "keys", b"secret")
    # The directory itself has to be this user's all the same.
    os.chown(parent / "mine" / "c", STRANGER, STRANGER)
    with pytest.raises(InvalidConfiguration, match="not this user's own directory"):
        read_private(parent / "mine" / "c" / "keys")


@as_root
@pytest.mark.parametrize("attack", ["root is known", "open to all", "in a folder open to all"])
def test_in_a_namespace_others_are_no_root(tmp_path, namespace, attack):
    parent = tmp_path / "shared" / "theirs"
    parent.mkdir(parents=True)
    if attack == "root is known":
        (namespace / "uid_map").write_text("0 0 4294967295\n")
    if attack == "in a folder open to all":
        parent.parent.chmod(0o1777)
    said = claimed_in(parent, 0o777 if attack == "open to all" else 0o755)
    assert "not this user's own directory" in said


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A kernel cache with a library that was built before, and those that are built since."""
    good = load_library()
    assert isinstance(good, NativeLibrary), good
    copied = tmp_path / "cache" / good.path.name
    copied.parent.mkdir(mode=0o700)
    shutil.copy(good.path, copied)
    copied.chmod(0o755)
    built: list[Path] = []

    def compile_library(compiler: str, library: Path, _: Instructions) -> Path:
        built.append(library)
        fresh = library.with_suffix(".new")
        shutil.copy(good.path, fresh)
        fresh.chmod(0o755)
        return fresh.replace(library)

    monkeypatch.setattr(native, "compile_library", compile_library)
    return copied, built


def test_a_library_of_ones_own_is_loaded_as_it_is(cache):
    library, built = cache
    assert isinstance(load_library(library.parent), NativeLibrary)
    assert not built


@pytest.mark.parametrize("attack", ["writable", "link", pytest.param("owner", marks=as_root)])
def test_a_library_that_somebody_else_may_have_written_is_built_anew(cache, attack):
    library, built = cache
    library.write_bytes(b"not a library at all")
    if attack == "writable":
        library.chmod(0o777)
    elif attack == "owner":
        os.chown(library, STRANGER, STRANGER)
    else:
        library.rename(library.with_name("theirs"))
        library.symlink_to(library.with_name("theirs"))
    assert isinstance(load_library(library.parent), NativeLibrary)
    assert built == [library]


def test_a_cache_of_ones_own_is_closed_to_others(cache):
    library, _ = cache
    library.parent.chmod(0o777)
    assert isinstance(load_library(library.parent), NativeLibrary)
    assert not library.parent.stat().st_mode & 0o022


@as_root
def test_a_cache_of_another_user_is_refused_in_one_line(cache):
    library, built = cache
    os.chown(library.parent, STRANGER, STRANGER)
    refused = load_library(library.parent)
    assert isinstance(refused, BuildFailure)
    assert "belongs to another user (uid 12345)" in refused.reason
    assert "\n" not in refused.reason
    assert not built
