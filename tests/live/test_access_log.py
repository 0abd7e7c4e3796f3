"""The access log's file: moved, full and slow disks, and nobody waits for them."""

import json
import os

import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.live import access_log
from tandem.live.access_log import AccessLogWriter
from tests.waiting import until


def lines_of(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(access_log, "FLUSH_S", 0.005)


@pytest.mark.usefixtures("quick")
def test_a_file_that_was_moved_is_made_anew(tmp_path):
    file, moved = tmp_path / "access.log", tmp_path / "access.log.1"
    writer = AccessLogWriter(str(file))
    writer.start()
    writer.write(b'{"call": 1}\n')
    until(lambda: lines_of(file))
    file.rename(moved)
    writer.write(b'{"call": 2}\n')
    until(lambda: lines_of(file))
    writer.write(b'{"call": 3}\n')
    writer.stop_writing()
    assert lines_of(moved) == [{"call": 1}]
    assert lines_of(file) == [{"call": 2}, {"call": 3}]
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_written_is_counted_and_told_later(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    file = folder / "access.log"
    writer = AccessLogWriter(str(file), queued_bytes=30)
    # Before the thread runs, only so much waits.
    for _ in range(5):
        writer.write(b'{"call": 1}\n')
    writer.start()
    until(lambda: writer.lost_lines == 3)
    file.unlink()
    folder.rmdir()
    writer.write(b'{"call": 2}\n')
    until(lambda: writer.lost_lines == 4)
    # Once, until it is written again.
    assert caplog.text.count("misses lines: calls end faster than it is written") == 1
    folder.mkdir()
    writer.write(b'{"call": 3}\n')
    writer.stop_writing()
    assert lines_of(file) == [{"lost_lines": 4}, {"call": 3}]


def test_a_file_that_cannot_be_had_is_told_before_anybody_is_served(tmp_path):
    with pytest.raises(InvalidConfiguration, match="access-log: cannot write"):
        AccessLogWriter(str(tmp_path / "nowhere" / "access.log"))


def test_the_standard_output_is_a_file_like_others(capfd):
    writer = AccessLogWriter("-")
    writer.start()
    writer.write(b'{"call": 1}\n')
    writer.stop_writing()
    assert capfd.readouterr().out == '{"call": 1}\n'
    os.write(1, b"still open")
