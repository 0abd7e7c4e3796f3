"""Names of processes that join from one machine: nobody gets what another holds, and what a process
held is free when it has ended, whatever way."""

import subprocess
import sys

import pytest

from tandem.commands.which_cluster import LONGEST_NAME, host_names
from tandem.facts.errors import InvalidConfiguration
from tandem.live.launching.name_locks import NameLocks

TAKES = """
import sys
from pathlib import Path
from tandem.live.launching.name_locks import NameLocks
names = NameLocks(Path(sys.argv[1]))
print(names.take("host"), flush=True)
sys.stdin.read()
"""


def test_a_name_is_held_until_it_is_given_back(tmp_path):
    one, other = NameLocks(tmp_path / "names"), NameLocks(tmp_path / "names")
    assert one.take("host")
    assert not other.take("host")
    assert other.take("host-2")
    one.release_names()
    assert other.take("host")
    assert not one.take("host-2")


def test_a_name_is_free_once_its_holder_was_killed(tmp_path):
    command = [sys.executable, "-c", TAKES, str(tmp_path / "names")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"True\n"
        assert not NameLocks(tmp_path / "names").take("host")
        holder.kill()
    assert NameLocks(tmp_path / "names").take("host")


def test_a_folder_that_others_may_write_to_holds_no_names(tmp_path):
    folder = tmp_path / "names"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InvalidConfiguration, match="may be written to by others"):
        NameLocks(folder).take("host")
    assert not list(folder.iterdir())


def test_further_names_of_a_host_are_numbered_and_never_too_long(monkeypatch):
    def names_of(host):
        monkeypatch.setattr("socket.gethostname", lambda: host)
        numbered = host_names()
        return [next(numbered) for _ in range(3)]

    assert names_of("gpu-7") == ["gpu-7", "gpu-7-2", "gpu-7-3"]
    long = names_of("tandem-" + "x" * LONGEST_NAME + "-0")
    assert [name[-4:] for name in long] == ["xx-0", "-0-2", "-0-3"]
    assert {len(name) for name in long} == {LONGEST_NAME}
    assert names_of("x" + "-" * LONGEST_NAME + "y")[0] == "y"
