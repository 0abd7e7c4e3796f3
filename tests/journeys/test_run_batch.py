"""`tandem run-batch`: a file of requests becomes a file of answers in the same order, and what was
answered before it was ended is not computed again."""

import json
import signal
import subprocess
import sys

from tests.journeys.serving import run_here
from tests.waiting import until


def test_a_file_of_requests_becomes_a_file_of_answers(tmp_path):
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    more = [{"max_tokens": 1 + n % 3, "seed": n} for n in range(150)]
    more[7] = {"no_such_field": 1}
    lines = [
        {
            "custom_id": f"r{n}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"Story {n}:"} | each,
        }
        for n, each in enumerate(more)
    ]
    requests.write_text("\n".join(map(json.dumps, lines)))
    arguments = ["-i", str(requests), "-o", str(answers), "--threads", "1"]
    command = [sys.executable, "-m", "tandem", "run-batch", *arguments]
    command += ["--max-batch-requests", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    folder = tmp_path / "out.jsonl.unfinished"
    output = until(lambda: next((p for p in folder.glob("files/*.data") if is_begun(p)), None))
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert not answers.exists()
    before = output.read_bytes().splitlines()[:-1]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
    written = answers.read_bytes().splitlines()
    assert set(before) <= set(written)
    found = [json.loads(line) for line in written]
    assert [each["custom_id"] for each in found] == [f"r{n}" for n in range(150)]
    failed = [n for n, each in enumerate(found) if each["response"]["status_code"] != 200]
    assert failed == [7]
    assert not folder.exists()


def is_begun(path) -> bool:
    """Whether a file of answers has some."""
    return path.read_bytes().count(b'"status_code":200') > 20


def test_what_is_no_batch_is_told_before_anything_is_loaded(tmp_path):
    requests = tmp_path / "in.jsonl"
    for text, problem in (("no JSON", "the first request"), ('{"custom_id": ""}', "method")):
        requests.write_text(text)
        told = run_here("run-batch", "-i", str(requests), "-o", str(tmp_path / "out"))
        assert told.returncode == 2
        assert problem in told.stderr
    told = run_here("run-batch", "-i", "/nowhere", "-o", str(tmp_path / "out"))
    assert "--input-file /nowhere is no file" in told.stderr
