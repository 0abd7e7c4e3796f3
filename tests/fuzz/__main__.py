"""Fuzzes a real server: python -m tests.fuzz --minutes 10 --seed 0

Every endpoint of the schema gets what schemathesis makes of it, valid and not, and bodies that are
spoilt in one place. Ends with status 1 if anything was answered with a status of 500 or more, not
in time or not at all, or if the server says something else in the end than in the beginning.
"""

import argparse
import sys
import threading
import time
from tempfile import TemporaryDirectory

import requests

from tests.fuzz.client import ANSWER_S, Client
from tests.fuzz.tally import Tally
from tests.journeys.serving import serving

QUESTION = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--clients", type=int, default=2)
    options.add_argument("--url", help="a server that is there already")
    chosen = options.parse_args()
    if chosen.url:
        return fuzzed(chosen.url.rstrip("/"), chosen)
    arguments = ("--max-num-seqs", "16", "--threads", "1", "--batch-directory")
    with TemporaryDirectory() as directory, serving(*arguments, directory) as server:
        status = fuzzed(server.url, chosen)
        if server.process.poll() is not None:
            print(f"the server ended with status {server.process.returncode}")
            status = 1
        return status


def fuzzed(url: str, chosen: argparse.Namespace) -> int:
    tally = Tally()
    said = ask(url)
    until_s = time.monotonic() + chosen.minutes * 60
    clients = [
        threading.Thread(target=Client(url, chosen.seed + number, tally).run, args=(until_s,))
        for number in range(chosen.clients)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    print(tally.report())
    same = ask(url) == said
    if not same:
        print("the server no longer says what it said in the beginning")
    return 0 if same and not tally.failures else 1


def ask(url: str) -> str:
    """What an ordinary request says. Empty where the server has no answer any more."""
    try:
        answer = requests.post(f"{url}/v1/completions", json=QUESTION, timeout=ANSWER_S)
        return str(answer.json()["choices"][0]["text"])
    except (requests.RequestException, KeyError) as error:
        print(f"no answer to an ordinary request: {error}")
        return ""


if __name__ == "__main__":
    sys.exit(main())
